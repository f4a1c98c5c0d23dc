"""One video file -> the time of each of its frames; must not know folders, clips or pixels.

Packets suffice for the codecs of common data sets, whose key frames FFmpeg's parsers mark; what a container's
header says of its frames is often wrong. Files of other codecs, packed MPEG-4, and files whose
packets contradict their times are decoded once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

import av
import av.logging
import numpy as np
from av.container import InputContainer
from av.stream import Discard, Disposition

from saturate.contracts import Array, counted
from saturate.dataset.scan.byte_ranges import unreadable
from saturate.dataset.scan.manifest import Rejected
from saturate.dataset.videos.bitstream import (
    is_grey,
    is_hevc_key,
    length_size,
    shows_nothing,
    sides,
    slice_type,
    vp9_holds_several,
    vp9_shows_again,
)
from saturate.dataset.videos.columns import (
    CODECS,
    CONTAINERS,
    FULL_RANGE,
    PIXELS,
    RECORD,
    Flags,
)
from saturate.dataset.videos.container import (
    is_key,
    open_video,
    read_packets,
    unpacked,
)
from saturate.dataset.videos.frame_order import (
    MOST_DAMAGED,
    PACKET,
    display_order,
    distinct,
    require_ascending,
    require_onward,
)
from saturate.system import storage

_FORMATS = {
    "mov,mp4,m4a,3gp,3g2,mj2": "mp4",
    "matroska,webm": "mkv",
    "mpegts": "ts",
    "mpeg": "mpg",
    **{name: name for name in CONTAINERS},
}
"""FFmpeg's name of a container -> ours."""
_MPEG4_PICTURE = b"\x00\x00\x01\xb6"
_INTRA = 2  # type of a slice of H.264


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
"""The Times of a file that is left out: the size in its record is -1."""


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
        # once more: read_through has raised if the storage was at fault
        return _read(path)
    except av.error.FFmpegError as error:
        raise Rejected(f"cannot be read: {error.strerror}") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _read(path: bytes) -> Times:
    """Do what `read` does. Raises what PyAV raises too."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise Rejected("no regular file")
    if not status.st_size:
        raise Rejected("empty file")
    with open_video(path) as file:
        return _times(file, path, status.st_size)


def _times(file: Any, path: bytes, size: int) -> Times:
    """Return the Times of an open file of `size` bytes. Raises Rejected, and what PyAV raises."""
    container = _FORMATS.get(file.format.name)
    if container is None:
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
    if (
        context is None
        or context.format is None
        or not (context.width and context.height)
    ):
        raise Rejected("has a video stream of an unknown codec")
    codec = context.codec.canonical_name
    rotation = _rotation(file, path, stream.index)
    packets, flags, first = _packets(file, stream, codec, container)
    if codec not in CODECS or flags & Flags.PACKED_B:
        # nothing else says when these are displayed
        pts, keys, seen = _decoded(path, stream.index, packets, flags)
    else:
        require_onward(packets)
        falls = (np.diff(packets["pts"]) < 0).any()
        # FFmpeg and the packets disagree whether times go back: decode to know
        if context.has_b_frames != falls and not flags & Flags.DAMAGED:
            require_ascending(_in_sequence(path, stream.index, packed=False)[0])
        pts, keys, seen = display_order(packets)
    flags |= seen | _stream_flags(stream, codec, first)
    if packets["discard"].any() or (
        container == "mp4" and stream.frames > len(packets)
    ):
        flags |= Flags.EDIT_LIST
    if len(videos) > 1:
        flags |= Flags.SEVERAL_STREAMS
    pixels = context.pix_fmt
    if codec == "h264" and is_grey(context.extradata):
        pixels = "gray"
    step = float(np.diff(pts).mean()) if len(pts) > 1 else 0.0
    tick = stream.time_base
    height, width = context.height, context.width
    if rotation % 180:
        height, width = width, height
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


def _stream_flags(
    stream: av.VideoStream, codec: str, first: av.Packet[av.VideoStream]
) -> Flags:
    """Return the Flags that a stream's description and its `first` packet tell."""
    context = stream.codec_context
    flags = Flags(0)
    if stream.sample_aspect_ratio not in (None, 0, 1):
        flags |= Flags.OBLONG_PIXELS
    # 0 and 1 are unknown and progressive
    if context.field_order > 1:
        flags |= Flags.INTERLACED
    if codec == "hevc":
        coded = sides(codec, context.extradata, memoryview(first)).coded
        if not all(coded) or any(side % 16 for side in coded):
            flags |= Flags.UNALIGNED
    return flags


def _index(names: tuple[str, ...], name: str) -> int:
    return names.index(name if name in names else "other")


def _rotation(file: Any, path: bytes, stream: int) -> int:
    """Return 0, 90, 180 or 270 degrees counter-clockwise, which a frame's display matrix says.

    PyAV tells it of decoded frames alone. So one is decoded where FFmpeg's description of the file, which
    dumps_format writes at level INFO, has a matrix. Raises Rejected where the matrix mirrors.
    """
    before = av.logging.get_level()
    av.logging.set_level(av.logging.INFO)
    try:
        described = file.dumps_format().lower()
    finally:
        av.logging.set_level(before)
    if "displaymatrix" not in described and "display matrix" not in described:
        return 0
    with open_video(path) as again:
        for frame in _frames(again, again.streams[stream]):
            matrix = frame.side_data.get("DISPLAYMATRIX")
            if matrix is None:
                return 0
            a, b, _, c, d, *_ = np.frombuffer(matrix, np.int32).tolist()
            # a negative determinant mirrors
            if a * d < b * c:
                raise Rejected(
                    "is to be shown mirrored, by its display matrix, which no loader does: encode it "
                    "again: `ffmpeg -i FILE NEW.mp4`"
                )
            turns = round(frame.rotation / 90)
            if abs(frame.rotation - 90 * turns) > 1:
                raise Rejected(
                    f"is to be shown turned by {frame.rotation} degrees, by its display matrix, which no loader "
                    "does: encode it again: `ffmpeg -i FILE NEW.mp4`"
                )
            return turns * 90 % 360
    raise Rejected("has a display matrix, and no frame that can be decoded")


