"""Read from a packet's own units whether a decoder can begin at it, whatever its container says, and whether
its pictures may be displayed before others that are decoded earlier; must not know files or containers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import av
from av.bitstream import BitStreamFilterContext

from dataset.videos.bitstream import before_slices, first_slice, length_size

ORDERED = ("h264", "hevc")
"""Codecs whose slices say in which order their pictures are displayed."""
NO, MAY, SURE = range(3)
"""Whether a packet is a key frame. MAY: a decoder can begin at it, but containers need not say so: recovery
points of H.264, pictures of HEVC that open a group whose first frames need the group before."""


Look = tuple[int | None, bool]
"""What the units of one packet say: whether it is a key frame (NO, MAY, SURE; None: nothing), and whether it
may be displayed before a packet that is decoded earlier."""
NOTHING: Look = None, False
_PLAIN: Look = NO, False
_KEY: Look = SURE, False
# H.264, 7.3.3: the byte behind the header of a slice whose first block is 0 and that is of type 1 or 6
_B_SLICE = frozenset(
    byte for byte in range(256) if byte & 0xF0 == 0xA0 or byte & 0xFC == 0x9C
)
_SUPPLEMENTAL = {
    "h264": re.compile(rb"\x00\x00\x01\x06(.*?)(?=\x00\x00\x01|$)", re.DOTALL),
    "hevc": re.compile(rb"\x00\x00\x01\x4e\x01(.*?)(?=\x00\x00\x01|$)", re.DOTALL),
}
_RECOVERY_POINT = 6  # kinds of messages
_ORIENTATION = 47
_MPEG2_PICTURE = b"\0\0\1\0"  # ISO 13818-2, 6.2.3
_MPEG4_PICTURE = b"\0\0\1\xb6"  # ISO 14496-2, 6.2.5
# bytes of a packet in which MPEG-4 and MPEG-2 have their first picture's head
BEGINNING = 4096


def looker(codec: str, extradata: bytes | None) -> Callable[[memoryview], Look]:
    """Return the function that looks at the packets of a stream."""
    look = _LOOKERS.get(codec, lambda packet: NOTHING)
    return partial(look, length_size(extradata, codec)) if codec in ORDERED else look


def _h264(length_bytes: int, packet: memoryview) -> Look:
    begin: int | None = length_bytes  # as most have it
    if (
        not length_bytes
        or len(packet) <= length_bytes
        or packet[length_bytes] & 31 not in (1, 5)
    ):
        begin = first_slice(packet, length_bytes)
    if begin is None:
        return NOTHING
    if packet[begin] & 31 == 5:
        return _KEY
    # a byte that every supplemental unit begins with
    supplemented = begin > 4 and 6 in bytes(packet[:begin])
    recovers = supplemented and _recovers(before_slices(packet, length_bytes, "h264"))
    moves = packet[begin + 1] in _B_SLICE if len(packet) > begin + 1 else False
    return MAY if recovers else NO, moves


def _recovers(units: bytes) -> bool:
    """Return whether a message among these units says that decoding can begin here (H.264, D.2.8)."""
    return any(kind == _RECOVERY_POINT for kind, _ in _messages(units, "h264"))


def is_turned(packet: memoryview, codec: str, length_bytes: int) -> bool:
    """Return whether a message before the first slice says that pictures are shown turned or flipped.

    The source is H.264, D.2.27, and H.265, D.3.17.
    """
    for kind, body in _messages(before_slices(packet, length_bytes, codec), codec):
        if kind == _ORIENTATION:
            # one bit: cancelled; two: flips; sixteen: parts of a turn
            bits = int.from_bytes(body[:3].ljust(3, b"\0"), "big") >> 5
            return bits < 1 << 18 and bits > 0
    return False


def _messages(units: bytes, codec: str) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the bytes of each supplemental message (H.264, 7.3.2.3.1; H.265, 7.3.2.4)."""
    for match in _SUPPLEMENTAL[codec].finditer(units):
        unit = match[1].replace(b"\0\0\3", b"\0\0")
        at = 0
        while at + 2 < len(unit):
            kind, at = _number(unit, at)
            size, at = _number(unit, at)
            yield kind, unit[at : at + size]
            at += size


