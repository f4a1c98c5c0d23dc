"""Read from the first bytes of packets what pictures are like, before any is decoded; knows no files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import av

_CODE = b"\0\0\1"  # in front of a unit, where its length is not told
_START = re.compile(_CODE)
_HEVC_SPS = re.compile(rb"\x00\x00\x01[\x42\x43]")  # a unit of type 33 (H.265, 7.3.1.2)
BEGINNING = 4096  # bytes of a packet of VP9: its header is shorter
# bytes of a slice of H.264 or HEVC: likewise, but for HEVC of many rows of blocks that can be decoded at once
SLICE = 64
# profiles of H.264 (7.3.2.1.1)
WITH_CHROMA_FORMAT = {100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135}


class Sides(NamedTuple):
    """Height and width of pictures, as displayed (before they are turned) and as coded; 0 where unknown."""

    displayed: tuple[int, int]
    coded: tuple[int, int]


_SIDES: dict[tuple[Any, ...], Sides] = {}
"""The sides of H.264 seen so far, by the extradata and the bytes before the first slice with its parameter
set: all clips of a file share these."""
_MOST_SIDES = 256


def sides(codec: str, extradata: bytes | None, packet: memoryview) -> Sides:
    """Return the sides that a decoder takes from the head of a packet that begins with a key frame."""
    if codec != "h264":
        return _sides(codec, extradata, packet)
    begin = first_slice(packet, length_size(extradata))
    key = extradata, bytes(packet[: (begin or 0) + 3])
    if key not in _SIDES:
        if len(_SIDES) >= _MOST_SIDES:
            _SIDES.clear()
        _SIDES[key] = _sides(codec, extradata, packet)
    return _SIDES[key]


def _sides(codec: str, extradata: bytes | None, packet: memoryview) -> Sides:
    context = av.CodecContext.create(codec, "r")
    assert isinstance(context, av.VideoCodecContext)
    # its parameter sets are enough; a head of its slice is not, which may name a thousand entry points
    if codec == "hevc":
        in_band = before_slices(packet, length_size(extradata, codec), codec)
        context.extradata = in_band if _HEVC_SPS.search(in_band) else extradata
        with suppress(av.error.FFmpegError):
            context.open()
    else:
        context.extradata = extradata
        decode_head(context, packet)
    return Sides(
        (context.height, context.width), (context.coded_height, context.coded_width)
    )


def vp9_size(packet: memoryview) -> tuple[int, int] | None:
    """Return the height and width in a picture's head of VP9, 8 bits and 4:2:0 (VP9, 6.2).

    None: they are those of a picture before it.
    """
    bits = f"{int.from_bytes(bytes(packet[:16]).ljust(16), 'big'):0128b}"  # of which 75 are looked at
    again, inter, shown, resilient = (bit == "1" for bit in bits[4:8])
    if again:
        return None
    at = 8 + 24 + 4  # the start code, what colours are
    if inter:
        at = 8 + (not shown) + 2 * (not resilient)
        if not shown and bits[8] == "1":  # of no other picture
            at += 24 + 8
        elif "1" in bits[at + 20 : at + 23]:  # as large as one of its three references
            return None
        else:
            at += 23
    return int(bits[at + 16 : at + 32], 2) + 1, int(bits[at : at + 16], 2) + 1


def is_aligned(coded: tuple[int, int]) -> bool:
    return all(coded) and not any(side % 16 for side in coded)


def decode_head(context: Any, packet: memoryview) -> list[Any]:
    """Yield the frame, if any, of the head of a first packet. The context can decode nothing afterwards."""
    codec = context.codec.name
    if codec in ("h264", "hevc"):
        head = up_to_slice(packet, codec, length_size(context.extradata, codec))
        if not head:
            return []
    elif codec == "vp9":
        # a last byte that would say that several frames are in the packet
        head = bytes(packet[:BEGINNING]) + b"\0"
    else:
        return []
    context.thread_count = 1
    context.options = {"ec": "0"}  # nothing is painted over what is missing
    frames = list[Any]()
    for piece_or_end in (av.Packet(head), None):
        with suppress(av.error.FFmpegError):
            frames += context.decode(piece_or_end)
    return frames


def length_size(extradata: bytes | None, codec: str = "h264") -> int:
    """Return the bytes of the length in front of each NAL unit (ISO 14496-15, 5.3.3.1 and 8.3.3.1).

    0: start codes stand between them.
    """
    at = 4 if codec == "h264" else 21
    return (
        (extradata[at] & 3) + 1
        if extradata and len(extradata) > at and extradata[0] == 1
        else 0
    )


def first_slice(
    packet: memoryview, length_bytes: int, codec: str = "h264"
) -> int | None:
    """Return where the first slice of a packet begins (H.264 and H.265, 7.3.1); None: it has none."""
    at = 0
    while True:
        if length_bytes:
            begin = at + length_bytes
            at = (
                at
                + length_bytes
                + int.from_bytes(packet[at : at + length_bytes], "big")
            )
        else:
            code = _START.search(packet, at)
            begin = at = code.end() if code else len(packet)
        if begin >= len(packet):
            return None
        if (
            packet[begin] & 31 in (1, 5)
            if codec == "h264"
            else packet[begin] >> 1 & 63 < 32
        ):
            return begin


def up_to_slice(packet: memoryview, codec: str, length_bytes: int) -> bytes:
    """Return a packet of H.264 or HEVC up to the head of its first slice; b"" where it has no slice."""
    begin = first_slice(packet, length_bytes, codec)
    if begin is None:
        return b""
    head = bytes(packet[begin : begin + SLICE])
    length = len(head).to_bytes(length_bytes, "big") if length_bytes else b""
    return bytes(packet[: begin - length_bytes]) + length + head


def before_slices(packet: memoryview, length_bytes: int, codec: str) -> bytes:
    """Return the bytes before a packet's first slice, with start codes; b'' where there is no slice."""
    begin = first_slice(packet, length_bytes, codec)
    head = (
        packet[: begin - (length_bytes or len(_CODE))]
        if begin is not None
        else packet[:0]
    )
    if not length_bytes:
        return bytes(head)
    units = list[bytes]()
    at = 0
    while at < len(head):
        begin = at + length_bytes
        at = begin + int.from_bytes(head[at:begin], "big")
        units.append(_CODE + bytes(head[begin:at]))
    return b"".join(units)


