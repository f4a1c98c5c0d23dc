"""COCO's annotation file, one entry after another; must not know what entries mean together.

COCO's largest file is 450 MB of JSON, and 3 GB as Python objects. So only a piece of its text and one entry
are in memory at a time, and an error tells the place. The standard library's parser is fast enough here, and
unlike others it reads NaN, which then has an id.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import unicodedata
from array import array
from collections.abc import Collection, Iterator
from json import JSONDecodeError
from typing import Any, NamedTuple, TextIO

import numpy as np

from contracts import Array
from dataset.scan.manifest import Rejected

PIECE = 1 << 24  # characters read at a time
SPACE = " \t\n\r"
# Unicode's categories of control characters, halves of characters, ends of lines
UNPRINTED = ("Cc", "Cs", "Zl", "Zp")
FARTHEST = 1e5  # pixels: no image reaches so far, and what is drawn of a mask takes memory with its distance
TOKEN = 20  # characters: so close to the end of a piece a name or a number may be cut in two


WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


class NotCoco(Exception):
    """The file is no JSON, or not of COCO's form; says where and why."""


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
    name: str  # of the file, as it is written
    height: int  # pixels
    width: int


class Annotation(NamedTuple):
    """One annotation as finite numbers of the right number; nothing is checked against its image."""

    annotation_id: int | None  # None where it has none
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
    return number_of(entry, "id")


def number_of(entry: Any, key: str) -> int:
    """Return an id. A text is the whole number that it writes, else one of 48 bits that is its own.

    Raises Rejected.
    """
    value = _field(entry, key)
    if not isinstance(value, str):
        return _whole(entry, key)
    if WHOLE.fullmatch(value):
        return int(value)
    return int.from_bytes(hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=6).digest())


def _own_id(entry: Any) -> int | None:
    """Return the id of an annotation, None for what is none."""
    try:
        return number_of(entry, "id")
    except Rejected:
        return None


def image(entry: Any) -> Image:
    """Return the image that an entry describes. Raises Rejected, and nothing else."""
    name = _field(entry, "file_name")
    if not isinstance(name, str) or not name or "\0" in name:
        raise Rejected(f"file_name {_short(name)} is no path below the folder of images")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise Rejected(f"file_name {_short(name)} is no path") from None
    height, width = _whole(entry, "height"), _whole(entry, "width")
    if min(height, width) < 1:
        raise Rejected(f"is {width} x {height} pixels large")
    return Image(image_id(entry), name, height, width)


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
        _own_id(entry),
        number_of(entry, "image_id"),
        number_of(entry, "category_id"),
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
    return Category(number_of(entry, "id"), name, tuple(points))


def _keypoints(entry: Any) -> array[float]:
    if entry.get("keypoints") is None:  # a category without keypoints may stand beside one with
        return array("d")
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
