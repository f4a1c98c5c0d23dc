"""Reads a region of a binary PPM file: the rows that it lies in, and nothing else of the file."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from contracts import Array
from dataset.images.columns import FORMATS
from dataset.pairs.entry import rows_of
from loaders import Undecodable

PPM = FORMATS.index("ppm")
HEAD = 512
"""Bytes that a header is looked for in; a longer one has comments, and the file is decoded whole."""
_BINARY = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")
"""A binary PPM of 8 bits, without comments."""


def readable(columns: Any, image: int) -> bool:
    """Return whether the columns say that an image may be such a file."""
    return bool(
        columns.format[image] == PPM
        and columns.depth[image] == 8
        and columns.components[image] == 3
    )


def read_region(
    source: Any, sample: int, region: tuple[int, int, int, int]
) -> Array | None:
    """Return uint8 [h, w, 3], the region x0 y0 x1 y1 of a sample's file; None where it is another PPM.

    `source` is one of files. Raises Undecodable, UserError where the file is another one than was scanned,
    and OSError.
    """
    x1, y1 = region[2:]
    file = os.open(source.path(sample), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(file).st_size
        source.check(sample, size)
        header = _BINARY.match(os.pread(file, HEAD, 0))
        if header is None:
            return None
        width, height = int(header[1]), int(header[2])
        if x1 > width or y1 > height:
            raise Undecodable(
                f"the image has {width} x {height} pixels, its header said more"
            )
        if (
            header.end() + 3 * height * width > size
        ):  # PIL decodes no part of such a file
            raise Undecodable("the file is cut short")
        pixels = rows_of(
            lambda offset, length: os.pread(file, length, offset),
            header.end(),
            width,
            region,
        )
    finally:
        os.close(file)
    if source.read_delay_s:
        time.sleep(source.read_delay_s)
    return pixels
