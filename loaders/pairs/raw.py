"""Reads a region of a binary PPM file: the rows that it lies in, and nothing else of the file."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import numpy as np

from contracts import Array
from dataset.images.columns import FORMATS
from loaders import Undecodable

PPM = FORMATS.index("ppm")
HEAD = 512
"""Bytes that a header is looked for in; a longer one has comments, and the file is decoded whole."""
_BINARY = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")
"""A binary PPM of 8 bits, without comments."""


def readable(columns: Any, image: int) -> bool:
    """Return whether the columns say that an image may be such a file."""
    return bool(columns.format[image] == PPM and columns.depth[image] == 8 and columns.components[image] == 3)


def read_region(source: Any, sample: int, region: tuple[int, int, int, int]) -> Array | None:
    """Return uint8 [h, w, 3], the region x0 y0 x1 y1 of a sample's file; None where it is another PPM.

    `source` is one of files. Raises Undecodable, UserError where the file is another one than was scanned,
    and OSError.
    """
    x0, y0, x1, y1 = region
    file = os.open(source.path(sample), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(file).st_size
        source.check(sample, size)
        header = _BINARY.match(os.pread(file, HEAD, 0))
        if header is None:
            return None
        width, height = int(header[1]), int(header[2])
        if x1 > width or y1 > height:
            raise Undecodable(f"the image has {width} x {height} pixels, its header said more")
        row = 3 * width
        if header.end() + height * row > size:  # PIL decodes no part of such a file
            raise Undecodable("the file is cut short")
        begin = y0 * row + 3 * x0
        length = (y1 - 1) * row + 3 * x1 - begin
        data = os.pread(file, length, header.end() + begin)
    finally:
        os.close(file)
    if source.read_delay_s:
        time.sleep(source.read_delay_s)
    # from the first pixel of the region to the last: whole rows, but for what the first and last lack
    pixels = np.frombuffer(data, np.uint8)
    shape = (y1 - y0, x1 - x0, 3)
    return np.lib.stride_tricks.as_strided(pixels, shape, (row, 3, 1), writeable=False)
