"""Reads a region of a binary PPM file: the rows that it lies in, and nothing else of the file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

import numpy as np

from saturate.contracts import Array, FileSource, ImageColumns
from saturate.dataset.images.columns import FORMATS
from saturate.loaders import Undecodable

Region = tuple[int, int, int, int]
"""x0 y0 x1 y1, pixels."""
PPM = FORMATS.index("ppm")
HEAD = 512
"""Bytes that a header is looked for in; a longer one has comments, and the file is decoded whole."""
_BINARY = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")
"""A binary PPM of 8 bits, without comments."""


def readable(columns: ImageColumns, image: int) -> bool:
    """Return whether the columns say that an image may be such a file."""
    return bool(
        columns.format[image] == PPM
        and columns.depth[image] == 8
        and columns.components[image] == 3
    )


def read_regions(
    source: FileSource, sample: int, regions: Sequence[Region]
) -> list[Array] | None:
    """Return uint8 [h, w, 3], each region x0 y0 x1 y1 of a sample's file; None where it is another PPM.

    Raises Undecodable, UserError where the file is another one than was scanned,
    and OSError.
    """
    file = os.open(source.path(sample), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(file).st_size
        source.check(sample, size)
        header = _BINARY.match(os.pread(file, HEAD, 0))
        if header is None:
            return None
        width, height = int(header[1]), int(header[2])
        inside = all(x1 <= width and y1 <= height for _, _, x1, y1 in regions)
        # PIL decodes no part of a file that is cut short
        if not inside or header.end() + 3 * height * width > size:
            raise Undecodable(f"{size} bytes, {width} x {height} pixels: too few")
        pixels = [_rows_of(file, header.end(), width, region) for region in regions]
    finally:
        os.close(file)
    if source.read_delay_s:
        time.sleep(source.read_delay_s)
    return pixels


def _rows_of(file: int, begin: int, width: int, region: Region) -> Array:
    """Return uint8 [h, w, 3], a region of raw pixels that begin there and are `width` a row.

    It reads from the region's first pixel to its last: whole rows, but for what lies before and behind them.
    Raises Undecodable where bytes are missing, and OSError.
    """
    x0, y0, x1, y1 = region
    row = 3 * width
    first = y0 * row + 3 * x0
    length = (y1 - 1) * row + 3 * x1 - first
    data = os.pread(file, length, begin + first)
    if len(data) < length:
        raise Undecodable("is cut short")
    pixels = np.frombuffer(data, np.uint8)
    return np.lib.stride_tricks.as_strided(
        pixels, (y1 - y0, x1 - x0, 3), (row, 3, 1), writeable=False
    )
