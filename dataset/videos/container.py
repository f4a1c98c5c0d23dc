"""Video files: opening one with PyAV, its packets, and how long its container says that it is."""

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


HEAD = 4096
"""Bytes of a file in which its container says how long it is."""
EBML = 0x1A45DFA3
SEGMENT = 0x18538067


def declared_bytes(head: bytes) -> int | None:
    """Return how many bytes a file that begins so has at least; None: its container does not say.

    FFmpeg plays a Matroska or AVI file that was cut short up to where it ends, without a word. Matroska: RFC
    9559, of the elements of RFC 8794. AVI: a RIFF chunk, whose length some writers take for the file's. A
    stream, or a recorder that broke off, leaves 0 or all ones.
    """
    if head[:4] == b"RIFF" and len(head) >= 8:
        riff = int.from_bytes(head[4:8], "little")
        return None if riff in (0, 0xFFFFFFFF) else riff
    at = 0
    while (element := _number(head, at, marked=True)) and (
        length := _number(head, element[1], marked=False)
    ):
        identity, _ = element
        size, begin = length
        if at == 0 and identity != EBML:
            return None
        if identity == SEGMENT:
            # all ones: its writer did not know, or broke off
            unknown = size == (1 << 7 * (begin - element[1])) - 1
            return None if unknown else begin + size
        at = begin + size
    return None


def _number(data: bytes, at: int, *, marked: bool) -> tuple[int, int] | None:
    """Return (value, place behind it) of an EBML number; its leading zeros say how long it is.

    `marked`: the value has the first one, too.
    """
    if at >= len(data) or not data[at]:
        return None
    length = 9 - data[at].bit_length()
    if at + length > len(data):
        return None
    value = int.from_bytes(data[at : at + length], "big")
    return value if marked else value - (1 << 7 * length), at + length
