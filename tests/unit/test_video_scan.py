"""What a scan reads of one video is what a player shows of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from saturate.dataset.videos.columns import CODECS, CONTAINERS, PIXELS, RECORD, Flags
from saturate.dataset.videos.packets import read
from tests.own import own_schedule
from tests.unit.clip_kinds import FRAMES, KINDS, STEPS, Made
from tests.unit.video_files import Video, make, number

FLAGS_PLACE = (RECORD.names or ()).index("flags")
MORE: dict[str, dict[str, Any]] = {
    "h264-interlaced.ts": {"interlaced": True},
    "h264-ntsc.mkv": {
        "fps": Fraction(30_000, 1001)
    },  # times are rounded to milliseconds
    "h264-two-turned.mp4": {
        "other": Video(size=(64, 48), numbers_from=1000, rotation=90)
    },
    "h264-444.mp4": {"pixels": "yuv444p10le"},
    "h264-odd.mp4": {"size": (98, 130)},
    "hevc.m2ts": {"codec": "hevc"},
    "hevc-unaligned.mkv": {"codec": "hevc", "size": (96, 120)},
}
"""Files beside those of tests.unit.clip_kinds, and what they are."""
FLAGS = {
    "-open": Flags.OPEN_GOP,
    "mpeg4-b.": Flags.OPEN_GOP,
    "mpeg2": Flags.OPEN_GOP,
    "packed": Flags.PACKED_B,
    "hidden": Flags.HIDDEN_FRAMES,
    "again": Flags.HIDDEN_FRAMES | Flags.SHOWN_AGAIN,
    "-cut": Flags.EDIT_LIST,
    "-parts": Flags.EDIT_LIST,
    "-interlaced": Flags.INTERLACED,
    "-two": Flags.SEVERAL_STREAMS,
    "-unaligned": Flags.UNALIGNED,
}
"""Part of a file's name -> what the scan must say of it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


def found(path: Path) -> dict[str, Any]:
    """Fields of RECORD by their names, indices as names."""
    fields: dict[str, Any] = dict(
        zip(RECORD.names or (), read(os.fsencode(path)).record, strict=True)
    )
    for name, names in (
        ("codec", CODECS),
        ("container", CONTAINERS),
        ("pixels", PIXELS),
    ):
        fields[name] = names[fields[name]]
    return fields | {"flags": Flags(fields["flags"])}


def shown(path: Path) -> tuple[list[int], list[int]]:
    """(time, number) of each frame that a player shows, by decoding all of them."""
    with av.open(str(path)) as file:
        stream = file.streams.best("video")
        assert isinstance(stream, av.VideoStream)
        pictures = [
            (
                frame.pts,
                np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90),
            )
            for frame in file.decode(stream)
        ]
    return [pts or 0 for pts, _ in pictures], [
        number(np.asarray(picture)) for _, picture in pictures
    ]


