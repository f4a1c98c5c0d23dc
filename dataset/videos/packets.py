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
from operator import attrgetter
from typing import Any, NamedTuple

import av
import av.logging
import numpy as np
from av.stream import Discard, Disposition

from contracts import Array
from dataset.scan.byte_ranges import unreadable
from dataset.scan.manifest import Rejected
from dataset.videos.bitstream import (
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
    up_to_slice,
)
from dataset.videos.columns import CODECS, CONTAINERS, FULL_RANGE, PIXELS, RECORD, Flags
from dataset.videos.container import (
    HEAD,
    declared_bytes,
    is_mp4_or_mkv,
    open_video,
    read_packets,
)
from dataset.videos.frame_order import (
    MOST_DAMAGED,
    PACKET,
    display_order,
    require_order,
    settle_keys,
    unpacked,
)
from dataset.videos.nal_units import MAY, NO, ORDERED, display_places, is_turned, looker
from dataset.videos.sizes import HEADS, Sizes, may_say
from system import storage
from system.user_files import open_bytes

_FORMATS = dict(
    zip(
        (
            "mov,mp4,m4a,3gp,3g2,mj2",
            "matroska,webm",
            "avi",
            "mpegts",
            "mpeg",
            "flv",
            "asf",
            "ogg",
        ),
        range(len(CONTAINERS)),
        strict=True,
    )
)
"""FFmpeg's name of a container -> index into CONTAINERS."""
# of MPEG-4; the two highest bits of what follows are its kind
_PICTURE = re.compile(rb"\x00\x00\x01\xb6(.)", re.DOTALL)
_B_PICTURE = 2
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


LEFT_OUT = Times(
    (-1, *[0] * (len(RECORD.names or ()) - 1)), np.zeros(0, np.int64), np.zeros(0, bool)
)


