"""Video files made for the tests, damage to them, and what a decoder that knows no hurry makes of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation

from contracts import Array
from tests.conformance import pictures

FRAMES, RATE, GROUP = 24, 25, 8
"""Frames of each video here, how many a second, and from one key frame to the next."""
ACCURATE = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
"""By default FFmpeg's RGB is one to two grey levels off."""
QUIET = "log-level=none:pools=none:frame-threads=1"
FAST = {
    "libx264": {"preset": "veryfast", "x264-params": f"scenecut=0:bframes=2:b-adapt=0:keyint={GROUP}"},
    "libx265": {
        "preset": "ultrafast",
        "x265-params": f"scenecut=0:bframes=2:keyint={GROUP}:min-keyint={GROUP}:{QUIET}",
    },
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "mpeg4": {},
}
"""Encoders with their options."""


def video(
    shown: Sequence[Array],
    *,
    encoder: str = "libx264",
    form: str = "yuv420p",
    rotation: int = 0,
    **options: str,
) -> bytes:
    """An mp4 that displays `shown`, uint8 [H, W, 3] each; stored turned by `rotation` degrees."""
    buffer = io.BytesIO()
    height, width = shown[0].shape[:2] if rotation % 180 == 0 else shown[0].shape[1::-1]
    with av.open(buffer, "w", format="mp4") as file:
        stream: Any = file.add_stream(encoder, rate=RATE, options={**FAST[encoder], **options})
        stream.height, stream.width, stream.pix_fmt = height, width, form
        stream.codec_context.gop_size, stream.codec_context.thread_count = GROUP, 1
        if encoder == "mpeg4":
            stream.codec_context.bit_rate = 4_000_000
        if rotation:
            stream.set_display_rotation(rotation)
        for at, pixels in enumerate(shown):
            turned = np.ascontiguousarray(np.rot90(pixels, -(rotation // 90)))
            frame = av.VideoFrame.from_ndarray(turned, format="rgb24").reformat(
                format=form, interpolation=ACCURATE
            )
            frame.pts, frame.time_base = at, Fraction(1, RATE)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


@lru_cache(maxsize=128)
def decoded(content: bytes, count: int = FRAMES) -> Array | None:
    """uint8 [F, H, W, 3], all `count` frames as displayed, or None when one of them cannot be decoded: the
    reference of every loader.
    """
    before = av.logging.get_level()
    av.logging.set_level(av.logging.PANIC)
    try:
        with av.open(io.BytesIO(content), "r") as file:
            stream = file.streams.video[0]
            stream.codec_context.options = {"err_detect": "explode"}
            stream.codec_context.thread_count = 1
            frames = list(file.decode(stream))
        if len(frames) != count or any(frame.is_corrupt for frame in frames):
            return None
        return np.stack(
            [
                np.rot90(frame.to_ndarray(format="rgb24", interpolation=ACCURATE), frame.rotation // 90)
                for frame in frames
            ]
        )
    except av.error.FFmpegError:
        return None
    finally:
        av.logging.set_level(before)


def walk(seed: int, height: int, width: int) -> list[Array]:
    """Frames of a camera that moves over a photograph. Its colours are pale: decoders differ in how they
    spread chroma.
    """
    still = pictures.photograph(seed, height + 2 * FRAMES, width + 4 * FRAMES)
    still = (0.25 * still + 0.75 * still.mean(axis=2, keepdims=True)).astype(np.uint8)
    return [still[2 * at : 2 * at + height, 4 * at : 4 * at + width] for at in range(FRAMES)]


def spoiled(content: bytes, begin: float, end: float, *, noise: bool) -> bytes:
    """Replace that part of a video's coded frames behind the first one, by zeros or by noise.

    Without the first frame, and what the container says of all, it would not pass the scan.
    """
    at = content.index(b"mdat")
    with av.open(io.BytesIO(content), "r") as file:
        data = at + 4 + next(file.demux(video=0)).size
    size = at + int.from_bytes(content[at - 4 : at], "big") - 4 - data
    first, last = data + int(begin * size), data + int(end * size)
    filled = np.random.default_rng(size).bytes(last - first) if noise else bytes(last - first)
    return content[:first] + filled + content[last:]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "all-zeros": lambda content: spoiled(content, 0, 1, noise=False),
    "all-noise": lambda content: spoiled(content, 0, 1, noise=True),
    "first-quarter": lambda content: spoiled(content, 0, 0.25, noise=True),
    "middle": lambda content: spoiled(content, 0.4, 0.6, noise=True),
    "never-written": lambda content: spoiled(content, 0.5, 1, noise=False),
    "few-bytes": lambda content: spoiled(content, 0.3, 0.31, noise=True),
}
"""What can happen to a file whose header still can be read. Of 'all-...' the first frame alone can be
decoded.
"""
