"""A pair as one entry of a store: a header, the large image, then its small one; must not know stores.

The large image has the small one's sides times the scale. Of raw pixels a region is read alone.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from contracts import Array, UserError
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.manifest import Rejected

Region = tuple[int, int, int, int]
"""x0 y0 x1 y1, pixels."""
MAGIC = b"\x93PAIR1\r\n"
"""What an entry begins with."""
_HEADER = struct.Struct("<8s4sIIIQ")
"""Magic, coding, scale, height and width of the small image, bytes of the large one."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What the header of a pair says."""

    coding: str  # a key of CODINGS
    scale: int
    height: int  # of the small image
    width: int
    large_bytes: int


def _lz4() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            "pairs in lz4 need the package pyarrow: pip install pyarrow"
        ) from None
    return pyarrow


def _to_lz4(pixels: Array) -> bytes:
    found: bytes = _lz4().compress(pixels.tobytes(), codec="lz4", asbytes=True)
    return found


def _from_lz4(data: bytes, shape: tuple[int, int, int]) -> Array:
    size = int(np.prod(shape))
    found = _lz4().decompress(data, decompressed_size=size, codec="lz4")
    return np.frombuffer(found, np.uint8).reshape(shape)


def _to_png(pixels: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _from_png(data: bytes, shape: tuple[int, int, int]) -> Array:
    with Image.open(io.BytesIO(data)) as image:
        if (image.height, image.width) != shape[
            :2
        ]:  # before it is decoded: it may claim any size
            raise ValueError(f"its PNG has {image.width} x {image.height} pixels")
        return np.asarray(image).reshape(shape)


def _from_raw(data: bytes, shape: tuple[int, int, int]) -> Array:
    return np.frombuffer(data, np.uint8).reshape(shape)


CODINGS: dict[
    str, tuple[Callable[[Array], bytes], Callable[[bytes, tuple[int, int, int]], Array]]
] = {
    "raw": (lambda pixels: pixels.tobytes(), _from_raw),
    "lz4": (_to_lz4, _from_lz4),
    "png": (_to_png, _from_png),
}
"""What the two images are stored as -> what encodes uint8 [H, W, 3], and what decodes it."""


def encoded(large: Array, small: Array, coding: str) -> bytes:
    """Return the entry of two images, uint8 [H, W, 3] and [h, w, 3]: H and W are h and w times the scale."""
    encode, _ = CODINGS[coding]
    first = encode(large)
    height, width = small.shape[:2]
    scale = len(large) // height
    return (
        _HEADER.pack(MAGIC, coding.encode(), scale, height, width, len(first))
        + first
        + encode(small)
    )


def parse(head: bytes) -> Pair:
    """Return what the header at the beginning of an entry says. Raises Rejected."""
    if len(head) < _HEADER.size or not head.startswith(MAGIC):
        raise Rejected("is no pair, or cut short")
    _, name, scale, height, width, large_bytes = _HEADER.unpack_from(head)
    coding = name.rstrip(b"\0").decode("latin-1")
    if coding not in CODINGS or not (scale and height and width):
        raise Rejected("has a damaged header")
    return Pair(
        coding=coding, scale=scale, height=height, width=width, large_bytes=large_bytes
    )


def read(
    size: int, read_at: ReadAt, regions: Sequence[Region], *, scale: int, small: bool
) -> dict[Region, Array]:
    """Return uint8 [h, w, 3] that hold each of the regions of one image of an entry, by the region they are.

    Raises Rejected, UserError without the package that decodes, and what `read_at` raises.
    """
    pair = parse(read_at(0, _HEADER.size))
    if pair.scale != scale:
        raise Rejected(f"is of a scale of {pair.scale}")
    times = 1 if small else scale
    shape = (pair.height * times, pair.width * times, 3)
    if any(x1 > shape[1] or y1 > shape[0] for _, _, x1, y1 in regions):
        raise Rejected(f"has {shape[1]} x {shape[0]} pixels, its header said more")
    begin = _HEADER.size + (pair.large_bytes if small else 0)
    length = size - begin if small else pair.large_bytes
    if pair.coding == "raw":
        if length != np.prod(shape):
            raise Rejected("is cut short")
        return {region: rows_of(read_at, begin, shape[1], region) for region in regions}
    data = read_at(begin, length)
    try:
        pixels = CODINGS[pair.coding][1](data, shape)
    except UserError:
        raise
    except Exception as error:  # decoders raise what they like on damaged bytes
        raise Rejected(f"cannot be decoded: {error}") from None
    return {(0, 0, shape[1], shape[0]): pixels}


def rows_of(read_at: ReadAt, begin: int, width: int, region: Region) -> Array:
    """Return uint8 [h, w, 3], a region of raw pixels that begin there and are `width` a row.

    It reads from the region's first pixel to its last: whole rows, but for what lies before and behind them.

    Raises Rejected where bytes are missing, and what `read_at` raises.
    """
    x0, y0, x1, y1 = region
    row = 3 * width
    first = y0 * row + 3 * x0
    length = (y1 - 1) * row + 3 * x1 - first
    data = read_at(begin + first, length)
    if len(data) < length:
        raise Rejected("is cut short")
    pixels = np.frombuffer(data, np.uint8)
    return np.lib.stride_tricks.as_strided(
        pixels, (y1 - y0, x1 - x0, 3), (row, 3, 1), writeable=False
    )