def read(path: bytes) -> Times:
    """Return what the packets of one file say.

    Raises Rejected when it is no video that can be played from its first frame, and OSError where that is
    not the file's fault.
    """
    try:
        with suppress(av.error.FFmpegError, Rejected):
            return _read(path)
        # FFmpeg takes some errors of a read for the file's end, and says EIO of some damage
        if os.path.isfile(path):
            storage.read_through(path)
        return _read(path)
    except av.error.FFmpegError as error:
        raise Rejected(f"cannot be read: {error.strerror}") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _read(path: bytes) -> Times:
    """Do what `read` does. Raises OSError and what PyAV raises too."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise Rejected("no regular file")
    if not status.st_size:
        raise Rejected("empty file")
    with open_bytes(path) as plain:
        head = plain.read(HEAD)
    declared = declared_bytes(head)
    if declared is not None and status.st_size < declared:
        raise Rejected(f"cut short: {status.st_size:,} of {declared:,} bytes")
    if is_mp4_or_mkv(head):
        with open_video(path, known=True, raw=True) as file:
            if (quick := _times(file, path, status.st_size, quick=True)) is not None:
                return quick
    with open_video(path) as file:
        whole = _times(file, path, status.st_size, quick=False)
        assert whole is not None
        return whole


def _times(file: Any, path: bytes, size: int, *, quick: bool) -> Times | None:
    """Return what the packets of one file say. Raises Rejected, or what PyAV raises.

    `quick`: FFmpeg has decoded nothing to find out what pictures are like, and
    packets are raw; None = it has to.
    """
    if file.format.name not in _FORMATS:
        raise Rejected(f"no known video container (read as {file.format.name})")
    videos = [
        stream.index
        for stream in file.streams.video
        if not stream.disposition & Disposition.attached_pic
    ]
    stream = file.streams.best("video")
    if stream is None or stream.index not in videos:
        raise Rejected("has no video")
    context = stream.codec_context
    container = CONTAINERS[_FORMATS[file.format.name]]
    demuxed = _demuxed(file, stream)
    first = next(demuxed, None)
    demuxed = chain([] if first is None else [first], demuxed)
    head = None
    if quick:
        if (
            context is None
            or context.codec.name not in QUICK
            or container not in ("mp4", "mkv")
            or len(videos) > 1
        ):
            return None
        head = None if first is None else _begins(context, memoryview(first))
        if head is None:
            return None
    if (
        context is None
        or context.format is None
        or not (context.width and context.height)
    ):
        raise Rejected("has a video stream of an unknown codec")
    codec = context.codec.canonical_name
    described = _described(file, stream.index)
    rotation = _rotation(described)
    if _TURNED.search(described):
        _require_unmirrored(path, stream.index)
    length_bytes = length_size(context.extradata, codec)
    if (
        codec in ORDERED
        and first is not None
        and is_turned(memoryview(first), codec, length_bytes)
    ):
        raise Rejected(
            f"is to be shown turned, by a message in its {codec}, which no loader does: encode it again: "
            "`ffmpeg -i FILE NEW.mp4`"
        )
    packets, pictures, seen = _packets(demuxed, codec, container, context.extradata)
    if not len(packets):
        raise Rejected("has no frames")
    believed = quick or (codec, container) in BELIEVED
    marked = packets["key"].copy() if believed else _marked(path, stream, container)
    if codec == "hevc" and marked is not None and len(marked) == len(packets):
        # who reads the file does not begin there: nobody corrects what containers say of HEVC
        packets["own"][(packets["own"] == MAY) & ~marked] = NO
    seen |= settle_keys(packets, marked)
    if len(pictures):
        pts, keys, flags = unpacked(packets, pictures)
    else:
        _require_order(packets, path, stream, raw=quick)
        pts, keys, flags = display_order(packets)
        if (
            seen & Flags.GRADUAL_REFRESH
            and packets["own"][packets["key"].argmax()] == MAY
        ):
            # a recording that was cut: no player shows what is only renewed in part
            begun = pts >= _first_shown(path, stream.index)
            pts = pts[begun]
            keys = keys[begun]
    if packets["discard"].any() or (
        container == "mp4" and stream.frames > len(packets)
    ):
        flags |= Flags.EDIT_LIST
    if len(videos) > 1:
        flags |= Flags.SEVERAL_STREAMS
    if stream.sample_aspect_ratio not in (None, 0, 1):
        flags |= Flags.OBLONG_PIXELS
    flags |= seen
    # raw packets have nobody who describes their fields
    if _FIELDS.search(described) or getattr(head, "interlaced_frame", False):
        flags |= Flags.INTERLACED
    if codec == "hevc" and first is not None:
        if may_hide(context.extradata, memoryview(first)):
            raise Rejected(
                "HEVC whose pictures may be hidden (output_flag_present_flag): encode it again"
            )
        if not is_aligned(sides(codec, context.extradata, memoryview(first)).coded):
            flags |= Flags.UNALIGNED
    pixels = (
        "gray" if codec == "h264" and is_grey(context.extradata) else context.pix_fmt
    )
    steps = np.diff(pts)
    tick = stream.time_base
    # each may be rounded to a tick
    if (
        len(pts) > 2
        and np.abs(pts - np.linspace(pts[0], pts[-1], len(pts))).max() > 1.001
    ):
        flags |= Flags.VARIABLE_RATE
    step = (
        float(np.median(steps) if flags & Flags.VARIABLE_RATE else steps.mean())
        if len(steps)
        else 0.0
    )
    height, width = (
        (context.height, context.width)
        if rotation % 180 == 0
        else (context.width, context.height)
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


def _require_order(packets: Array, path: bytes, stream: Any, *, raw: bool) -> None:
    """Raise Rejected where the packets' times are not those of display."""
    context = stream.codec_context
    codec = context.codec.canonical_name
    pieces = list[bytes]()

    def places(begin: int, end: int) -> list[int | None]:
        """Return display_places of these packets; the few files that get here are read again for it."""
        if not pieces:
            length_bytes = length_size(context.extradata, codec)
            with open_video(path, known=True, raw=raw) as file:
                again = _demuxed(file, file.streams[stream.index])
                pieces.extend(
                    up_to_slice(memoryview(packet), codec, length_bytes)
                    for packet in again
                )
        return display_places(
            [pieces[place] for place in packets["place"][begin:end]], stream
        )

    require_order(packets, places if codec in ORDERED else None)
    if (
        codec not in CODECS
        and context.has_b_frames
        and (np.diff(packets["pts"]) > 0).all()
    ):
        raise Rejected(
            f"{codec} that may have B-frames: nothing says when they are displayed"
        )


