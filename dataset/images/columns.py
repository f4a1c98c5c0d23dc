"""What is known of every image, as columns; must not know how a scan finds it, nor orders or windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from contracts import Array
from dataset.manifest import Manifest

FORMATS = ("jpeg", "png", "gif", "bmp", "webp", "tiff", "ppm")  # the column `format` holds the index
# the column `chroma`; none = no JPEG
CHROMA = ("none", "444", "422", "420", "440", "411", "gray", "rgb", "other")


class Header(NamedTuple):
    """What a scan reads of one file: a row of the manifest, less its path and label."""

    size: int  # bytes of the file
    height: int  # stored pixels, before any EXIF rotation
    width: int
    format: int  # index into FORMATS
    depth: int  # bits a component (of the index, for a palette)
    components: int  # 1 grey or palette, 2 grey + alpha, 3 colour, 4 CMYK or RGBA
    chroma: int = 0  # index into CHROMA
    orientation: int = 0  # EXIF 1..8; 0 = not said, or nonsense
    progressive: bool = False  # JPEG only
    palette: bool = False
    # False: a JPEG or PNG without its end, perhaps cut short, or a JPEG with bytes between its segments
    whole: bool = True


HEADER = np.dtype(
    list(zip(Header._fields, ("i8", "i4", "i4", "u1", "u1", "u1", "u1", "u1", "?", "?", "?"), strict=True))
)
COLUMNS: dict[str, np.dtype[Any]] = {
    "path_bytes": np.dtype("u1"),  # relative paths, one after the other
    "path_offsets": np.dtype("i8"),  # [n + 1], where each begins
    "label": np.dtype("i4"),  # index into classes
    **{name: HEADER[name] for name in Header._fields},
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Images(Manifest):
    """n images in the order of their path's bytes."""

    VERSION: ClassVar[str] = "images 6"
    COLUMNS: ClassVar[dict[str, np.dtype[Any]]] = COLUMNS
    FINGERPRINT: ClassVar[tuple[str, ...]] = ("path_bytes", "path_offsets", "size", "label")
    RAGGED: ClassVar[dict[str, tuple[str, ...]]] = {"path_offsets": ("path_bytes",)}

    label: Array  # int32 [n], index into classes
    height: Array  # int32 [n], stored pixels, before any EXIF rotation
    width: Array  # int32 [n]
    format: Array  # uint8 [n], index into FORMATS
    depth: Array  # uint8 [n], bits a component (of the index, for a palette)
    components: Array  # uint8 [n]: 1 grey or palette, 2 grey + alpha, 3 colour, 4 CMYK or RGBA
    chroma: Array  # uint8 [n], index into CHROMA
    orientation: Array  # uint8 [n], EXIF 1..8; 0 = not said, or nonsense
    progressive: Array  # bool [n], JPEG only
    palette: Array  # bool [n]
    # bool [n], False: a JPEG or PNG without its end, perhaps cut short, or a JPEG with bytes between its
    # segments
    whole: Array

    def numbered(self, numbers: Array, classes: tuple[str, ...]) -> Images:
        """Return the columns with label numbers[i] in place of i, among `classes`.

        In this process alone: they pickle as their folder.
        """
        return replace(self, label=numbers[self.label].astype(np.int32), classes=classes)
