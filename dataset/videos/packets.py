"""One video file -> the time of each of its frames, by its packets; must not know folders, clips or pixels.

No picture is decoded: what the packets say is enough, and what a container's header says of its frames is
often wrong.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import av
import av.logging
import numpy as np
from av.stream import Discard, Disposition

from contracts import Array
from dataset.manifest import Rejected
from dataset.videos.columns import CODECS, CONTAINERS, FULL_RANGE, PIXELS, RECORD, Flags
from dataset.videos.container import HEAD, declared_bytes, open_video, read_packets
from dataset.videos.heads import (
    decode_head,
    holds_several,
    is_aligned,
    is_grey,
    is_whole,
    length_size,
    may_hide,
    shows_again,
    shows_nothing,
    sides,
)

_FORMATS = dict(
    zip(
        ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi", "mpegts", "mpeg", "flv", "asf", "ogg"),
        range(len(CONTAINERS)),
        strict=True,
    )
)
"""FFmpeg's name of a container -> index into CONTAINERS."""
# of MPEG-4; the two highest bits of what follows are its kind
_PICTURE = re.compile(rb"\x00\x00\x01\xb6(.)", re.DOTALL)
_PLACEHOLDER = 19  # bytes: a longer MPEG-4 packet is a frame, as FFmpeg's mpeg4_unpack_bframes decides it
# in FFmpeg's description of a stream
_TURNED = re.compile(r"display ?matrix: rotation of (-?[\d.]+|nan)", re.IGNORECASE)
_FIELDS = re.compile(r"(top|bottom) (coded )?first")  # likewise, of interlaced ones


class Times(NamedTuple):
    """One file: a row of RECORD, and each frame's time in ticks and whether it is a key frame.

    The frames are in display order.
    """

    record: tuple[Any, ...]
    pts: Array
    keys: Array


LEFT_OUT = Times((-1, *[0] * (len(RECORD.names or ()) - 1)), np.zeros(0, np.int64), np.zeros(0, bool))


def read(path: bytes) -> Times:
    """Return what the packets of one file say.

    Raises Rejected, and nothing else, when it is no video that can be played from its first frame.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise Rejected(
            "broken link" if os.path.islink(path) else f"cannot be read: {error.strerror}"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise Rejected("no regular file")
    if not status.st_size:
        raise Rejected("empty file")
    try:
        with open(path, "rb") as plain:
            declared = declared_bytes(plain.read(HEAD))
        if declared is not None and status.st_size < declared:
            raise Rejected(f"cut short: {status.st_size:,} of {declared:,} bytes")
        with open_video(path, known=True) as file:
            if (quick := _times(file, path, status.st_size, quick=True)) is not None:
                return quick
        with open_video(path) as file:
            whole = _times(file, path, status.st_size, quick=False)
            assert whole is not None
            return whole
    except (av.error.FFmpegError, OSError) as error:
        raise Rejected(f"cannot be read: {error.strerror}") from None


def _times(file: Any, path: bytes, size: int, *, quick: bool) -> Times | None:
    """Return what the packets of one file say. Raises Rejected, or what PyAV raises.

    `quick`: FFmpeg has decoded nothing to find out what pictures are like; None = it has to.
    """
    if file.format.name not in _FORMATS:
        raise Rejected(f"no known video container (read as {file.format.name})")
    videos = [
        stream.index for stream in file.streams.video if not stream.disposition & Disposition.attached_pic
    ]
    stream = file.streams.best("video")
    if stream is None or stream.index not in videos:
        raise Rejected("has no video")
    context = stream.codec_context
    container = CONTAINERS[_FORMATS[file.format.name]]
    demuxed = _demuxed(file, stream)
    first = next(demuxed, None)
    demuxed = chain([] if first is None else [first], demuxed)
    if quick:
        if (
            context is None
            or context.codec.name not in QUICK
            or container not in ("mp4", "mkv")
            or len(videos) > 1
        ):
            return None
        if first is None or not _begins(context, memoryview(first)):
            return None
    if context is None or context.format is None or not (context.width and context.height):
        raise Rejected("has a video stream of an unknown codec")
    codec = context.codec.canonical_name
    described = _described(file, stream.index)
    rotation = _rotation(described)
    if _TURNED.search(described):
        _require_unmirrored(path, stream.index)
    packets, pictures, seen = _packets(demuxed, codec, length_size(context.extradata))
    if not len(packets):
        raise Rejected("has no frames")
    if (
        container in ("avi", "asf")
        and codec != "mpeg4"
        and context.has_b_frames
        and (np.diff(packets["pts"]) > 0).all()
    ):
        raise Rejected(f"{codec} that may have B-frames in {container}: nothing says when they are displayed")
    packed = len(pictures) > 0
    pts, keys, flags = _unpacked(packets, pictures) if packed else _display_order(packets)
    if packets["discard"].any() or (container == "mp4" and stream.frames > len(packets)):
        flags |= Flags.EDIT_LIST
    if len(videos) > 1:
        flags |= Flags.SEVERAL_STREAMS
    flags |= seen
    if _FIELDS.search(described):
        flags |= Flags.INTERLACED
    if codec == "hevc" and first is not None:
        if may_hide(context.extradata, memoryview(first)):
            raise Rejected("HEVC whose pictures may be hidden (output_flag_present_flag): encode it again")
        if not is_aligned(sides(codec, context.extradata, memoryview(first)).coded):
            flags |= Flags.UNALIGNED
    pixels = "gray" if codec == "h264" and is_grey(context.extradata) else context.pix_fmt
    steps = np.diff(pts)
    tick = stream.time_base
    # each may be rounded to a tick
    if len(pts) > 2 and np.abs(pts - np.linspace(pts[0], pts[-1], len(pts))).max() > 1.001:
        flags |= Flags.VARIABLE_RATE
    step = float(np.median(steps) if flags & Flags.VARIABLE_RATE else steps.mean()) if len(steps) else 0.0
    height, width = (
        (context.height, context.width) if rotation % 180 == 0 else (context.width, context.height)
    )
    record = (
        size,
        stream.index,
        _index(CODECS, codec),
        CONTAINERS.index(container),
        _index(PIXELS, pixels),
        context.format.components[0].bits,
        int(context.colorspace),
        context.color_range == FULL_RANGE or context.pix_fmt.startswith("yuvj"),
        height,
        width,
        rotation,
        int(flags),
        tick.numerator,
        tick.denominator,
        tick.denominator / (tick.numerator * step) if step else 0.0,
        (int(pts[-1] - pts[0]) + step) * tick.numerator / tick.denominator,
        len(pts),
    )
    return Times(record, pts, keys)


def _index(names: tuple[str, ...], name: str) -> int:
    return names.index(name if name in names else "other")


def _described(file: Any, stream: int) -> str:
    """FFmpeg's description of a stream, which has what PyAV tells of decoded frames alone."""
    before = av.logging.get_level()
    av.logging.set_level(av.logging.INFO)
    try:
        described = file.dumps_format()
    finally:
        av.logging.set_level(before)
    return re.split(rf"Stream #0:{stream}\b", described)[-1].partition("Stream #0:")[0]


