"""Small videos for the tests: every frame shows its number, and container, codec and times are as odd as
asked for.

A frame is a grid of 4 x 4 dark and light cells: 12 bits of its number, then 4 bits that check them. So the
number can be read back from the pixels after any coding and at any size; a frame that is mixed of two or
turned has none, but for one in 16 or so.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition
from av.video.reformatter import Interpolation

from saturate.contracts import Array
from tests.own import own_schedule

os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder: errors only
ACCURATE = (
    Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
)
"""By default FFmpeg's RGB is one to two grey levels off."""
GRID = 4
NUMBERS = 1 << 12
ENCODERS = {
    "h264": "libx264",
    "hevc": "libx265",
    "vp9": "libvpx-vp9",
    "av1": "libsvtav1",
    "vp8": "libvpx",
    "mpeg4": "mpeg4",
    "mpeg2video": "mpeg2video",
    "mjpeg": "mjpeg",
}
FAST = {  # options of an encoder, as quick as it goes
    "libx264": {"preset": "veryfast"},
    "libx265": {"preset": "ultrafast"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    # faster ones leave artifacts that hide numbers
    "libsvtav1": {"preset": "8", "crf": "10", "svtav1-params": "enable-tf=0"},
}


@dataclass(frozen=True, kw_only=True)
class Video:
    """What a test video is like. The container is that of the file's ending."""

    frames: int = 40
    codec: str = "h264"  # of ENCODERS, or an encoder's own name
    size: tuple[int, int] = (96, 128)  # height and width as displayed, pixels
    fps: Fraction = Fraction(25)
    ticks: Sequence[
        int
    ] = ()  # for a variable rate: the time of each frame, in 1/90000 s; avi has none
    gop: int = 12  # frames from one key frame to the next
    b_frames: int = 0  # H.264, HEVC, MPEG-4 and MPEG-2
    open_gop: bool = False  # H.264 and HEVC, with b_frames
    refresh: bool = False  # H.264 whose key frames are renewed part by part
    interlaced: bool = False  # H.264 of two fields a frame
    # MPEG-4 with one B-frame in avi: packed into the packet of the frame behind it, as DivX does
    packed: bool = False
    # degrees counter-clockwise that a player turns the stored picture by; mp4
    rotation: int = 0
    mirrored: bool = False  # after that, left and right are swapped; mp4
    # key frames that are left out with all packets before this one, as a copy that is not encoded again does
    from_key: int = 0
    # frames at the start that an edit list hides; they have numbers too, mp4
    cut: int = 0
    # (first frame, frames) of the parts that an edit list shows, in its order; mp4
    parts: Sequence[tuple[int, int]] = ()
    unit: int = 8  # HEVC's smallest coding unit: sides are stored as multiples of it
    layers: int = 0  # HEVC in so many layers of time, with b_frames; 0: not said
    # VP9: frames that a packet of its own shows once more, as libvpx's two passes do with hidden ones
    again: Sequence[int] = ()
    pixels: str = "yuv420p"
    # of the colours, as ITU-T H.273 numbers them: 1 is BT.709's, 2 does not say
    matrix: int = 2
    full_range: bool = False
    numbers_from: int = 0
    # uint8 [H, W, 3] each, in place of numbers; not in the key of MADE
    shown: Sequence[Array] = field(default=(), repr=False)
    # a second video stream, before this one, which players prefer
    other: Video | None = None
    options: dict[str, str] = field(default_factory=dict)  # of the encoder
    muxer: dict[str, str] = field(default_factory=dict)  # options of the container


def picture(number: int, size: tuple[int, int]) -> Array:
    """uint8 [H, W, 3]: the number as cells, in colours that grow to the right and to the bottom."""
    digits = (number >> 8 & 15, number >> 4 & 15, number & 15)
    word = number << 4 | _check(digits)
    bits = np.array(
        [word >> place & 1 for place in reversed(range(GRID * GRID))], bool
    ).reshape(GRID, GRID)
    height, width = size
    rows, columns = np.arange(height) * GRID // height, np.arange(width) * GRID // width
    pixels = (
        np.where(bits[rows][:, columns], 200, 30)
        .astype(np.int64)[..., None]
        .repeat(3, axis=2)
    )
    pixels[..., 0] += np.linspace(-15, 50, width).astype(np.int64)
    pixels[..., 2] += np.linspace(50, -15, height).astype(np.int64)[:, None]
    return pixels.astype(np.uint8)


def number(pixels: Array) -> int:
    """The number that a whole displayed frame, uint8 [H, W] or [H, W, C] of any size, shows; -1 when it shows
    none.
    """
    grey = pixels.reshape(*pixels.shape[:2], -1).mean(axis=2)
    height, width = grey.shape
    word = 0
    for row in range(GRID):
        for column in range(GRID):  # the middle of each cell: its edges are blurred
            top, bottom = (round((row + part) * height / GRID) for part in (0.3, 0.7))
            left, right = (round((column + part) * width / GRID) for part in (0.3, 0.7))
            level = grey[top : max(bottom, top + 1), left : max(right, left + 1)].mean()
            if 100 < level < 145:
                return -1
            word = word << 1 | int(level > 127)
    found = word >> 4
    return (
        found if word & 15 == _check((found >> 8, found >> 4 & 15, found & 15)) else -1
    )


def with_lengths(annex_b: bytes) -> bytes:
    """NAL units behind their lengths, of four bytes, as mp4 and Matroska have them."""
    units = [
        unit.rstrip(b"\0") if place else unit
        for place, unit in enumerate(annex_b.split(b"\0\0\1"))
    ][1:]
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)


