"""Reads a region of a binary PPM: the rows that it lies in, and nothing else of the sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from saturate.contracts import Array, ImageColumns, Source
from saturate.dataset.images.columns import FORMATS
from saturate.dataset.images.pixels import HEADER
from saturate.loaders import Undecodable

Region = tuple[int, int, int, int]
"""x0 y0 x1 y1, pixels."""
PPM = FORMATS.index("ppm")
HEAD = 512
"""Bytes that a header is looked for in; a longer one has comments, and the file is decoded whole."""


def readable(columns: ImageColumns, image: int) -> bool:
    """Return whether the columns say that an image may be such a file."""
    return bool(
        columns.format[image] == PPM
        and columns.depth[image] == 8
        and columns.components[image] == 3
    )


def read_regions(
    source: Source, sample: int, regions: Sequence[Region]
) -> list[Array] | None:
    """Return uint8 [h, w, 3], each region x0 y0 x1 y1 of a sample; None where it is another PPM.

    Raises Undecodable, UserError where the sample is another one than was scanned,
    and OSError.
    """
    with source.opened(sample) as (size, read_at):
        header = HEADER.match(read_at(0, HEAD))
        if header is None:
            return None
        width, height = int(header[1]), int(header[2])
        inside = all(x1 <= width and y1 <= height for _, _, x1, y1 in regions)
        # PIL decodes no part of a file that is cut short
        if not inside or header.end() + 3 * height * width > size:
            raise Undecodable(f"{size} bytes, {width} x {height} pixels: too few")
        return [_rows_of(read_at, header.end(), width, region) for region in regions]


def _rows_of(
    read_at: Callable[[int, int], bytes], begin: int, width: int, region: Region
) -> Array:
    """Return uint8 [h, w, 3], a region of raw pixels that begin there and are `width` a row.

    It reads from the region's first pixel to its last: whole rows, but for what lies before and behind them.
    Raises Undecodable where bytes are missing, and OSError.
    """
    x0, y0, x1, y1 = region
    row = 3 * width
    first = y0 * row + 3 * x0
    length = (y1 - 1) * row + 3 * x1 - first
    data = read_at(begin + first, length)
    if len(data) < length:
        raise Undecodable("is cut short")
    pixels = np.frombuffer(data, np.uint8)
    return np.lib.stride_tricks.as_strided(
        pixels, (y1 - y0, x1 - x0, 3), (row, 3, 1), writeable=False
    )
