"""A pair as one entry of a store: a header, the large image, then its small one; must not know stores.

The large image has the small one's sides times the scale. Of these, raw pixels, a region is read alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts import Array
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.manifest import Rejected

Region = tuple[int, int, int, int]
"""x0 y0 x1 y1, pixels."""
MAGIC = b"\x93PAIR1\r\n"
"""What an entry begins with."""
CODING = b"raw"
"""Both images are stored as their pixels."""
_HEADER = struct.Struct("<8s4sIIIQ")
"""Magic, coding, scale, height and width of the small image, bytes of the large one."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What the header of a pair says."""

    scale: int
    height: int  # of the small image
    width: int
    large_bytes: int


def encoded(large: Array, small: Array) -> bytes:
    """Return the entry of two images, uint8 [H, W, 3] and [h, w, 3]: H and W are h and w times the scale."""
    height, width = small.shape[:2]
    scale = len(large) // height
    header = _HEADER.pack(MAGIC, CODING, scale, height, width, large.size)
    return header + large.tobytes() + small.tobytes()


def parse(head: bytes) -> Pair:
    """Return what the header at the beginning of an entry says. Raises Rejected."""
    if len(head) < _HEADER.size or not head.startswith(MAGIC):
        raise Rejected("is no pair, or cut short")
    _, coding, scale, height, width, large_bytes = _HEADER.unpack_from(head)
    if coding.rstrip(b"\0") != CODING or not (scale and height and width):
        raise Rejected("has a damaged header, or one of an older kind: pack it anew")
    return Pair(scale=scale, height=height, width=width, large_bytes=large_bytes)


def read(
    size: int, read_at: ReadAt, regions: Sequence[Region], *, scale: int, small: bool
) -> dict[Region, Array]:
    """Return uint8 [h, w, 3] that hold each of the regions of one image of an entry, by the region they are.

    Raises Rejected, and what `read_at` raises.
    """
    pair = parse(read_at(0, _HEADER.size))
    if pair.scale != scale:
        raise Rejected(f"is of a scale of {pair.scale}")
    times = 1 if small else scale
    height, width = pair.height * times, pair.width * times
    if any(x1 > width or y1 > height for _, _, x1, y1 in regions):
        raise Rejected(f"has {width} x {height} pixels, its header said more")
    begin = _HEADER.size + (pair.large_bytes if small else 0)
    if (size - begin if small else pair.large_bytes) != 3 * height * width:
        raise Rejected("is cut short")
    return {region: rows_of(read_at, begin, width, region) for region in regions}


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