@pytest.mark.parametrize("kind", [*KINDS, *MORE])
def test_what_is_read_is_what_a_player_shows(
    kind: str, made: Made, folder: Path
) -> None:
    video = Video(**{"frames": FRAMES, **KINDS[kind]} if kind in KINDS else MORE[kind])
    path = made.folder / kind if kind in KINDS else make(folder / kind, video)
    flags = reduce(or_, (its for part, its in FLAGS.items() if part in kind), Flags(0))
    times, about = read(os.fsencode(path)), found(path)
    pts, numbers = shown(path)
    parts = [
        number for first, count in video.parts for number in range(first, first + count)
    ]
    assert numbers == (parts or sorted([*range(video.cut, video.frames), *video.again]))
    assert times.pts.tolist() == (sorted(pts) if flags & Flags.PACKED_B else pts)
    assert (times.pts.dtype, times.keys.dtype) == (np.int64, np.bool_)
    assert len(times.keys) == about["count"] == len(pts)
    keys = {*range(0, video.frames, 1 if video.codec == "mjpeg" else video.gop)}
    if video.codec.startswith("mpeg") and video.b_frames:
        keys.add(video.frames - 1)  # these encoders end a group early
    assert np.flatnonzero(times.keys).tolist() == sorted(
        numbers.index(key) for key in keys & {*numbers}
    )
    assert about["flags"] == flags
    assert (about["height"], about["width"], about["rotation"]) == (
        *video.size,
        video.rotation,
    )
    codec = video.codec if video.codec in CODECS else "other"
    assert (about["codec"], about["size"]) == (codec, path.stat().st_size)
    suffixes = {"webm": "mkv", "m2ts": "ts", "mov": "mp4"}
    assert about["container"] == suffixes.get(path.suffix[1:], path.suffix[1:])
    pixels = "yuvj420p" if video.full_range and video.codec != "vp9" else video.pixels
    assert (about["pixels"], about["depth"]) == (pixels, 10 if "10" in pixels else 8)
    assert about["stream"] == (1 if video.other else 0)
    assert about["matrix"] in (
        video.matrix,
        5 if video.codec == "mjpeg" else video.matrix,
    )
    tick = Fraction(about["time_base_num"], about["time_base_den"])
    seconds = [float((value - times.pts[0]) * tick) for value in times.pts.tolist()]
    wanted = [float(i / video.fps) for i in range(len(pts))]
    if video.ticks:
        wanted = [(tick - STEPS[0]) / 90_000 for tick in STEPS]
    assert seconds == pytest.approx(wanted, abs=float(tick))
    fps = (len(pts) - 1) / wanted[-1]
    assert about["fps"] == pytest.approx(fps, rel=2e-3)
    assert about["duration"] == pytest.approx(len(pts) / fps, rel=2e-3)


def copied(file: Any, stream: Any) -> Any:
    """Return a new stream of a file, for packets of this one."""
    if stream.codec_context.name != "libdav1d":  # FFmpeg's name of a decoder alone
        return file.add_stream_from_template(stream)
    copy = file.add_stream("libsvtav1", rate=25)
    copy.height, copy.width, copy.pix_fmt = stream.height, stream.width, "yuv420p"
    return copy


def remuxed(
    source: Path,
    target: Path,
    change: Callable[[int, Any], Any],
) -> Path:
    """The packets of a file in a new one: those that `change(place, packet)` gives back."""
    with (
        own_schedule(),
        av.open(str(source)) as old,
        av.open(str(target), "w") as new,
    ):
        stream = old.streams.video[0]
        copy = copied(new, stream)
        for place, packet in enumerate(
            packet for packet in old.demux(stream) if packet.size
        ):
            changed = change(place, packet)
            if changed is not None:
                changed.stream = copy
                new.mux(changed)
    return target


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("ending", ["mkv", "mp4"])
def test_what_a_recording_that_began_too_late_cannot_show_is_not_counted(
    codec: str, ending: str, tmp_path: Path
) -> None:
    """It begins in the middle of a group, or at the key frame of an open one with frames before it."""
    whole = make(tmp_path / "whole.mp4", codec=codec, b_frames=2, open_gop=True)
    for first in (5, 10):
        late = remuxed(
            whole,
            tmp_path / f"late.{ending}",
            lambda at, packet: packet if at >= first else None,  # noqa: B023
        )
        pts, numbers = shown(late)
        assert numbers == list(range(12, 40))
        times = read(os.fsencode(late))
        assert times.pts.tolist() == pts
        assert np.flatnonzero(times.keys).tolist() == [0, 12, 24]


@pytest.mark.parametrize(("codec", "shown_bit"), [("vp8", 16), ("vp9", 2)])
def test_a_packet_that_shows_nothing_is_no_frame(
    codec: str, shown_bit: int, tmp_path: Path
) -> None:
    def hide(place: int, packet: Any) -> Any:
        if place != 20:
            return packet
        content = bytes(packet)
        hidden = av.Packet(bytes([content[0] & ~shown_bit]) + content[1:])
        for name in ("pts", "dts", "time_base"):
            setattr(hidden, name, getattr(packet, name))
        return hidden

    whole = make(tmp_path / "all.webm", codec=codec)
    pts = read(os.fsencode(whole)).pts.tolist()
    path = remuxed(whole, tmp_path / "hidden.webm", hide)
    assert read(os.fsencode(path)).pts.tolist() == pts[:20] + pts[21:]


# frames that decode, flags, displayed height and width, rotation
