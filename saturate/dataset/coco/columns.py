"""The manifest of images with boxes, masks and keypoints, as columns; must not know how a scan finds them.

Same place, lock and life as the manifest of images (dataset/scan/manifest.py). No annotation is a Python
object here: those of an image lie next to each other, and what varies in length is cut out of one long
column by offsets:

    image i             annotations     annotation_offsets[i] : annotation_offsets[i + 1]
    annotation j        polygons        polygon_offsets[j] : polygon_offsets[j + 1]
    polygon k           points          point_offsets[k] : point_offsets[k + 1]
    annotation j        run lengths     rle_offsets[j] : rle_offsets[j + 1]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from saturate.contracts import Array, UserError
from saturate.dataset.images.columns import Pictures
from saturate.dataset.scan.manifest import offsets_of

BACKGROUND = "__background__"
UNUSED = "N/A"
COCO_IDS = tuple(
    number
    for number in range(1, 91)
    if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
)
"""The category ids of COCO 2017: 80 between 1 and 90."""
OTHER_SIDE = {"left": "right", "right": "left", "l": "r", "r": "l"}
SIDE = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])")
"""What says a side in a keypoint's name: left and right anywhere, l and r alone."""
WORD_ENDS = re.compile(
    r"[\W_]+|(?<=[a-z])(?=[A-Z\d])|(?<=\d)(?=[A-Za-z])|(?<=[A-Z])(?=[A-Z][a-z]|\d)"
)
"""Between the words of a keypoint's name: left_eye, left-eye, left eye, leftEye, eye1L."""
ANNOTATED = {
    "image_id": "i8",
    "annotation_offsets": "i8",
    "annotation_id": "i8",
    "boxes": "f8",
    "area": "f8",
    "category": "i4",
    "crowd": "?",
    "usable": "?",
    "polygon_offsets": "i8",
    "point_offsets": "i8",
    "points": "f8",
    "rle_offsets": "i8",
    "rle": "u4",
    "keypoints": "f8",
    "category_ids": "i8",
    "keypoint_mirror": "i8",
}
"""Columns of what the annotation file says, beside the paths."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Instances(Pictures):
    """n images in the order of their ids, and m annotations, grouped by image, in the file's order there.

    `classes` are the names that class numbers stand for: 0 is the background, and the gaps between COCO's own
    category ids are "N/A".
    """

    VERSION = "instances 9"
    COLUMNS = Pictures.COLUMNS | ANNOTATED | {"keypoint_name": "u4"}
    FINGERPRINT = (
        "path_bytes",
        "path_offsets",
        "size",
        "height",
        "width",
        *ANNOTATED,
    )

    # By image, [n].
    image_id: Array  # int64, ascending
    annotation_offsets: Array  # int64 [n + 1]
    # By annotation, [m].
    annotation_id: Array  # int64
    # float64 [m, 4], x y width height in pixels of `height` and `width`, as in the file: may reach out of it
    boxes: Array
    area: Array  # float64, square pixels, as in the file: of the mask, not of the box
    category: Array  # int32, index into category_ids
    crowd: Array  # bool, a region of many: never trained on, and no mistake to find
    usable: Array  # bool, trained on: no crowd, and a box that has width and height within the image
    polygon_offsets: Array  # int64 [m + 1]
    rle_offsets: Array  # int64 [m + 1]
    keypoints: Array  # float64 [m, K, 3], x y visibility (0 not there, 1 hidden, 2 seen); K may be 0
    # By polygon, point and run.
    point_offsets: Array  # int64 [polygons + 1]
    points: Array  # float64 [points, 2], x y in stored pixels
    # uint32, lengths of the runs of 0 and 1 in turn, column by column through the whole image, 0 first
    rle: Array
    # By category, [C], and by keypoint, [K].
    category_ids: Array  # int64, ascending
    keypoint_mirror: Array  # int64, which keypoint each becomes when the image is mirrored left to right
    # uint32, CRC-32 of each keypoint's name: two splits must have the same
    keypoint_name: Array

    # int64 [C], class numbers of others' classes; see `numbered`
    numbers: Array | None = None

    fetch = None
    class_of: Array = field(init=False)  # int64 [C]: the class number of a category

    def __post_init__(self) -> None:
        own = class_numbers(self.category_ids) if self.numbers is None else self.numbers
        object.__setattr__(self, "class_of", own)

    @property
    def warnings(self) -> list[str]:
        """Return what the scan warns of, a line each: warnings.txt beside the columns."""
        with suppress(FileNotFoundError):  # of the synthetic stand-in
            path = self.folder / "warnings.txt"
            return path.read_text(encoding="utf-8").splitlines()
        return []

    @property
    def class_names(self) -> Sequence[str]:
        """Return the names of the categories, [C]."""
        return [self.classes[number] for number in self.class_of]

    def numbered(self, numbers: Array, classes: tuple[str, ...]) -> Instances:
        """Return the columns with class number numbers[i] for category i, among `classes`.

        In this process alone: they pickle as their folder.
        """
        return replace(self, classes=classes, numbers=numbers)

    def annotations(self, sample: int) -> slice:
        """Return the slice of the annotations that an image has. Raises IndexError."""
        if not 0 <= sample < len(self):  # a slice of the offsets would have no end
            raise IndexError(f"sample {sample} of {len(self)}")
        return slice(*self.annotation_offsets[sample : sample + 2].tolist())

    @cached_property
    def with_boxes(self) -> Array:
        """Return int64, ascending: the images that have a usable annotation."""
        return np.flatnonzero(self.boxes_of_images)

    @cached_property
    def boxes_of_images(self) -> Array:
        """Return int64 [n]: how many usable annotations each image has."""
        return np.diff(offsets_of(self.usable)[self.annotation_offsets])

    @cached_property
    def category_of(self) -> Array:
        """Return int64 [classes], the category of each class number; -1 for the background and gaps."""
        categories = np.full(len(self.classes), -1, np.int64)
        categories[self.class_of] = np.arange(len(self.class_of))
        return categories


def class_numbers(category_ids: Array) -> Array:
    """Return int64 [C]: 1 to C in the order of the ids, or the ids themselves where they are COCO_IDS.

    The latter are the numbers in torchvision's published weights.
    """
    ids = np.asarray(category_ids, np.int64)
    if tuple(np.sort(ids).tolist()) == COCO_IDS:
        return ids
    return np.argsort(np.argsort(ids)) + 1


def class_names(category_ids: Array, names: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each class number; a name that several categories have gets the id behind it.

    `names` are the categories'.
    """
    numbers = class_numbers(category_ids)
    counts = Counter(names)
    shown = [
        f"{name} ({i})" if counts[name] > 1 else name
        for name, i in zip(names, category_ids, strict=True)
    ]
    named = dict(zip(numbers.tolist(), shown, strict=True))
    last = int(numbers.max(initial=0))
    return (BACKGROUND, *(named.get(number, UNUSED) for number in range(1, last + 1)))


def mirrored(names: Sequence[str]) -> Array:
    """Return int64 [K]: the keypoint whose name has left and right exchanged, or its own place without one.

    A name that holds left or right as a word has a partner, or it is a UserError: an image that is flipped
    would have its sides wrong. Others, such as `bright` and `L`, have one where the other name exists.
    """
    words = [" ".join(WORD_ENDS.sub(" ", name).lower().split()) for name in names]
    places = np.arange(len(names), dtype=np.int64)
    for place, word in enumerate(words):
        twin = SIDE.sub(lambda side: OTHER_SIDE[side[0]], word)
        if twin != word and words.count(word) == words.count(twin) == 1:
            places[place] = words.index(twin)
        elif {"left", "right"} & {*word.split()}:
            raise UserError(
                f"--data: keypoint {names[place]!r} has no partner of its own; rename, so that there is one "
                f"{twin!r} to mirror it to"
            )
    return places
