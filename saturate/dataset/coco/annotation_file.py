"""COCO's annotation file: its entries one by one, checked; must not know what entries mean together.

The file is in memory as a whole, and its entries become objects one by one.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
import reprlib
from array import array
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from saturate.contracts import Array, counted
from saturate.dataset.scan.manifest import Rejected

UNPRINTED = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
FARTHEST = 1e5  # pixels: what is drawn of a mask takes memory with its distance


class NotCoco(Exception):
    """The file is no JSON, or not of COCO's form; says why."""


def entries(file: BinaryIO, keys: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, entry) of the top-level lists named in `keys`. Raises NotCoco."""
    # images alone do without it
    from msgspec import DecodeError, Raw
    from msgspec.json import decode

    where = ""
    try:
        # editors of Windows begin a file with a byte-order mark
        content = file.read().removeprefix(BOM_UTF8)
        try:
            document: Any = decode(content, type=dict[str, Raw])
            for key in document.keys() & keys:
                document[key] = decode(document[key], type=list[Raw])
        except (DecodeError, RecursionError):
            # this one says what is wrong, or reads what programs write beside JSON: NaN, halves of characters
            document = json.loads(content)
        for key in keys:
            if not isinstance(document, dict) or not isinstance(
                document.get(key), list
            ):
                raise NotCoco(
                    f"has no list '{key}'; COCO's form is "
                    '{"images": [...], "annotations": [...], "categories": [...]}'
                )
            for number, entry in enumerate(document[key]):
                where = f"entry {number} of '{key}': "
                try:
                    yield key, decode(entry) if isinstance(entry, Raw) else entry
                except DecodeError:
                    # a number beyond 1e308, which Python has as infinity
                    yield key, json.loads(bytes(entry))
    # no JSON or no UTF-8, a number of thousands of digits, or lists in lists without end
    except (ValueError, RecursionError) as error:
        raise NotCoco(f"is no JSON: {where}{error}") from None


class Image(NamedTuple):
    image_id: int
    name: str  # of the file, as it is written
    height: int  # pixels
    width: int


ROW = np.dtype(
    [
        ("annotation_id", "i8"),  # 0 = it has none
        ("image_id", "i8"),
        ("category_id", "i8"),
        ("category", "i4"),  # index into the sorted ids; -1 = unknown
        ("box", "f8", (4,)),  # x y width height
        ("area", "f8"),
        ("crowd", "?"),
        ("keypoints", "i8"),  # numbers, three a keypoint
        ("polygons", "i8"),  # how many
        ("points", "i8"),  # of all polygons
        ("runs", "i8"),
        ("size", "i8", (2,)),  # height and width of the image that the runs fill
    ]
)
"""One annotation as finite numbers of the right number; nothing is checked against its image."""


class Annotation(NamedTuple):
    row: tuple[Any, ...]  # a ROW
    keypoints: array[float]  # x0 y0 visibility0 x1 ...
    polygons: Sequence[array[float]]  # x0 y0 x1 y1 ... of each
    runs: array[int]
    fault: str  # why the segmentation is left out


class Category(NamedTuple):
    category_id: int
    name: str
    keypoints: tuple[str, ...]  # their names


def id_of(entry: object) -> str:
    """Return what messages call an entry, whatever it is."""
    if isinstance(entry, dict) and "id" in entry:
        return repr(entry["id"])[:40]
    return "without an id"


def number_of(entry: object, key: str) -> int:
    """Return an id, which may be written as text. Raises Rejected."""
    value = _field(entry, key)
    with suppress(ValueError):
        if isinstance(value, str):
            return _whole({key: int(value)}, key)
    return _whole(entry, key)


def image(entry: object) -> Image:
    """Return the image that an entry describes. Raises Rejected, and nothing else."""
    name = _field(entry, "file_name")
    height, width = _whole(entry, "height"), _whole(entry, "width")
    try:
        usable = bool(os.fsencode(name)) and "\0" not in name
    except (TypeError, UnicodeEncodeError):
        usable = False
    if not usable:
        raise Rejected(f"file_name {_short(name)} is no path")
    if min(height, width) < 1:
        raise Rejected(f"is {width} x {height} pixels large")
    return Image(number_of(entry, "id"), name, height, width)


def annotation(entry: Any, *, keypoints: bool) -> Annotation:
    """Return the annotation that an entry describes. Raises Rejected, and nothing else.

    Without an area it has that of its box; a segmentation that cannot be used is left out.
    """
    box = _numbers(_field(entry, "bbox"), "bbox")
    crowd = entry.get("iscrowd", 0)
    if len(box) != 4:
        raise Rejected(f"bbox has {counted(len(box), 'number')}, not x y width height")
    area = entry.get("area")
    (area,) = _numbers([box[2] * box[3] if area is None else area], "area")
    if min(box[2], box[3], area) < 0:
        raise Rejected(
            f"bbox {_short(box.tolist())} and area {area:g}: width, height and area cannot be negative"
        )
    if crowd not in (0, 1):
        raise Rejected(f"iscrowd {_short(crowd)} is neither 0 nor 1")
    points = entry.get("keypoints") if keypoints else None
    # a category without keypoints may stand beside one with
    marks = _numbers([] if points is None else points, "keypoints")
    if not {0, 1, 2}.issuperset(marks[2::3]):
        raise Rejected("keypoints: a visibility is none of 0, 1 and 2")
    annotation_id = 0
    # nothing but messages needs it
    with suppress(Rejected):
        annotation_id = number_of(entry, "id")
    polygons: list[array[float]] = []
    runs = array("I")
    size = (0, 0)
    fault = ""
    segmentation = entry.get("segmentation")
    try:
        if isinstance(segmentation, list):
            polygons = [*map(_polygon, segmentation)]
        elif segmentation is not None:
            runs, size = run_lengths(segmentation)
    except Rejected as why:
        fault = str(why)
    row = (
        annotation_id,
        number_of(entry, "image_id"),
        number_of(entry, "category_id"),
        -1,
        tuple(box),
        area,
        bool(crowd),
        len(marks),
        len(polygons),
        sum(map(len, polygons)) // 2,
        len(runs),
        size,
    )
    return Annotation(row, marks, polygons, runs, fault)


def category(entry: Any, *, keypoints: bool) -> Category:
    """Return the category that an entry describes. Raises Rejected, and nothing else."""
    name = _field(entry, "name")
    points = entry.get("keypoints", []) if keypoints else []
    # tables and TensorBoard show it: no control characters, and no halves of characters
    if not isinstance(name, str) or not name.strip() or UNPRINTED.search(name):
        raise Rejected(f"name {_short(name)} is no text that can be shown on a line")
    if not isinstance(points, list):
        raise Rejected(f"keypoints {_short(points)} are no list")
    return Category(number_of(entry, "id"), name, tuple(map(str, points)))


def _polygon(points: object) -> array[float]:
    numbers = _numbers(points, "segmentation")
    if len(numbers) % 2 or len(numbers) < 6:
        raise Rejected(
            f"segmentation: a polygon has {counted(len(numbers), 'number')}, not an x and a y of at least 3 points"
        )
    if max(map(abs, numbers)) > FARTHEST:
        raise Rejected("segmentation: a point is too far from any image")
    return numbers


def run_lengths(value: object) -> tuple[array[int], tuple[int, int]]:
    """Return run lengths, and the height and width that they fill. Raises Rejected."""
    counts, size = _field(value, "counts"), _field(value, "size")
    try:
        if isinstance(counts, str):
            counts = uncompressed(counts.encode("ascii")).tolist()
        runs = array("I", counts)
        height, width = map(operator.index, size)
    except (TypeError, ValueError, OverflowError):
        raise Rejected("segmentation: cannot be decoded") from None
    if height < 1 or sum(runs) != height * width:
        raise Rejected(
            f"segmentation: its runs are {counted(sum(runs), 'pixel')} long, its size is {_short(size)}"
        )
    return runs, (height, width)


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


def _field(entry: object, key: str) -> Any:
    if not isinstance(entry, dict):
        raise Rejected(f"{_short(entry)} is no object with '{key}'")
    if key not in entry:
        raise Rejected(f"has no {key}")
    return entry[key]


def _whole(entry: object, key: str) -> int:
    value = _field(entry, key)
    # some tools write every number as 1000.0
    if type(value) is float and value.is_integer():
        value = int(value)
    # true is no number here
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise Rejected(f"{key} {_short(value)} is no whole number")
    return value


def _numbers(values: Any, key: str) -> array[float]:
    try:
        numbers = array("d", values)
    except (TypeError, ValueError, OverflowError):
        raise Rejected(f"{key} {_short(values)} is no list of numbers") from None
    if not math.isfinite(sum(numbers)):
        raise Rejected(f"{key} holds NaN or infinity")
    return numbers


def _short(value: object) -> str:
    return reprlib.repr(value)
