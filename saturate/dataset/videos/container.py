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
"""Options of av.open: before version 19 of PyAV a title that is no UTF-8 was an error."""


def open_video(
    path_or_bytes: bytes | memoryview, *, known: bool = False
) -> av.container.InputContainer:
    """Open a file to be read from its beginning and closed: by its path, or, a memoryview, by its content.

    Raises av.error.FFmpegError, and OSError.

    `known`: the manifest knows the streams, so FFmpeg decodes no pictures to find out. That takes 0.6 ms of
    a core instead of 17 (H.264, 1080p). The stream then lacks what only decoding tells, such as the depth of
    reordering.
    """
    # no decoder is opened
    options = {"codec_whitelist": "none"} if known else {}
    file: io.BytesIO | str = (
        io.BytesIO(path_or_bytes)
        if isinstance(path_or_bytes, memoryview)
        else os.fsdecode(path_or_bytes)
    )
    return av.open(file, container_options=options, **_LENIENT)


def read_packets(
    file: av.container.InputContainer, stream: av.VideoStream
) -> Iterator[av.Packet[av.VideoStream]]:
    """Yield the packets of a stream, then an empty one.

    PyAV's own generator loses 260 bytes for good where it is left before its end and not closed (18.1): this
    one always closes it.
    """
    packets: Any = file.demux(stream)
    with closing(packets):
        yield from packets


def unpacked(
    file: av.container.InputContainer, stream: av.VideoStream
) -> Iterator[av.VideoFrame]:
    """Yield all frames of packed MPEG-4, in the order of display.

    The decoder gives them times of neighbours; use their number instead.
    """
    unpack = BitStreamFilterContext("mpeg4_unpack_bframes", in_stream=stream)
    for packet in read_packets(file, stream):
        for single in unpack.filter(packet if packet.size else None):
            yield from stream.codec_context.decode(single)
    yield from stream.codec_context.decode(None)


def is_key(frame: av.VideoFrame) -> bool:
    """Return whether the decoder says that a frame is made from no other."""
    # FFmpeg's decoder of svq1 tells the type alone, that of cinepak the mark alone
    return frame.pict_type == PictureType.I or bool(frame.key_frame)