def holds_several(packet: memoryview) -> bool:
    """Return whether a packet of VP9 has several pictures: it ends with their sizes (VP9, Annex B.2).

    They stand between two equal bytes.
    """
    marker = packet[-1]
    size = 2 + ((marker >> 3 & 3) + 1) * ((marker & 7) + 1)
    return (
        marker >> 5 == 0b110
        and marker & 7 > 0
        and len(packet) >= size
        and packet[-size] == marker
    )


def pictures(packet: memoryview) -> list[memoryview]:
    """Return the pictures in a packet of VP9 (Annex B.2)."""
    if not holds_several(packet):
        return [packet]
    count = (packet[-1] & 7) + 1
    width = (packet[-1] >> 3 & 3) + 1
    parts = list[memoryview]()
    at = 0
    size_at = len(packet) - 1 - width * count
    for index_at in range(size_at, size_at + width * count, width):
        size = int.from_bytes(packet[index_at : index_at + width], "little")
        parts += [packet[at : at + size]] if size else []
        at += size
    return parts


def shows_nothing(packet: memoryview) -> bool:
    """Whether a packet of VP9 has one picture alone, and that is not shown (VP9, 6.2), of profiles 0 to 2."""
    return not packet[0] & 0b1010 and not holds_several(packet)


def shows_again(packet: memoryview) -> bool:
    """Return whether a packet of VP9 has no picture and shows one that was decoded before.

    That is show_existing_frame (VP9, 6.2), of profiles 0 to 2.
    """
    return bool(packet[0] & 0b1000)


def is_whole(packet: memoryview, length_bytes: int) -> bool:
    """Return whether the first slice of an H.264 packet needs no other picture, or it cannot be told.

    The source is H.264, 7.3.2.8 and 7.3.3.
    """
    begin = first_slice(packet, length_bytes)
    return (
        begin is None
        or packet[begin] & 31 == 5
        or _second(packet[begin + 1 : begin + 9]) in (None, 2, 4, 7, 9)
    )


def is_grey(extradata: bytes | None) -> bool:
    """Return whether the first parameter set of avcC says that there is no chroma.

    The sources are ISO 14496-15, 5.3.3.1, and H.264, 7.3.2.1.1. FFmpeg gives such pictures a grey chroma, and
    says yuv420p.
    """
    if (
        not extradata
        or len(extradata) < 12
        or extradata[0] != 1
        or not extradata[5] & 31
    ):
        return False
    profile = extradata[9]
    numbers = extradata[12:20]
    return profile in WITH_CHROMA_FORMAT and _second(numbers) == 0


def may_hide(extradata: bytes | None, packet: memoryview) -> bool:
    """Return whether a picture of HEVC may say that it is not shown.

    That is output_flag_present_flag (H.265, 7.3.2.3.1) in a parameter set here.
    """
    length_bytes = length_size(extradata, "hevc")
    units = (
        _hvcc_units(extradata)
        if extradata and length_bytes
        else _START.split(extradata or b"")
    )
    for unit in (*units, *_START.split(before_slices(packet, length_bytes, "hevc"))):
        if (
            len(unit) > 2
            and unit[0] == 34 << 1
            and unit[1] >> 3 == 0
            and _two_numbers(unit[2:12])[1][1:2] == "1"
        ):
            return True
    return False


def _hvcc_units(extradata: bytes) -> Iterator[bytes]:
    """Return the parameter sets of hvcC (ISO 14496-15, 8.3.3.1)."""
    end = len(extradata)
    at = 23
    for _ in range(extradata[22] if end > at else 0):
        count = int.from_bytes(extradata[at + 1 : at + 3], "big")
        at = at + 3
        for _ in range(count):
            if at >= end:
                return
            begin = at + 2
            at = begin + int.from_bytes(extradata[at:begin], "big")
            yield extradata[begin:at]


def _second(head: bytes | memoryview) -> int | None:
    """Return the second of the Exp-Golomb numbers that this begins with; None: it is too short."""
    numbers, _ = _two_numbers(head)
    return numbers[1] if len(numbers) == 2 else None


def _two_numbers(head: bytes | memoryview) -> tuple[list[int], str]:
    """Return the two Exp-Golomb numbers that this begins with, or fewer, and the bits behind them."""
    bits = f"{int.from_bytes(head, 'big'):0{8 * len(head)}b}"
    values = list[int]()
    while len(values) < 2:
        zeros = bits.find("1")
        if zeros < 0 or 2 * zeros >= len(bits):
            break
        values.append(int(bits[zeros : 2 * zeros + 1], 2) - 1)
        bits = bits[2 * zeros + 1 :]
    return values, bits
