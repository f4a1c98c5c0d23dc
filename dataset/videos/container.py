"""Video files: opening one with PyAV, and its packets."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import av
from av.bitstream import BitStreamFilterContext
from av.video.frame import PictureType

_LENIENT: dict[str, Any] = (
    {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
)
"""A title that is no UTF-8 is no fault of the pictures. PyAV takes it as it is from version 19 on."""


def open_video(
    path: bytes | memoryview, *, known: bool = False
) -> av.container.InputContainer:
    """Open a file by its path, or its content, to be read from its beginning and closed.

    Raises av.error.FFmpegError, and OSError.

    `known`: FFmpeg need not decode the first pictures to find out what the streams are like, as the manifest
    has it: 0.6 ms of a core instead of 17 (H.264, 1080p). Then only what the container says of a stream is
    there, and no depth of the decoder's reordering.
    """
    options = {"codec_whitelist": "none"} if known else {}
    file: Any = io.BytesIO(path) if isinstance(path, memoryview) else os.fsdecode(path)
    return av.open(file, container_options=options, **_LENIENT)


def read_packets(file: av.container.InputContainer, stream: Any) -> Iterator[Any]:
    """Yield the packets of a stream, then an empty one.

    PyAV's own generator loses 260 bytes for good where it is left before its end and not closed (18.1): with
    this one it always is.
    """
    packets: Any = file.demux(stream)
    with closing(packets):
        yield from packets


def unpacked(file: av.container.InputContainer, stream: Any) -> Iterator[Any]:
    """Yield all frames of packed MPEG-4, in the order of display.

    Their own times are those of neighbours: they have to be counted.
    """
    unpack = BitStreamFilterContext("mpeg4_unpack_bframes", in_stream=stream)
    for packet in read_packets(file, stream):
        for single in unpack.filter(packet if packet.size else None):
            yield from stream.codec_context.decode(single)
    yield from stream.codec_context.decode(None)


def is_key(frame: av.VideoFrame) -> bool:
    """Return whether the decoder says that a frame is made from no other."""
    return frame.pict_type == PictureType.I or bool(frame.key_frame)
