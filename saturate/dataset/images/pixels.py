"""Pixels that are stored as they are: a binary PPM, or an LZ4 frame of one, which no decoder is needed for.

`scripts.pack --pixels` writes them; `lz4 -d` makes the PPM of a frame.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from saturate.contracts import Array, UserError

HEADER = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")
"""What a binary PPM of 8 bits begins with, without comments: width and height. The pixels follow."""
FRAME = b"\x04\x22\x4d\x18"
"""What an LZ4 frame begins with."""
BLOCK = (1 << 16) + 64
"""Bytes of a frame's header and of its first block, at most, as they are written here."""


def stored(pixels: Array, *, compressed: bool) -> bytes:
    """Return uint8 [H, W, 3] as a PPM, `compressed` as an LZ4 frame of it. Raises UserError without lz4."""
    height, width = pixels.shape[:2]
    data = b"P6\n%d %d\n255\n" % (width, height) + pixels.tobytes()
    if compressed:
        # the checksum tells of damage, which raw pixels cannot
        data = _lz4().compress(data, content_checksum=True, block_linked=False)
    return data


def stored_pixels(data: bytes) -> Array | None:
    """Return uint8 [H, W, 3], the pixels of what `stored` made, a view where it can be; None of any other file.

    Raises ValueError where some are missing, RuntimeError where a frame is damaged,
    and UserError without lz4.
    """
    if data.startswith(FRAME):
        data = _lz4().decompress(data)
    header = HEADER.match(data)
    if header is None:
        return None
    width, height = int(header[1]), int(header[2])
    pixels = np.frombuffer(data, np.uint8, 3 * height * width, header.end())
    return pixels.reshape(height, width, 3)


def begin_of(frame: bytes) -> bytes:
    """Return the first bytes of what a frame holds, of which these are the first BLOCK bytes.

    Raises RuntimeError where it is damaged, and UserError without lz4.
    """
    return _lz4().LZ4FrameDecompressor().decompress(frame, max_length=512)


def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError:
        raise UserError("pixels in LZ4 need the package lz4: pip install lz4") from None
    return lz4.frame
