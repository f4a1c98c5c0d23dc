"""What is known of every image, as columns; must not know how a scan finds it, nor orders or windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from saturate.contracts import Array, Columns, Fetch, counted
from saturate.dataset.scan.manifest import Manifest

C = TypeVar("C", bound="Pictures")
# the column `format` holds the index
FORMATS = (
    *("jpeg", "png", "gif", "bmp", "webp", "tiff", "ppm", "lz4"),
    *("avif", "heic"),
)


class Header(NamedTuple):
    """What a scan reads of one file: a row of the manifest, less its path and label."""

    size: int  # bytes of the file
    height: int  # stored pixels, before any EXIF rotation
    width: int
    format: int  # index into FORMATS
    depth: int  # bits a component
    components: int  # 1 grey or palette, 2 grey + alpha, 3 colour, 4 CMYK or RGBA
    orientation: int = 0  # EXIF 1..8; 0 = not said, or nonsense
    rgb: bool = False  # JPEG that stores red, green and blue as they are
    progressive: bool = False  # JPEG in several passes over its pixels
    # False: a JPEG or PNG without its end, perhaps cut short, or a JPEG with bytes
    # between its segments
    whole: bool = True
    # of the bytes that were read for all this: copies have the same
    digest: int = 0


CODES = dict(
    zip(
        Header._fields,
        ["i8", "i4", "i4", "u1", "u1", "u1", "u1", "?", "?", "?", "u8"],
        strict=True,
    )
)
HEADER = np.dtype([*CODES.items()])

TURN_OF = np.array([0, 0, 1, 3, 2, 4, 5, 7, 6], np.uint8)
"""EXIF's orientation, 0..8 -> the turn that shows the stored pixels, as contracts.Rows has them."""


TRANSPOSE = 4
"""Turns from here on swap height and width."""
MAX_SIDE = 640
"""Pixels of the longer side from which on less is decoded of a smaller copy (scripts.pack --max-side)."""
LARGE = 10
"""Times the pixels of the median from which on an image is large."""


def shown_by(columns: Pictures | np.recarray[Any, Any]) -> Array:
    """Return uint8 [n], the turns that EXIF asks viewers for; none of TIFF, which Pillow turns itself."""
    of_tiff = columns.format == FORMATS.index("tiff")
    return np.where(of_tiff, 0, TURN_OF[columns.orientation]).astype(np.uint8)


def as_shown(columns: C) -> C:
    """Return the columns with images as viewers show them: `exif` has their turns, sizes are those after it.

    In this process alone: columns pickle as their folder.
    """
    turns = shown_by(columns)
    if not turns.any():
        return columns
    swapped = turns >= TRANSPOSE
    height = np.where(swapped, columns.width, columns.height)
    width = np.where(swapped, columns.height, columns.width)
    return replace(columns, height=height, width=width, exif=turns)


def exif_note(columns: Pictures | np.recarray[Any, Any], left_out: int = 0) -> str:
    """Return a warning of images that EXIF turns and that are taken as stored; "" where there are none.

    So many more were `left_out` for their annotations are of the size that viewers show.
    """
    turned = int(np.count_nonzero(shown_by(columns)))
    if not turned and not left_out:
        return ""
    without = ""
    if left_out:
        without = f" and {left_out:,} left out, whose annotations are of the size shown"
    return (
        f"EXIF asks viewers to turn {turned + left_out:,} of "
        f"{counted(len(columns.orientation) + left_out, 'image')}: {turned:,} taken as stored, as torchvision "
        f"does{without}; --exif shown turns them"
    )


def stored_size(columns: Columns, sample: int) -> tuple[int, int]:
    """Return height and width of a sample's stored pixels, whether or not the columns are `as_shown`."""
    size = int(columns.height[sample]), int(columns.width[sample])
    turns = columns.exif
    return size[::-1] if turns is not None and turns[sample] >= TRANSPOSE else size


@dataclass(frozen=True, eq=False, kw_only=True)
class Pictures(Manifest):
    """n image files: the columns [n] of a Header."""

    COLUMNS = Manifest.COLUMNS | CODES

    height: Array
    width: Array
    format: Array
    depth: Array
    components: Array
    orientation: Array
    rgb: Array
    progressive: Array
    whole: Array
    digest: Array
    # uint8 [n], see `as_shown`; None: images are taken as they are stored
    exif: Array | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Images(Pictures):
    """n images with a label, in the order of their path's bytes."""

    VERSION = "images 12"
    COLUMNS = Manifest.COLUMNS | {"label": "i4"} | CODES  # label: index into classes
    FINGERPRINT: ClassVar[tuple[str, ...]] = (
        "path_bytes",
        "path_offsets",
        "size",
        "label",
    )
    # columns [n] that a store adds to those of a header
    EXTRA: ClassVar[tuple[str, ...]] = ()

    label: Array  # int32 [n], index into classes
    # bool [sets, C]: with --multi-label `label` is a set's row here, and `classes` are
    # its columns
    several: Array | None = None
    # what the labels of a set were taken apart at, where their look alone says so
    separator: str = ""
    # what reads the headers of samples before they are used; None: all are there
    fetch: Fetch | None = None

    def numbered(self, numbers: Array, classes: tuple[str, ...]) -> Images:
        """Return the columns with label numbers[i] in place of i, among `classes`.

        In this process alone: they pickle as their folder.
        """
        if self.several is None:
            return replace(
                self, label=numbers[self.label].astype(np.int32), classes=classes
            )
        several = np.zeros((len(self.several), len(classes)), bool)
        several[:, numbers] = self.several
        return replace(self, several=several, classes=classes)


@dataclass(frozen=True, eq=False, kw_only=True)
class Unread(Images):
    """n images of a list, whose headers are read when a plan comes to them.

    Until then all numbers of a header are 0, its height too, which is written last.
    """

    VERSION = "unread images 5"
    FINGERPRINT = ("path_bytes", "path_offsets", "label")


def slow_to_decode(columns: Columns, image_size: int) -> dict[str, Any]:
    """Return the share of image files that are `progressive` JPEGs, and of the `large` ones their share of the `files`,
    of all `pixels`, and of the pixels that would not be there if they were as large as the median (`above_median`);
    and the share that would not be there if no side was longer than MAX_SIDE (`above_side`; 0 where a network sees more
    of an image, in `image_size` pixels, and of images with boxes, which are not packed).

    {} of what is no image file, and of images that nobody has read the headers of.
    """
    can_be_less = isinstance(columns, Images) and image_size <= MAX_SIDE
    if not isinstance(columns, Pictures):
        return {}
    is_read = columns.height > 0  # of Unread only those that a plan has come to
    if not is_read.any():
        return {}
    pixels = columns.height[is_read].astype(np.int64) * columns.width[is_read]
    longer = np.maximum(columns.height[is_read], columns.width[is_read])
    left = pixels * np.minimum(MAX_SIDE / longer, 1.0) ** 2
    median = float(np.median(pixels))
    large = pixels > LARGE * median
    return {
        "progressive": float(columns.progressive[is_read].mean()),
        "above_side": float(1 - left.sum() / pixels.sum()) if can_be_less else 0.0,
        "large": {
            "files": float(large.mean()),
            "pixels": float(pixels[large].sum() / pixels.sum()),
            "above_median": float((pixels[large] - median).sum() / pixels.sum()),
        },
    }