def _index(names: tuple[str, ...], name: str) -> int:
    return names.index(name if name in names else "other")


def _described(file: Any, stream: int) -> str:
    """Return FFmpeg's description of a stream, which has what PyAV tells of decoded frames alone."""
    # FFmpeg writes the description as log lines of this level
    before = av.logging.get_level()
    av.logging.set_level(av.logging.INFO)
    try:
        described = file.dumps_format()
    finally:
        av.logging.set_level(before)
    return re.split(rf"Stream #0:{stream}\b", described)[-1].partition("Stream #0:")[0]


def _rotation(described: str) -> int:
    """Return 0, 90, 180 or 270 degrees counter-clockwise."""
    match = _TURNED.search(described)
    if match is not None and match[1] != "nan":
        return round(float(match[1]) / 90) * 90 % 360
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
                    if a * d < b * c:  # a negative determinant mirrors
                        raise Rejected(
                            "is to be shown mirrored, by its display matrix, which no loader does: encode it "
                            "again: `ffmpeg -i FILE NEW.mp4`"
                        )
                    return
    raise Rejected(
        "has a display matrix, and no frame that could be decoded tells what it is"
    )


def _first_shown(path: bytes, stream: int) -> int:
    """Return the time of the first frame that the decoder gives."""
    with open_video(path) as file:
        for frame in _first_frames(file, file.streams[stream], hasty=False):
            if frame.pts is not None:
                return int(frame.pts)
    raise Rejected("has no frame that is whole")


def _first_frames(file: Any, stream: Any, *, hasty: bool) -> Iterator[Any]:
    """Yield decoded frames; `hasty`: at most one, of which only the head was decoded.

    That takes 0.7 ms of a core instead of 19 at 1080p.
    """
    for packet in read_packets(file, stream):
        if hasty:
            yield from (
                decode_head(stream.codec_context, memoryview(packet))
                if packet.size
                else ()
            )
            return
        with suppress(av.error.FFmpegError):
            yield from packet.decode()


BELIEVED = {("hevc", "mp4"), ("hevc", "mkv")}
"""Codecs and containers of which FFmpeg takes the container's word for what is a key frame, raw or not."""
QUICK = {"h264", "vp9"}
"""Codecs of which FFmpeg decodes a whole picture to learn what its pixels are like.

Of 1080p that takes 11 to 15 ms of a core.
"""


def _begins(context: Any, packet: memoryview) -> Any:
    """Return the frame that is made of the head of the first packet alone; None: pixels stay unknown.

    Of VP9 it may be True instead, where pixels are known and no frame came. That takes 0.2 to 4 ms at 1080p,
    for the decoder's memory.
    """
    frame = next(
        iter(decode_head(context, packet)), context.codec.name == "vp9" or None
    )
    return None if context.format is None else frame


def _demuxed(file: Any, stream: Any) -> Iterator[Any]:
    """Return an iterator over the stream's packets, without the empty one at the end."""
    for other in file.streams:
        if other.index != stream.index:
            other.discard = Discard.all
    return filter(attrgetter("size"), read_packets(file, stream))


