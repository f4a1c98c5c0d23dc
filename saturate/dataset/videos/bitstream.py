"""Read from the bytes of packets what FFmpeg's demuxers do not tell: heads of H.264, HEVC and VP9.

PyAV says times, key frames and sizes of a stream. It does not say which H.264 key frames are
renewed part by part, where HEVC's key frames are whatever its container marks, what is hidden in packets of
VP9, and in which sides pictures are coded, which NVDEC's sessions are set up for.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple

import av

_CODE = b"\0\0\1"  # in front of a unit, where its length is not told
_START = re.compile(_CODE)
_HEVC_SPS = re.compile(rb"\x00\x00\x01[\x42\x43]")  # a unit of type 33 (H.265, 7.3.1.2)
# bytes of a slice of H.264: its header is shorter
_SLICE = 64
# profiles of H.264 that say if they have chroma (7.3.2.1.1)
_WITH_CHROMA_FORMAT = {100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135}


class Sides(NamedTuple):
    """Height and width of pictures, as displayed (before they are turned) and as coded; 0 where unknown."""

    displayed: tuple[int, int]
    coded: tuple[int, int]


def sides(codec: str, extradata: bytes | None, packet: memoryview) -> Sides:
    """Return the sides that a decoder takes from the head of a packet that begins with a key frame."""
    context: Any = av.CodecContext.create(codec, "r")
    length_bytes = length_size(extradata, codec)
    begin = first_slice(packet, length_bytes, codec)
    head = packet[: (begin or 0) - (length_bytes or len(_CODE))] if begin else b""
    with suppress(av.error.FFmpegError):
        if codec == "hevc":
            # its parameter sets are enough, and a slice that is cut may be refused
            in_band = _annex_b(head, length_bytes)
            context.extradata = in_band if _HEVC_SPS.search(in_band) else extradata
            context.open()
        elif begin:
            context.extradata = extradata
            context.thread_count = 1
            slice_ = bytes(packet[begin : begin + _SLICE])
            mark = len(slice_).to_bytes(length_bytes or 8, "big")
            if not length_bytes:
                mark = _CODE
            context.decode(av.Packet(bytes(head) + mark + slice_))
            context.decode(None)
    return Sides(
        (context.height, context.width), (context.coded_height, context.coded_width)
    )


def _annex_b(head: bytes | memoryview, length_bytes: int) -> bytes:
    """Return units with start codes between them."""
    if not length_bytes:
        return bytes(head)
    units = b""
    at = 0
    while at < len(head):
        begin = at + length_bytes
        at = begin + int.from_bytes(head[at:begin], "big")
        units += _CODE + bytes(head[begin:at])
    return units


def length_size(extradata: bytes | None, codec: str = "h264") -> int:
    """Return the bytes of the length in front of each NAL unit (ISO 14496-15, 5.3.3.1 and 8.3.3.1).

    0: start codes stand between them.
    """
    at = 4 if codec == "h264" else 21
    if not extradata or len(extradata) <= at or extradata[0] != 1:
        return 0
    return (extradata[at] & 3) + 1


def first_slice(packet: memoryview, length_bytes: int, codec: str) -> int | None:
    """Return where the first slice of a packet begins (H.264 and H.265, 7.3.1); None: it has none."""
    at = 0
    while True:
        if length_bytes:
            begin = at + length_bytes
            at = begin + int.from_bytes(packet[at:begin], "big")
        else:
            code = _START.search(packet, at)
            begin = at = code.end() if code else len(packet)
        if begin >= len(packet):
            return None
        unit = packet[begin]
        if unit & 31 in (1, 5) if codec == "h264" else unit >> 1 & 63 < 32:
            return begin


def slice_type(packet: memoryview, length_bytes: int) -> int | None:
    """Return the type of the first slice of H.264 (7.4.3): 0 P, 1 B, 2 I, 3 SP, 4 SI; None: no slice."""
    begin = first_slice(packet, length_bytes, "h264")
    number = None if begin is None else _second(packet[begin + 1 : begin + 9])
    return None if number is None else number % 5


def is_hevc_key(packet: memoryview, length_bytes: int) -> bool:
    """Return whether a decoder can begin at a packet of HEVC (H.265, 7.4.2.2)."""
    begin = first_slice(packet, length_bytes, "hevc")
    return begin is not None and packet[begin] >> 1 & 63 >= 16


def is_grey(extradata: bytes | None) -> bool:
    """Return whether the first parameter set of avcC says that there is no chroma.

    The sources are ISO 14496-15, 5.3.3.1, and H.264, 7.3.2.1.1. FFmpeg gives such pictures a grey chroma, and
    says yuv420p.
    """
    if not extradata or len(extradata) < 12 or extradata[0] != 1:
        return False
    has_set = extradata[5] & 31
    profile = extradata[9]
    chroma_format = _second(extradata[12:20])
    return bool(has_set and profile in _WITH_CHROMA_FORMAT and chroma_format == 0)


def _second(head: bytes | memoryview) -> int | None:
    """Return the second of the Exp-Golomb numbers that this begins with; None: it is too short."""
    bits = f"{int.from_bytes(head, 'big'):0{8 * len(head)}b}"
    for _ in range(2):
        zeros = bits.find("1")
        if zeros < 0 or 2 * zeros >= len(bits):
            return None
        number = int(bits[zeros : 2 * zeros + 1], 2) - 1
        bits = bits[2 * zeros + 1 :]
    return number


def vp9_holds_several(packet: memoryview) -> bool:
    """Return whether a packet of VP9 has several pictures: it ends with their sizes (VP9, Annex B.2).

    They stand between two equal bytes.
    """
    marker = packet[-1]
    size = 2 + ((marker >> 3 & 3) + 1) * ((marker & 7) + 1)
    if marker >> 5 != 0b110 or not marker & 7 or len(packet) < size:
        return False
    return packet[-size] == marker


def vp9_shows_again(packet: memoryview) -> bool:
    """Return whether a packet of VP9 has no picture and shows one that was decoded before.

    That is show_existing_frame (VP9, 6.2), of profiles 0 to 2.
    """
    return bool(packet[0] & 0b1000)


def shows_nothing(codec: str, packet: memoryview) -> bool:
    """Return whether a packet has one picture alone, and that is not shown.

    VP8: RFC 6386, 9.1. VP9: 6.2, of profiles 0 to 2.
    """
    if codec == "vp8":
        return not packet[0] >> 4 & 1
    if codec == "vp9":
        return not packet[0] & 0b1010 and not vp9_holds_several(packet)
    return False