def _check(digits: tuple[int, int, int]) -> int:
    return (digits[0] * 7 + digits[1] * 5 + digits[2] * 3 + 9) % 16


def spoiled(content: bytes, begin: float, end: float) -> bytes:
    """Replace that part of the coded frames by zeros, but for the first one, without which no scan passes."""
    at = content.index(b"mdat")
    with av.open(io.BytesIO(content), "r") as file:
        data = at + 4 + next(file.demux(video=0)).size
    size = at + int.from_bytes(content[at - 4 : at], "big") - 4 - data
    first, last = data + int(begin * size), data + int(end * size)
    return content[:first] + bytes(last - first) + content[last:]


MADE: dict[tuple[str, str], bytes] = {}
"""Ending of a file, and its Video in words -> the bytes, which many tests ask for."""


def make(path: Path, video: Video | None = None, **changes: Any) -> Path:
    """Write the file and its folders. `changes` are fields of Video."""
    video = video or Video(**changes)
    path.parent.mkdir(parents=True, exist_ok=True)
    key = path.suffix, repr(video)
    if video.shown:
        _code(path, video)
    elif key in MADE:
        path.write_bytes(MADE[key])
    else:
        _code(path, video)
        MADE[key] = path.read_bytes()
    return path


def _code(path: Path, video: Video) -> None:
    format_name = {".m2ts": "mpegts", ".mpg": "mpeg", ".m4v": "mp4"}.get(path.suffix)
    with (
        own_schedule(),
        av.open(str(path), "w", format=format_name, options=video.muxer) as file,
    ):
        wanted = [each for each in (video.other, video) if each is not None]
        streams = [_stream(file, each) for each in wanted]
        packets = []
        for stream, each in zip(streams, wanted, strict=True):
            stream.disposition = (
                Disposition.default if each is video else Disposition.dub
            )
            coded = list(_encoded(stream, each))
            coded = coded[
                [place for place, packet in enumerate(coded) if packet.is_keyframe][
                    each.from_key
                ] :
            ]
            packets += _packed(coded) if each.packed else _again(coded, each)
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            file.mux(packet)
    if video.parts:
        _show_parts(path, video)


def _show_parts(path: Path, video: Video) -> None:
    """Write another edit list into an mp4 file, whose boxes moov and trak lie behind its samples. ISO/IEC
    14496-12, 8.6.6.
    """
    data = path.read_bytes()
    names = [b"moov", b"trak", b"edts", b"elst"]
    begins = [data.rindex(name) - 4 for name in names]
    assert begins == sorted(begins) and data.rindex(b"mdat") < begins[0]
    (size,), (begin,) = (
        struct.unpack_from(">I", data, begins[-1]),
        struct.unpack_from(">i", data, begins[-1] + 20),
    )
    (timescale,) = struct.unpack_from(">I", data, data.rindex(b"mdhd") + 16)
    entries = [
        (round(1000 * count / video.fps), begin + round(first * timescale / video.fps))
        for first, count in video.parts
    ]
    list_ = struct.pack(">I4sII", 16 + 12 * len(entries), b"elst", 0, len(entries))
    list_ += b"".join(
        struct.pack(">IiI", duration, time, 1 << 16) for duration, time in entries
    )
    changed = bytearray(data[: begins[-1]] + list_ + data[begins[-1] + size :])
    for at in begins[:-1]:
        struct.pack_into(
            ">I", changed, at, struct.unpack_from(">I", data, at)[0] + len(list_) - size
        )
    path.write_bytes(changed)