def _marked(path: bytes, stream: Any, container: str) -> Array | None:
    """Return bool for each packet: whether its container says that it is a key frame.

    None: FFmpeg, and who else reads such files, finds out for itself. `stream` was read to its end.
    """
    if container in ("mp4", "avi"):
        return np.array([entry.is_keyframe for entry in stream.index_entries], bool)
    if container != "mkv":
        return None
    with open_video(path, known=True, raw=True) as file:
        return np.array(
            [
                packet.is_keyframe
                for packet in _demuxed(file, file.streams[stream.index])
            ],
            bool,
        )


def _packets(
    demuxed: Iterable[Any], codec: str, container: str, extradata: bytes | None
) -> tuple[Array, Array, Flags]:
    """Return (a PACKET for each packet, pictures, what else they show), in the order of decoding.

    Pictures is empty but for packed MPEG-4: then uint8, 0 to 3 for each I, P, B and S picture. Raises
    Rejected, or what PyAV raises.
    """
    rows: list[tuple[Any, ...]] = []
    pictures = bytearray()
    packed = False
    waiting = False
    flags = Flags(0)
    several = again = False
    damaged = 0
    look = looker(codec, extradata)
    sizes = Sizes(codec, extradata)
    all_say = codec in HEADS
    length_bytes = length_size(extradata, codec)
    vp9 = codec == "vp9"
    mpeg4 = codec == "mpeg4"
    vp8 = codec == "vp8"
    for place, packet in enumerate(demuxed):
        data = memoryview(packet)
        key, moves = look(data)
        if packet.pts is None:
            # Matroska has no times before 0, where HEVC that was cut has frames that cannot be shown
            if len(rows) == 1 and rows[0][4] == MAY:
                continue
            raise Rejected(f"packet {len(rows)} has no time")
        if packet.is_corrupt:
            damaged += 1
            if container not in ("ts", "mpg"):
                raise Rejected(f"cut short or damaged: packet {len(rows)} is not whole")
        if key or all_say or (vp9 and may_say(data)):
            sizes.see(packet, data, len(rows))
        hidden = vp8 and not data[0] >> 4 & 1  # RFC 6386, 9.1
        rows.append(
            (
                packet.pts,
                packet.is_keyframe,
                packet.is_discard,
                hidden,
                -1 if key is None else key,
                moves,
                place,
                packet.is_corrupt,
            )
        )
        if key and codec == "h264" and not flags and not is_whole(data, length_bytes):
            flags |= Flags.GRADUAL_REFRESH
        if vp9:
            if shows_nothing(data):
                raise Rejected(
                    "VP9 with hidden frames in packets of their own: `ffmpeg -i FILE -c copy NEW` brings "
                    "them together"
                )
            several |= holds_several(data)
            again |= shows_again(data)
        if mpeg4:
            kinds = [match[1][0] >> 6 for match in _PICTURE.finditer(packet)]
            if waiting and len(kinds) == 1 and packet.size <= _PLACEHOLDER:
                if (
                    kinds[0] == _B_PICTURE
                ):  # FFmpeg's decoder shows it, and its filter drops it
                    raise Rejected(
                        "packed B-frames as small as the placeholders between them: encode it again: "
                        "`ffmpeg -i FILE NEW.mp4`"
                    )
                waiting = False
                continue
            packed |= len(kinds) > 1
            waiting |= len(kinds) > 1
            pictures.extend(kinds)
    if waiting:  # the last one needs a packet behind it to be decoded
        del pictures[-1:]
    if damaged > MOST_DAMAGED * len(rows):
        raise Rejected(f"damaged: {damaged} of {len(rows)} packets are not whole")
    flags |= Flags(
        several * Flags.HIDDEN_FRAMES
        | again * Flags.SHOWN_AGAIN
        | (damaged > 0) * Flags.DAMAGED
    )
    packets = np.zeros(len(rows), PACKET)
    for name, values in zip(
        PACKET.names or (), zip(*rows, strict=True), strict=False
    ):  # faster than by row
        packets[name] = values
    return packets, np.frombuffer(bytes(pictures) if packed else b"", np.uint8), flags
