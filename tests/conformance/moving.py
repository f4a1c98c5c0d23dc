"""Video files made for the tests, and damage to them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation

from contracts import Array

RATE, GROUP = 25, 8
"""Frames a second, and from one key frame to the next."""
ACCURATE = (
    Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
)
"""By default FFmpeg's RGB is one to two grey levels off."""
FINE = {
    "preset": "veryfast",
    "qp": "2",
    "x264-params": f"scenecut=0:bframes=2:b-adapt=0:keyint={GROUP}",
}


def video(shown: Sequence[Array], *, rotation: int = 0) -> bytes:
    """An mp4 that displays `shown`, uint8 [H, W, 3] each; stored turned by `rotation` degrees."""
    buffer = io.BytesIO()
    height, width = shown[0].shape[:2] if rotation % 180 == 0 else shown[0].shape[1::-1]
    with av.open(buffer, "w", format="mp4") as file:
        stream: Any = file.add_stream("libx264", rate=RATE, options=FINE)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.thread_count = GROUP, 1
        if rotation:
            stream.set_display_rotation(rotation)
        for at, pixels in enumerate(shown):
            turned = np.ascontiguousarray(np.rot90(pixels, -(rotation // 90)))
            frame = av.VideoFrame.from_ndarray(turned, format="rgb24").reformat(
                format="yuv420p", interpolation=ACCURATE
            )
            frame.pts, frame.time_base = at, Fraction(1, RATE)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def spoiled(content: bytes, begin: float, end: float) -> bytes:
    """Replace that part of the coded frames by zeros, but for the first one, without which no scan passes."""
    at = content.index(b"mdat")
    with av.open(io.BytesIO(content), "r") as file:
        data = at + 4 + next(file.demux(video=0)).size
    size = at + int.from_bytes(content[at - 4 : at], "big") - 4 - data
    first, last = data + int(begin * size), data + int(end * size)
    return content[:first] + bytes(last - first) + content[last:]