def _rotation(described: str) -> int:
    """Return 0, 90, 180 or 270 degrees counter-clockwise."""
    found = _TURNED.search(described)
    if found is not None and found[1] != "nan":
        return round(float(found[1]) / 90) * 90 % 360
    return 0


def _require_unmirrored(path: bytes, stream: int) -> None:
    """Raise Rejected where the display matrix swaps left and right.

    FFmpeg's streams tell its angle alone; a frame has the whole matrix.
    """
    for hasty in (True, False):
        with open_video(path, known=True) as file:
            for frame in _first_frames(file, file.streams[stream], hasty=hasty):
                if (matrix := frame.side_data.get("DISPLAYMATRIX")) is not None:
                    a, b, _, c, d, *_ = np.frombuffer(matrix, np.int32).tolist()
                    if a * d < b * c:
                        raise Rejected("is to be shown mirrored, by its display matrix, which no loader does")
                    return
    raise Rejected("has a display matrix, and no frame that could be decoded tells what it is")


def _first_frames(file: Any, stream: Any, *, hasty: bool) -> Iterator[Any]:
    """Yield decoded frames; `hasty`: at most one, of which only the head was decoded.

    That takes 0.7 ms of a core instead of 19 at 1080p.
    """
    for packet in read_packets(file, stream):
        if hasty:
            yield from decode_head(stream.codec_context, memoryview(packet)) if packet.size else ()
            return
        with suppress(av.error.FFmpegError):
            yield from packet.decode()


PACKET = np.dtype([("pts", "i8"), ("key", "?"), ("discard", "?"), ("hidden", "?")])
"""A packet is `discard` where an edit list cuts it away, `hidden` where its frame is only coded from."""


QUICK = {"h264", "vp9"}
"""Codecs of which FFmpeg decodes a whole picture to learn what its pixels are like.

Of 1080p that takes 11 to 15 ms of a core.
"""


def _begins(context: Any, packet: memoryview) -> bool:
    """Return whether the decoder knows from the first packet's head alone what pixels are like.

    That takes 0.2 to 4 ms at 1080p, for the decoder's memory.
    """
    decode_head(context, packet)
    return context.format is not None


