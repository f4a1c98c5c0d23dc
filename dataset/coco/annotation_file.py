"""COCO's annotation file: where it is, and one entry after another; must not know what entries mean together.

COCO's largest file is 450 MB of JSON, and 3 GB as Python objects. So only a piece of its text and one entry
are in memory at a time, and an error tells the place. The standard library's parser is fast enough here, and
unlike others it reads NaN, which then has an id.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
from array import array
from collections.abc import Collection, Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import numpy as np

from contracts import Array, UserError
from dataset.manifest import Rejected

PIECE = 1 << 24  # characters read at a time
SPACE = " \t\n\r"
# Unicode's categories of control characters, halves of characters, ends of lines
UNPRINTED = ("Cc", "Cs", "Zl", "Zp")
FARTHEST = 1e5  # pixels: no image reaches so far, and what is drawn of a mask takes memory with its distance
Split = Literal["train", "val"]
TOKEN = 20  # characters: so close to the end of a piece a name or a number may be cut in two


class NotCoco(Exception):
    """The file is no JSON, or not of COCO's form; says where and why."""


def find(root: Path, split: Split, *, keypoints: bool, images: bool = True) -> tuple[Path, str]:
    """Return (the annotation file, absolute; the name of the folder of its images). Raises UserError.

    Without `images` that folder need not exist.
    """
    real = Path(os.path.realpath(root))
    stem = "person_keypoints" if keypoints else "instances"
    wanted = f"COCO's layout has {split}2017/ and annotations/{stem}_{split}2017.json"
    folder = real / "annotations"
    if not folder.is_dir():
        what = f"{root} has no folder annotations" if real.is_dir() else f"{root} is no folder"
        raise UserError(f"--data: {what}; {wanted}")
    found = {path.stem[len(stem) + 1 :]: path for path in sorted(folder.glob(f"{stem}_{split}*.json"))}
    if f"{split}2017" in found:
        found = {f"{split}2017": found[f"{split}2017"]}
    if not found:
        raise UserError(f"--data: {root}/annotations has no {stem}_{split}*.json; {wanted}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found.values())
        raise UserError(
            f"--data: {root}/annotations has {names}; leave one of them, or name the one "
            f"{stem}_{split}2017.json"
        )
    ((name, file),) = found.items()
    if images and not (real / name).is_dir():
        raise UserError(
            f"--data: {root} has no folder {name} for the images of annotations/{file.name}; {wanted}"
        )
    return file, name


def entries(file: TextIO, keys: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, entry) of the top-level lists named in `keys`, in the file's order. Raises NotCoco.

    Everything else in the file is passed over.
    """
    text = _Text(file)
    if text.next() != "{":
        raise NotCoco(
            "holds no object at its top; COCO's form is "
            '{"images": [...], "annotations": [...], "categories": [...]}'
        )
    text.take("{")
    seen = set()
    while text.next() != "}":
        if text.next() != '"':
            raise NotCoco(f"is no JSON: got {text.next()!r} and no name {text.where()}")
        key = text.value()
        text.take(":")
        seen.add(key)
        if text.next() == "[":
            text.take("[")
            while text.next() != "]":
                entry = text.value()
                if key in keys:
                    yield key, entry
                text.comma(unless="]")
            text.take("]")
        elif key in keys:
            raise NotCoco(f"holds something else than a list as '{key}' {text.where()}")
        else:
            text.value()
        text.comma(unless="}")
    text.end()
    missing = [key for key in keys if key not in seen]
    if missing:
        raise NotCoco(f"has no '{missing[0]}'; COCO's form has {' and '.join(repr(key) for key in keys)}")


class _Text:
    """The text of a file, of which a piece is there, and a place in it."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.piece = ""
        self.place = 0
        self.before = 0  # characters before the piece
        self.whole = False  # the piece reaches to the end of the file
        self.decode = json.JSONDecoder().raw_decode

    def where(self) -> str:
        return f"at character {self.before + self.place:,}"

    def read_on(self) -> None:
        """Read a larger piece; what lies before the place is let go of."""
        read = self.file.read(PIECE)
        self.before += self.place
        self.piece = self.piece[self.place :] + read
        self.place = 0
        self.whole = not read

    def next(self) -> str:
        """Return the next character that is no space, without taking it."""
        while True:
            while self.place < len(self.piece):
                if self.piece[self.place] not in SPACE:
                    return self.piece[self.place]
                self.place += 1
            if self.whole:
                raise NotCoco(f"is no JSON: it ends too early, {self.where()}")
            self.read_on()

    def end(self) -> None:
        """Take the bracket that closes the file."""
        self.place += 1
        while True:
            if self.piece[self.place :].strip(SPACE):
                raise NotCoco(f"is no JSON: more than one value, {self.where()}")
            if self.whole:
                return
            self.place = len(self.piece)
            self.read_on()

    def take(self, wanted: str) -> None:
        if self.next() != wanted:
            raise NotCoco(f"is no JSON: got {self.next()!r} and not {wanted!r} {self.where()}")
        self.place += 1

    def comma(self, *, unless: str) -> None:
        """Take the comma between two values; there is none behind the last one."""
        if self.next() != unless:
            self.take(",")
            if self.next() == unless:
                raise NotCoco(f"is no JSON: got {unless!r} behind a comma {self.where()}")

    def value(self) -> Any:
        """Take the value that begins here. One at the end of the piece may go on behind it."""
        self.next()
        while True:
            try:
                value, end = self.decode(self.piece, self.place)
                if len(self.piece) - end > TOKEN or self.whole:
                    self.place = end
                    return value
            except JSONDecodeError as error:
                cut = error.pos > len(self.piece) - TOKEN or error.msg.startswith("Unterminated string")
                if self.whole or not cut:
                    raise NotCoco(
                        f"is no JSON: {error.msg} (character {self.before + error.pos:,})"
                    ) from None
            except (
                RecursionError,
                ValueError,
            ) as error:  # nested too deep, or a number of thousands of digits
                raise NotCoco(f"cannot be read: {error} {self.where()}") from None
            self.read_on()


class Image(NamedTuple):
    image_id: int
    path: bytes  # below the folder of images
    height: int  # pixels
    width: int


class Annotation(NamedTuple):
    """One annotation as finite numbers of the right number; nothing is checked against its image."""

    annotation_id: int
    image_id: int
    category_id: int
    box: array[float]  # x y width height
    area: float
    crowd: bool
    polygons: list[array[float]]  # x0 y0 x1 y1 ... of each
    runs: array[int]
    size: tuple[int, int]  # height and width of the image that the runs fill; 0 0 without runs
    keypoints: array[float]  # x0 y0 visibility0 x1 ...
    fault: str  # why the segmentation is left out; empty when it is not


class Category(NamedTuple):
    category_id: int
    name: str
    keypoints: tuple[str, ...]  # their names


def id_of(entry: Any) -> str:
    """How a message names an entry, whatever it is."""
    found = entry.get("id", "without an id") if isinstance(entry, dict) else "without an id"
    return (found if found == "without an id" else repr(found))[:40]


def image_id(entry: Any) -> int:
    """Return the id of an entry of an image. Raises Rejected."""
    return _whole(entry, "id")


def image(entry: Any, prefixes: Collection[str]) -> Image:
    """Return the image that an entry describes. Raises Rejected, and nothing else.

    `prefixes`: how names may begin that are not written below the folder of images.
    """
    name = _field(entry, "file_name")
    if isinstance(name, str):
        name = name.removeprefix(next((prefix for prefix in prefixes if name.startswith(prefix)), ""))
    if (
        not isinstance(name, str)
        or not name
        or "\0" in name
        or name.startswith("/")
        or ".." in name.split("/")
    ):
        raise Rejected(f"file_name {_short(name)} is no path below the folder of images")
    try:
        path = os.fsencode(name)
    except UnicodeEncodeError:
        raise Rejected(f"file_name {_short(name)} is no path") from None
    height, width = _whole(entry, "height"), _whole(entry, "width")
    if min(height, width) < 1:
        raise Rejected(f"is {width} x {height} pixels large")
    return Image(image_id(entry), path, height, width)


def annotation(entry: Any, *, keypoints: bool) -> Annotation:
    """Return the annotation that an entry describes. Raises Rejected, and nothing else.

    Without an area it has that of its box; a segmentation that cannot be used is left out.
    """
    box = _numbers(entry, "bbox")
    crowd = entry.get("iscrowd", 0)
    if len(box) != 4:
        raise Rejected(f"bbox has {len(box)} numbers, not x y width height")
    area = _numbers({"area": [box[2] * box[3] if entry.get("area") is None else entry["area"]]}, "area")[0]
    if min(box[2], box[3], area) < 0:
        raise Rejected(
            f"bbox {_short(box.tolist())} and area {area:g}: width, height and area cannot be negative"
        )
    if crowd not in (0, 1):
        raise Rejected(f"iscrowd {_short(crowd)} is neither 0 nor 1")
    fault = ""
    try:
        polygons, runs, size = _segmentation(entry.get("segmentation"))
    except Rejected as why:
        polygons = []
        runs = array("I")
        size = (0, 0)
        fault = str(why)
    return Annotation(
        _whole(entry, "id"),
        _whole(entry, "image_id"),
        _whole(entry, "category_id"),
        box,
        area,
        bool(crowd),
        polygons,
        runs,
        size,
        _keypoints(entry) if keypoints else array("d"),
        fault,
    )


def category(entry: Any, *, keypoints: bool) -> Category:
    """Return the category that an entry describes. Raises Rejected, and nothing else."""
    name = _field(entry, "name")
    points = entry.get("keypoints", []) if keypoints else []
    if not isinstance(name, str):
        raise Rejected(f"name {_short(name)} is no text")
    if not name.strip() or any(unicodedata.category(letter) in UNPRINTED for letter in name):
        raise Rejected(
            f"name {_short(name)} is empty or holds a control character or a line's end; give it another name"
        )
    if not isinstance(points, list) or not all(isinstance(point, str) for point in points):
        raise Rejected(f"keypoints {_short(points)} are no names")
    return Category(_whole(entry, "id"), name, tuple(points))


def _keypoints(entry: Any) -> array[float]:
    values = _numbers(entry, "keypoints")
    if any(visible not in (0, 1, 2) for visible in values[2::3]):
        raise Rejected("keypoints: a visibility is none of 0, 1 and 2")
    return values


def _segmentation(value: Any) -> tuple[list[array[float]], array[int], tuple[int, int]]:
    """Return (polygons, runs, size), as in Annotation."""
    nothing = array("I")
    if value is None:
        return [], nothing, (0, 0)
    if isinstance(value, list):
        polygons = [_numbers({"segmentation": polygon}, "segmentation") for polygon in value]
        for polygon in polygons:
            if len(polygon) % 2 or len(polygon) < 6:
                raise Rejected(
                    f"segmentation: a polygon has {len(polygon)} numbers, not an x and a y of at least 3 "
                    "points"
                )
            if (far := max(max(polygon), -min(polygon))) > FARTHEST:
                raise Rejected(f"segmentation: a point is {far:.3g} pixels away; no image reaches so far")
        return polygons, nothing, (0, 0)
    counts = _field(value, "counts")
    size = _field(value, "size")
    try:
        runs = array(
            "I", uncompressed(counts.encode("ascii")).tolist() if isinstance(counts, str) else counts
        )
        height, width = size
        if not (
            isinstance(height, int) and isinstance(width, int) and sum(runs) == height * width and height > 0
        ):
            raise Rejected(f"segmentation: its runs are {sum(runs)} pixels long, its size is {_short(size)}")
    except (TypeError, ValueError, OverflowError):
        raise Rejected("segmentation: cannot be decoded") from None
    return [], runs, (height, width)


LONGEST = 7  # characters of a compressed run: 34 bits and a sign, when 32 are what a run may have


def uncompressed(text: bytes) -> Array:
    """Return the int64 run lengths of COCO's compressed form. Raises ValueError.

    A character holds 5 bits, the lowest first, and whether more follow; the last one's highest bit is the
    sign. From the fourth run on it is the difference to the last but one. There is no Python loop over the
    characters.
    """
    letters = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not len(letters) or letters.min() < 0 or letters.max() > 63 or letters[-1] & 32:
        raise ValueError("letters that are no run lengths")
    ends = np.flatnonzero(letters & 32 == 0)
    begins = np.concatenate([[0], ends[:-1] + 1])
    digits = ends - begins + 1
    if digits.max() > LONGEST:
        raise ValueError("a run that is too long")
    places = np.arange(len(letters)) - np.repeat(begins, digits)
    runs = np.add.reduceat((letters & 31) << 5 * places, begins)
    runs -= np.where(letters[ends] & 16, 1 << 5 * digits, 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return runs


def _field(entry: Any, key: str) -> Any:
    if not isinstance(entry, dict):
        raise Rejected(f"{_short(entry)} is no object with '{key}'")
    if key not in entry:
        raise Rejected(f"has no {key}")
    return entry[key]


def _whole(entry: Any, key: str) -> int:
    value = _field(entry, key)
    if type(value) is float and value.is_integer():  # some tools write every number as 1000.0
        value = int(value)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:  # True is no number here
        raise Rejected(f"{key} {_short(value)} is no whole number")
    return value


def _numbers(entry: Any, key: str) -> array[float]:
    values = _field(entry, key)
    try:
        numbers = array("d", values)
    except (TypeError, ValueError, OverflowError):
        raise Rejected(f"{key} {_short(values)} is no list of numbers") from None
    if not math.isfinite(sum(numbers)):
        raise Rejected(f"{key} holds NaN or infinity")
    return numbers


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