def _number(unit: bytes, at: int) -> tuple[int, int]:
    """Return (number, place behind it): each byte of 255 is added to, and goes on with, the next."""
    number = 0
    while at < len(unit):
        number += unit[at]
        at += 1
        if unit[at - 1] != 255:
            break
    return number, at


def _hevc(length_bytes: int, packet: memoryview) -> Look:
    """Look at a packet of HEVC (H.265, 7.4.2.2), whose kinds do not tell which pictures move."""
    begin: int | None = length_bytes  # as most have it
    if (
        not length_bytes
        or len(packet) <= length_bytes
        or packet[length_bytes] >> 1 & 63 > 31
    ):
        begin = first_slice(packet, length_bytes, "hevc")
    if begin is None:
        return NOTHING
    kind = packet[begin] >> 1 & 63
    return (SURE if kind in (19, 20) else MAY if kind >= 16 else NO), kind < 16


def _vp9(packet: memoryview) -> Look:
    """Look at a packet of VP9 (6.2), not of profile 3."""
    return (
        NOTHING if packet[0] & 0x30 == 0x30 else _PLAIN if packet[0] & 0b1100 else _KEY
    )


def _vp8(packet: memoryview) -> Look:
    """Look at a packet of VP8 (RFC 6386, 9.1)."""
    return _PLAIN if packet[0] & 1 else _KEY


def obus(packet: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the kind and the bytes of each unit of a packet of AV1 (AV1, 5.3)."""
    at = 0
    while at + 1 < len(packet):
        head = packet[at]
        at += 2 if head & 4 else 1
        size = 0
        shift = 0
        more = bool(head & 2)
        while more and at < len(packet):
            size |= (packet[at] & 127) << shift
            shift += 7
            more = packet[at] > 127
            at += 1
        end = at + size if head & 2 else len(packet)
        yield head >> 3 & 15, packet[at:end]
        at = end


def _av1(packet: memoryview) -> Look:
    """Look at the first header of a frame (AV1, 5.9.2), which tells where the frame is new and shown."""
    for kind, unit in obus(packet):
        if kind in (3, 6) and len(unit):  # a header, with or without its frame
            shown = unit[0] & 0b1001_0000 == 0b0001_0000
            return NOTHING if not shown else _PLAIN if unit[0] >> 5 & 3 else _KEY
    return NOTHING


def _mpeg(
    packet: memoryview, *, code: bytes, place: int, shift: int, kinds: Sequence[int]
) -> Look:
    """Look at the kind of the first picture: I and B are `kinds`, `shift` bits from a byte's end."""
    head = bytes(packet[:BEGINNING])
    at = head.find(code)
    if not 0 <= at < len(head) - place:
        return NOTHING
    kind = head[at + place] >> shift & (3 if shift == 6 else 7)
    return SURE if kind == kinds[0] else NO, kind == kinds[1]


_MPEG2 = partial(_mpeg, code=_MPEG2_PICTURE, place=5, shift=3, kinds=(1, 3))
_LOOKERS: dict[str, Callable[..., Look]] = {
    "h264": _h264,
    "hevc": _hevc,
    "vp9": _vp9,
    "vp8": _vp8,
    "av1": _av1,
    "mpeg4": partial(_mpeg, code=_MPEG4_PICTURE, place=4, shift=6, kinds=(0, 2)),
    "mpeg2video": _MPEG2,
    "mpeg1video": _MPEG2,
    "mjpeg": lambda packet: _KEY,
}


def display_places(pieces: Sequence[bytes], stream: Any) -> list[int | None]:
    """Return for each packet a number that does not fall in the order of display; None: it does not say.

    The packets go from a key frame to the next, in the order of decoding (H.264, 8.2.1; H.265, 8.3.1).
    `pieces`: as bitstream.up_to_slice makes them.
    """
    filtered = list[Any]()
    try:
        places = BitStreamFilterContext("dts2pts", in_stream=stream)
        for place, data in enumerate(pieces):
            packet = av.Packet(data)
            packet.dts = place
            filtered += places.filter(packet)
        filtered += places.filter(None)
    except av.error.FFmpegError:
        pass  # what came before is told
    numbers = [packet.pts for packet in filtered[: len(pieces)]]
    return numbers + [None] * (len(pieces) - len(numbers))
