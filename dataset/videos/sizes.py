"""Whether all pictures of a stream are of one size, by what its packets say; must not know files."""

from __future__ import annotations

import re
from typing import Any

from dataset.scan.manifest import Rejected
from dataset.videos.bitstream import (
    before_slices,
    holds_several,
    length_size,
    pictures,
    sides,
    vp9_size,
)
from dataset.videos.nal_units import ORDERED, obus

_SETS = {  # the parameter sets that sizes are in, up to the next unit
    "h264": re.compile(
        rb"\x00\x00\x01([\x07\x27\x47\x67].*?)\x00*(?=\x00\x00\x01|$)", re.DOTALL
    ),
    "hevc": re.compile(
        rb"\x00\x00\x01([\x42\x43].*?)\x00*(?=\x00\x00\x01|$)", re.DOTALL
    ),
}
BEGINNING = 4096
HEADS = {
    "dnxhd": re.compile(rb".{24}(.{4})", re.DOTALL),  # SMPTE ST 2019-1, 5.3
    "gif": re.compile(rb"GIF8[79]a(.{4})", re.DOTALL),
    "jpeg2000": re.compile(
        rb".*?\xff\x4f\xff\x51.{4}(.{16})", re.DOTALL
    ),  # ITU-T T.800, A.5.1; maybe boxed
    "png": re.compile(rb"\x89PNG.{12}(.{8})", re.DOTALL),
    "prores": re.compile(rb".{4}icpf.{8}(.{4})", re.DOTALL),  # SMPTE RDD 36, 5.1.1
}
"""Codecs whose every packet is a picture of its own -> what its head begins with, up to its sides."""
_MPEG2 = re.compile(
    rb".*?\x00\x00\x01\xb3(.{0,3})", re.DOTALL
)  # ISO 13818-2, 6.2.2.1: sides of 12 bits
_KEY_HEADS = {
    **HEADS,
    "mpeg4": re.compile(
        rb".*?\x00\x00\x01[\x20-\x2f](.*?)(?=\x00\x00\x01|$)", re.DOTALL
    ),  # 14496-2, 6.2.3
    "mpeg2video": _MPEG2,
    "mpeg1video": _MPEG2,
}


class Sizes:
    """The size of a stream's pictures, which raises Rejected where a packet says another than the first."""

    def __init__(self, codec: str, extradata: bytes | None) -> None:
        self._codec = codec
        self._extradata = extradata
        self._length_bytes = length_size(extradata, codec)
        self._first: Any = None  # what the first packet says: all of it (ORDERED), its sides (VP9), or bytes
        self._known = set[bytes]()

    def see(self, packet: Any, data: memoryview, place: int) -> None:
        """Look at a packet: a key frame, one of VP9 that may say a size, or any of HEADS."""
        if self._codec in ORDERED:
            self._see_sets(packet, data, place)
        elif self._codec == "vp9":
            for picture in pictures(data) if holds_several(data) else (data,):
                self._require(vp9_size(picture), place)
        else:
            self._require(_size_bytes(self._codec, data) or None, place)

    def _require(self, size: Any, place: int) -> None:
        if size is None:
            return
        if self._first is None:
            self._first = size
        if size != self._first:
            raise _changed(place)

    def _see_sets(self, packet: Any, data: memoryview, place: int) -> None:
        """Ask the decoder what sides a key frame's parameter sets mean, where they were not there before."""
        sets = _SETS[self._codec].findall(
            before_slices(data, self._length_bytes, self._codec)
        )
        renewed = packet.has_sidedata("new_extradata") and bytes(
            packet.get_sidedata("new_extradata")
        )
        if self._first is None:
            self._first = bytes(data)
            self._known.update(sets)
            return
        if not renewed and all(
            each in self._known or each in (self._extradata or b"") for each in sets
        ):
            return
        self._known.update(sets)
        first = sides(self._codec, self._extradata, memoryview(self._first))
        now = sides(self._codec, renewed or self._extradata, data)
        if now.displayed != first.displayed:
            raise _changed(place)


def _changed(place: int) -> Rejected:
    return Rejected(
        f"its pictures change their size at packet {place}: encode it again, in the first one's: "
        "`ffmpeg -i FILE NEW.mp4`"
    )


def may_say(packet: memoryview) -> bool:
    """Return whether a packet of VP9 may say a size: all other pictures are as large as a reference.

    Its first picture has sides of its own, or is not shown, so that one behind it may have (VP9, 6.2).
    """
    first = packet[0]
    if first & 0b1000:  # one that is shown again
        return False
    if not first & 0b100 or not first & 0b10 or len(packet) < 5:
        return True
    reference = (
        packet[3] >> 1 & 7 if first & 1 else (packet[3] & 3) << 1 | packet[4] >> 7
    )
    return not reference


def _size_bytes(codec: str, data: memoryview) -> bytes:
    """Return the bytes of a key frame that hold its size, and in MPEG-4 and AV1 more; b'': it has none."""
    if codec == "vp8":  # RFC 6386, 9.1
        return bytes(data[6:10])
    if codec == "av1":
        return next((bytes(unit) for kind, unit in obus(data) if kind == 1), b"")
    head = bytes(data[:BEGINNING])
    if codec in _KEY_HEADS:
        match = _KEY_HEADS[codec].match(head)
        return match[1] if match else b""
    return _jpeg_sides(head) if codec == "mjpeg" else b""


def _jpeg_sides(head: bytes) -> bytes:
    """Return the bytes of the sides in the frame header of a JPEG (ITU-T T.81, B.2.2)."""
    at = 2
    while at + 9 < len(head) and head[at] == 255:
        if 0xC0 <= head[at + 1] <= 0xCF and head[at + 1] not in (0xC4, 0xC8, 0xCC):
            return head[at + 5 : at + 9]
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return b""