def _demuxed(file: InputContainer, stream: av.VideoStream) -> Iterator[Any]:
    """Return an iterator over the stream's packets, without the empty one at the end."""
    for other in file.streams:
        if other.index != stream.index:
            other.discard = Discard.all
    return filter(attrgetter("size"), read_packets(file, stream))


def _packets(
    file: InputContainer, stream: av.VideoStream, codec: str, container: str
) -> tuple[Array, Flags, Any]:
    """Return (a PACKET for each packet, in the order of decoding; their Flags; the first one)."""
    rows: list[tuple[Any, ...]] = []
    flags = Flags(0)
    extradata = stream.codec_context.extradata
    length_bytes = length_size(extradata, codec)
    first = None
    marked = list[bool]()
    last_key = None
    untimed = 0
    for packet in _demuxed(file, stream):
        data = memoryview(packet)
        first = first or packet
        marked.append(packet.is_keyframe)
        if packet.pts is None:
            # Matroska has no times before 0, where HEVC that was cut has frames that cannot be shown
            untimed += 1
            continue
        if packet.is_corrupt and container not in ("ts", "mpg"):
            raise Rejected(f"cut short or damaged: packet {len(rows)} is not whole")
        key = packet.is_keyframe
        if codec == "h264":
            # a decoder that begins there gives no picture before all parts have come
            if key and slice_type(data, length_bytes) not in (None, _INTRA):
                raise Rejected(
                    "its key frames are renewed part by part: encode it again: "
                    "`ffmpeg -i FILE NEW.mp4`"
                )
        elif codec == "hevc":
            # of HEVC FFmpeg believes the container's mark
            key = is_hevc_key(data, length_bytes)
        elif codec == "vp9":
            if vp9_holds_several(data):
                flags |= Flags.HIDDEN_FRAMES
            if vp9_shows_again(data):
                flags |= Flags.SHOWN_AGAIN
        elif codec == "mpeg4":
            pictures = bytes(data).split(_MPEG4_PICTURE)[1:]
            # and of mp4, too. The first two bits are the picture's type; 0 is intra
            key = bool(pictures) and pictures[0][:1] < b"\x40"
            if len(pictures) > 1:
                flags |= Flags.PACKED_B
        # decord finds a key frame by its time of decoding, and takes the next one
        if key and packet.dts is not None:
            if last_key is not None and last_key >= packet.dts:
                flags |= Flags.WRONG_KEYS
            last_key = packet.pts
        hidden = shows_nothing(codec, data)
        rows.append((packet.pts, key, packet.is_discard, hidden, packet.is_corrupt))
    if not rows:
        raise Rejected("has no frames" if first is None else "its packets have no time")
    packets = np.array(rows, PACKET)
    damaged = int(packets["damaged"].sum()) + untimed
    if damaged > MOST_DAMAGED * len(rows):
        raise Rejected(f"damaged in {damaged} of {len(rows)} packets")
    if damaged:
        flags |= Flags.DAMAGED
    # mp4 and AVI: the index has the container's marks
    if container in ("mp4", "avi"):
        marked = [entry.is_keyframe for entry in stream.index_entries]
    if len(marked) == len(rows) and not np.array_equal(marked, packets["key"]):
        flags |= Flags.WRONG_KEYS
    return packets, flags, first


def _frames(file: InputContainer, stream: Any) -> Iterator[Any]:
    """Yield the frames of a file in sequence, without those that cannot be decoded."""
    for packet in read_packets(file, stream):
        with suppress(av.error.FFmpegError):
            yield from packet.decode()


def _in_sequence(path: bytes, stream: int, *, packed: bool) -> tuple[Array, Array]:
    """Decode a file; return the times of its frames and which are key frames, from the first of those on."""
    with open_video(path) as file:
        source: Any = file.streams[stream]
        frames = unpacked(file, source) if packed else _frames(file, source)
        rows = [(frame.pts, is_key(frame)) for frame in frames]
    if not rows or (any(time is None for time, _ in rows) and not packed):
        raise Rejected("has frames without a time")
    times, keys = zip(*rows, strict=True)
    return np.array(times, np.int64), np.array(keys, bool)


def _decoded(
    path: bytes, stream: int, packets: Array, flags: Flags
) -> tuple[Array, Array, Flags]:
    """Return (pts, keys, flags) of a file that has to be decoded for it."""
    packed = bool(flags & Flags.PACKED_B)
    times, keys = _in_sequence(path, stream, packed=packed)
    marked = np.isin(times, packets["pts"][packets["key"]])
    # FFmpeg's decoder of ffv1 says of every frame that it is one, and Matroska alone which are
    if (keys & marked).any() and not packed:
        keys &= marked
    if not keys.any():
        # some decoders tell of no frame whether it is one: the first is
        keys[0] = True
    if packed:
        # its packets' times are right, but not in their order: the order of its pictures tells a frame's place
        times = np.sort(packets["pts"])
        if len(times) != len(keys) or not keys[0]:
            both = f"{counted(len(keys), 'frame')}, {counted(len(times), 'packet')}"
            raise Rejected(f"packed B-frames: {both}")
        if (np.diff(times) <= 0).any():
            raise Rejected("packed B-frames of which several have one time")
        return times, keys, Flags(0)
    require_ascending(times)
    begin = int(keys.argmax())
    return distinct(times[begin:], keys[begin:])