def _demuxed(file: Any, stream: Any) -> Iterator[Any]:
    """The packets of the stream."""
    for other in file.streams:
        if other.index != stream.index:
            other.discard = Discard.all
    return (packet for packet in read_packets(file, stream) if packet.size)  # an empty one is the end


def _packets(demuxed: Iterable[Any], codec: str, length_bytes: int) -> tuple[Array, Array, Flags]:
    """(a PACKET for each packet, pictures, what else the packets show), in the order of decoding.

    Pictures is empty but for packed MPEG-4: then uint8, 0 to 3 for each I, P, B and S picture. Raises
    Rejected, or what PyAV raises.
    """
    found: list[tuple[int, bool, bool, bool]] = []
    pictures = bytearray()
    packed = False
    waiting = False
    flags = Flags(0)
    several = again = False
    for packet in demuxed:
        if packet.pts is None:
            raise Rejected(f"packet {len(found)} has no time")
        if packet.is_corrupt:
            raise Rejected(f"cut short or damaged: packet {len(found)} is not whole")
        hidden = codec == "vp8" and not memoryview(packet)[0] >> 4 & 1  # RFC 6386, 9.1
        found.append((packet.pts, packet.is_keyframe, packet.is_discard, hidden))
        if (
            codec == "h264"
            and packet.is_keyframe
            and not flags
            and not is_whole(memoryview(packet), length_bytes)
        ):
            flags |= Flags.GRADUAL_REFRESH
        if codec == "vp9":
            head = memoryview(packet)
            if shows_nothing(head):
                raise Rejected(
                    "VP9 with hidden frames in packets of their own: `ffmpeg -i FILE -c copy NEW` brings "
                    "them together"
                )
            several = several or holds_several(head)
            again = again or shows_again(head)
        if codec == "mpeg4":
            kinds = [match[1][0] >> 6 for match in _PICTURE.finditer(packet)]
            if waiting and len(kinds) == 1 and packet.size <= _PLACEHOLDER:
                waiting = False
                continue
            packed = packed or len(kinds) > 1
            waiting = waiting or len(kinds) > 1
            pictures.extend(kinds)
    if waiting:  # the last one needs a packet behind it to be decoded
        del pictures[-1:]
    flags |= Flags(several * Flags.HIDDEN_FRAMES | again * Flags.SHOWN_AGAIN)
    return np.array(found, PACKET), np.frombuffer(bytes(pictures) if packed else b"", np.uint8), flags


def _display_order(packets: Array) -> tuple[Array, Array, Flags]:
    """Return (pts, keys, flags) of the frames that a player shows.

    It shows none before the first key frame, nor such that need frames before it.
    """
    if not packets["key"].any():
        raise Rejected("has no key frame")
    packets = packets[int(packets["key"].argmax()) :]
    packets = packets[(packets["pts"] >= packets["pts"][0]) & ~packets["hidden"]]
    pts = packets["pts"]
    places = np.flatnonzero(packets["key"])
    earliest_after = np.minimum.accumulate(pts[::-1])[::-1]
    inner = places[(places > 0) & (places < len(pts) - 1)]
    flags = Flags.OPEN_GOP if (earliest_after[inner + 1] < pts[inner]).any() else Flags(0)
    shown = packets[~packets["discard"]]
    shown = shown[shown["pts"].argsort(kind="stable")]
    return _checked(shown["pts"]), shown["key"], flags


def _unpacked(packets: Array, pictures: Array) -> tuple[Array, Array, Flags]:
    """Return the frames of packed MPEG-4, as _display_order does for others.

    Its packets' times are right as a set alone: the kinds of pictures tell a frame's place.
    """
    places = np.arange(len(pictures))
    # I, P and S: displayed when the next of them has been decoded, behind the B between
    ahead = np.flatnonzero(pictures != 2)
    until = np.append(ahead[1:], len(pictures))
    places[ahead] = until - 1
    between = pictures == 2
    places[between] -= 1
    if len(pictures) != len(packets) or not len(ahead) or ahead[0] != 0:
        raise Rejected(f"packed B-frames: {len(pictures)} pictures in {len(packets)} packets")
    keys = np.zeros(len(pictures), bool)
    keys[places] = pictures == 0
    behind_key = np.append(pictures[1:], 0) == 2
    leading = (behind_key & (pictures == 0))[1:].any()
    return _checked(np.sort(packets["pts"])), keys, Flags.PACKED_B | (Flags.OPEN_GOP if leading else Flags(0))


def _checked(pts: Array) -> Array:
    if not len(pts):
        raise Rejected("has no frames")
    if same := int((np.diff(pts) <= 0).sum()):
        raise Rejected(f"{same} of {len(pts)} frames have the time of another")
    return pts