def _stream(file: Any, video: Video) -> Any:
    encoder = ENCODERS.get(video.codec, video.codec)
    stream = file.add_stream(encoder, rate=video.fps)
    height, width = video.size if video.rotation % 180 == 0 else video.size[::-1]
    stream.height, stream.width, stream.pix_fmt = height, width, video.pixels
    stream.codec_context.time_base = (
        Fraction(1, 90_000) if video.ticks else 1 / video.fps
    )
    stream.codec_context.gop_size = video.gop
    stream.codec_context.colorspace = video.matrix
    if _range(video) == 2:
        stream.codec_context.color_range = 2  # else it is not said
    stream.codec_context.thread_count = 1
    stream.codec_context.bit_rate = (
        2_000_000 if encoder in ("mpeg4", "mpeg2video", "mjpeg", "libvpx") else 0
    )
    options = {**FAST.get(encoder, {}), **video.options}
    if encoder == "libx264":
        options["x264-params"] = (
            f"scenecut=0:bframes={video.b_frames}:b-adapt=0:open-gop={int(video.open_gop)}:keyint={video.gop}"
        )
        options["x264-params"] += (
            f":intra-refresh={int(video.refresh)}:tff={int(video.interlaced)}"
        )
    elif encoder == "libx265":
        params = f"scenecut=0:bframes={video.b_frames}:b-adapt=0:open-gop={int(video.open_gop)}"
        params += f":keyint={video.gop}:min-keyint={video.gop}"
        params += f":min-cu-size={video.unit}"
        params += (
            f":temporal-layers={video.layers}:b-pyramid=1:rc-lookahead=20"
            if video.layers
            else ""
        )
        options["x265-params"] = params + ":pools=none:log-level=none:frame-threads=1"
    elif encoder in ("mpeg4", "mpeg2video"):
        stream.codec_context.max_b_frames = video.b_frames
        options |= {"sc_threshold": "1000000000", "b_strategy": "0"}
    stream.options = options
    if video.rotation or video.mirrored:
        stream.set_display_rotation(video.rotation, hflip=video.mirrored)
    return stream


def _range(video: Video) -> int:
    """Return the range as FFmpeg numbers it."""
    return 2 if video.full_range or video.codec == "mjpeg" else 1


def _encoded(stream: Any, video: Video) -> Any:
    pictures = video.shown or [
        picture((video.numbers_from + place) % NUMBERS, video.size)
        for place in range(video.frames)
    ]
    for place, shown in enumerate(pictures):
        frame = av.VideoFrame.from_ndarray(
            np.ascontiguousarray(np.rot90(shown, -(video.rotation // 90))),
            format="rgb24",
        )
        frame = frame.reformat(
            format=video.pixels,
            dst_color_range=_range(video),
            interpolation=ACCURATE if video.shown else None,
        )
        frame.time_base = stream.codec_context.time_base
        frame.pts = (video.ticks[place] if video.ticks else place) - (
            video.ticks[video.cut] if video.ticks else video.cut
        )
        frame.pts += sum(other < place for other in video.again)
        yield from stream.encode(frame)
    yield from stream.encode(None)


def _again(packets: list[Any], video: Video) -> list[Any]:
    """Those of VP9, and a packet that shows what the decoder keeps in its first place, where libvpx puts the
    last picture (VP9, 7.2).
    """
    made = list[Any]()
    for place, packet in enumerate(packets):
        made.append(packet)
        if place in video.again:
            new = av.Packet(b"\x88")
            new.pts, new.dts = packet.pts + 1, packet.dts + 1
            new.time_base, new.stream = packet.time_base, packet.stream
            made.append(new)
    return made


def _packed(packets: list[Any]) -> list[Any]:
    """MPEG-4 packets I P B P B ... with each B inside the packet before it and a placeholder in its own."""
    told = b"\x00\x00\x01\xb2DivX503b1393p"
    made = []
    for place, packet in enumerate(packets):
        data = bytes(packet)
        following = bytes(packets[place + 1]) if place + 1 < len(packets) else b""
        if _is_b(data):
            data = b"\x00\x00\x01\xb6\x5f\x80"  # P, not coded
        elif _is_b(following):
            data += following
        if place == 0:
            data = told + data
        new = av.Packet(data)
        new.pts = new.dts = packet.dts
        new.time_base, new.stream, new.is_keyframe = (
            packet.time_base,
            packet.stream,
            packet.is_keyframe,
        )
        made.append(new)
    return made


def _is_b(data: bytes) -> bool:
    """Whether the first picture of an MPEG-4 packet is a B-frame: two bits behind its start code."""
    at = data.find(b"\x00\x00\x01\xb6")
    return 0 <= at < len(data) - 4 and data[at + 4] >> 6 == 2
