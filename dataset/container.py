"""Opening a video file with PyAV."""

from __future__ import annotations

import os
from typing import Any

import av

_LENIENT: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
"""A title that is no UTF-8 is no fault of the pictures. PyAV takes it as it is from version 19 on."""


def open_video(path: bytes, *, known: bool = False) -> av.container.InputContainer:
    """To be read from its beginning, and closed. Raises av.error.FFmpegError, and OSError.

    `known`: the manifest has what the streams are like, so that FFmpeg need not decode the first pictures to find out: 0.6 ms of a core
    instead of 17 (H.264, 1080p). Then only what the container says of a stream is there, and no depth of the decoder's reordering.
    """
    return av.open(os.fsdecode(path), container_options={"codec_whitelist": "none"} if known else {}, **_LENIENT)
