"""What a scan reads of one video is what a player shows of it: files of every kind, with numbered frames."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from dataset.sources.folder import Folder
from dataset.videos import packets
from dataset.videos.columns import CODECS, CONTAINERS, PIXELS, RECORD, Flags
from dataset.videos.container import open_video
from dataset.videos.packets import Times, read
from dataset.videos.scan import open_videos
from tests.unit.clip_kinds import HIDDEN
from tests.unit.test_headers import SAMPLES
from tests.unit.video_files import ENCODERS, Video, make, number

FLAGS_PLACE = (RECORD.names or ()).index("flags")
STEPS = np.random.default_rng(5).integers(2000, 6000, 40)
TICKS = tuple(np.cumsum(STEPS).tolist())
KINDS: dict[str, tuple[dict[str, Any], Flags]] = {
    "plain.mp4": ({}, Flags(0)),
    "b-frames.mp4": ({"b_frames": 2}, Flags(0)),
    "open-gop.mp4": ({"b_frames": 2, "open_gop": True}, Flags.OPEN_GOP),
    "open-gop-hevc.mkv": ({"codec": "hevc", "b_frames": 2, "open_gop": True}, Flags.OPEN_GOP),
    "hevc.mp4": ({"codec": "hevc", "b_frames": 2}, Flags(0)),
    "vp9.webm": ({"codec": "vp9"}, Flags(0)),
    "hidden.webm": ({"codec": "vp9", "options": HIDDEN}, Flags.HIDDEN_FRAMES),
    "hidden.mp4": ({"codec": "vp9", "options": HIDDEN}, Flags.HIDDEN_FRAMES),
    "again.webm": (
        {"codec": "vp9", "options": HIDDEN, "again": (3, 29)},
        Flags.HIDDEN_FRAMES | Flags.SHOWN_AGAIN,
    ),
    "vp8.webm": ({"codec": "vp8"}, Flags(0)),
    "av1.mp4": ({"codec": "av1"}, Flags(0)),
    "av1.mkv": ({"codec": "av1"}, Flags(0)),
    "mpeg4.mp4": ({"codec": "mpeg4"}, Flags(0)),
    "mpeg4.avi": ({"codec": "mpeg4", "b_frames": 2}, Flags.OPEN_GOP),
    "packed.avi": ({"codec": "mpeg4", "b_frames": 1, "packed": True}, Flags.OPEN_GOP | Flags.PACKED_B),
    "h264.avi": ({}, Flags(0)),
    "mjpeg.avi": ({"codec": "mjpeg", "pixels": "yuvj420p"}, Flags(0)),
    "h264.ts": ({"b_frames": 2}, Flags(0)),
    "hevc.m2ts": ({"codec": "hevc"}, Flags(0)),
    "mpeg2.ts": ({"codec": "mpeg2video", "b_frames": 2}, Flags.OPEN_GOP),
    "h264.flv": ({}, Flags(0)),
    "variable.mp4": ({"ticks": TICKS, "b_frames": 2}, Flags.VARIABLE_RATE),
    "variable.webm": ({"codec": "vp9", "ticks": TICKS}, Flags.VARIABLE_RATE),
    "variable.ts": ({"ticks": TICKS}, Flags.VARIABLE_RATE),
    "ntsc.mkv": ({"fps": Fraction(30_000, 1001)}, Flags(0)),  # times are rounded to milliseconds
    "turned-90.mp4": ({"rotation": 90}, Flags(0)),
    "turned-180.mp4": ({"rotation": 180}, Flags(0)),
    "turned-270.mov": ({"rotation": 270}, Flags(0)),
    "cut.mp4": ({"cut": 7, "b_frames": 2}, Flags.EDIT_LIST),
    "refresh.mp4": ({"refresh": True}, Flags.GRADUAL_REFRESH),
    "refresh.ts": ({"refresh": True}, Flags.GRADUAL_REFRESH),
    "interlaced.mp4": ({"interlaced": True, "b_frames": 2}, Flags.INTERLACED),
    "interlaced.ts": ({"interlaced": True}, Flags.INTERLACED),
    "two.mp4": ({"other": Video(size=(64, 64), numbers_from=1000)}, Flags.SEVERAL_STREAMS),
    "two-one-turned.mp4": (
        {"other": Video(size=(64, 48), numbers_from=1000, rotation=90)},
        Flags.SEVERAL_STREAMS,
    ),
    "ten-bit.mp4": ({"pixels": "yuv420p10le"}, Flags(0)),
    "unaligned.mp4": ({"codec": "hevc", "size": (104, 128)}, Flags.UNALIGNED),
    "unaligned.mkv": ({"codec": "hevc", "size": (96, 120)}, Flags.UNALIGNED),
    "aligned.mp4": ({"codec": "hevc", "size": (104, 120), "unit": 16}, Flags(0)),
    "grey.mp4": ({"pixels": "gray"}, Flags(0)),
    "grey.mkv": ({"pixels": "gray"}, Flags(0)),
    "fragments.mp4": ({"muxer": {"movflags": "frag_keyframe+empty_moov"}}, Flags(0)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


def found(path: Path) -> dict[str, Any]:
    """Fields of RECORD by their names, indices as names."""
    fields: dict[str, Any] = dict(zip(RECORD.names or (), read(os.fsencode(path)).record, strict=True))
    for name, names in (("codec", CODECS), ("container", CONTAINERS), ("pixels", PIXELS)):
        fields[name] = names[fields[name]]
    return fields | {"flags": Flags(fields["flags"])}


def shown(path: Path) -> tuple[list[int], list[int]]:
    """(time, number) of each frame that a player shows, by decoding all of them."""
    with av.open(str(path)) as file:
        stream = file.streams.best("video")
        assert isinstance(stream, av.VideoStream)
        pictures = [
            (frame.pts, np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90))
            for frame in file.decode(stream)
        ]
    return [pts or 0 for pts, _ in pictures], [number(np.asarray(picture)) for _, picture in pictures]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_what_a_player_shows(kind: str, folder: Path) -> None:
    changes, flags = KINDS[kind]
    path, video = make(folder / kind, **changes), Video(**changes)
    times, about = read(os.fsencode(path)), found(path)
    pts, numbers = shown(path)
    assert numbers == sorted([*range(video.cut, video.frames), *video.again])
    assert times.pts.tolist() == (sorted(pts) if flags & Flags.PACKED_B else pts)
    assert (times.pts.dtype, times.keys.dtype, len(times.keys), about["count"]) == (
        np.int64,
        np.bool_,
        len(pts),
        len(pts),
    )
    keys = range(0, video.frames, 1 if video.codec == "mjpeg" else video.gop)
    assert np.flatnonzero(times.keys).tolist() == [numbers.index(key) for key in keys if key >= video.cut]
    assert about["flags"] == flags
    assert (about["height"], about["width"], about["rotation"]) == (*video.size, video.rotation)
    assert (about["codec"], about["size"]) == (video.codec, path.stat().st_size)
    suffixes = {"webm": "mkv", "m2ts": "ts", "mov": "mp4"}
    assert about["container"] == suffixes.get(path.suffix[1:], path.suffix[1:])
    assert (about["pixels"], about["depth"]) == (video.pixels, 10 if "10" in video.pixels else 8)
    assert about["stream"] == (1 if video.other else 0)
    tick = Fraction(about["time_base_num"], about["time_base_den"])
    seconds = [float((value - times.pts[0]) * tick) for value in times.pts.tolist()]
    wanted = (
        [(tick - TICKS[0]) / 90_000 for tick in TICKS]
        if video.ticks
        else [float(i / video.fps) for i in range(len(pts))]
    )
    assert seconds == pytest.approx(wanted, abs=float(tick))
    if video.ticks:
        assert about["fps"] == pytest.approx(90_000 / np.median(np.diff(TICKS)), rel=0.02)
        assert about["duration"] == pytest.approx(wanted[-1] + 1 / about["fps"], abs=0.002)
    else:
        assert about["fps"] == pytest.approx(float(video.fps), rel=1e-3)
        assert about["duration"] == pytest.approx(len(pts) / float(video.fps), rel=1e-3)


LIKE = (
    "b-frames.mp4",
    "ten-bit.mp4",
    "interlaced.mp4",
    "refresh.mp4",
    "turned-90.mp4",
    "cut.mp4",
    "fragments.mp4",
)
QUICK_KINDS: dict[str, dict[str, Any]] = {
    kind: KINDS[kind][0] for kind in (*LIKE, "vp9.webm", "variable.webm")
} | {
    "422.mkv": {"pixels": "yuv422p"},
    "444.mp4": {"pixels": "yuv444p10le"},
    "full-range.mp4": {"pixels": "yuvj420p"},
    "vp9-444.webm": {"codec": "vp9", "pixels": "yuv444p"},
    "repeated.mkv": {"options": {"aud": "1", "slices": "4"}},
    "odd.mp4": {"size": (98, 130)},
}


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_what_pictures_are_like_is_told_by_the_head_of_one(kind: str, folder: Path) -> None:
    """It is what FFmpeg tells, which decodes whole pictures of these to find out."""
    path = folder / kind if (folder / kind).exists() else make(folder / kind, **QUICK_KINDS[kind])
    found = []
    for quick in (True, False):
        with open_video(os.fsencode(path), known=quick) as file:
            found.append(packets._times(file, os.fsencode(path), path.stat().st_size, quick=quick))
    head, whole = found
    assert head is not None and whole is not None
    assert head.record == whole.record
    assert np.array_equal(head.pts, whole.pts) and np.array_equal(head.keys, whole.keys)


def test_start_codes_and_superframes(tmp_path: Path) -> None:
    """H.264 without lengths in front of its units, as AVC-Intra is in mov; VP9 that is cut where a byte looks
    like the end of several.
    """
    with av.open(str(make(tmp_path / "a.ts"))) as file:
        units = bytes(next(file.demux(video=0)))
    context: Any = av.CodecContext.create("h264", "r")
    assert (
        not context.extradata and packets._begins(context, memoryview(units)) and context.pix_fmt == "yuv420p"
    )
    with av.open(str(make(tmp_path / "a.webm", codec="vp9", size=(360, 640)))) as file:
        packet = bytes(next(file.demux(video=0)))
    context = av.CodecContext.create("vp9", "r")
    cut = packet[:1000] + b"\xc9"
    assert packets._begins(context, memoryview(cut)) and context.pix_fmt == "yuv420p"


def test_a_file_that_begins_without_a_picture_is_opened_as_a_whole(tmp_path: Path) -> None:
    path = make(tmp_path / "late.mp4")
    with av.open(str(path)) as file:
        packet = next(file.demux(video=0))
        start, length = packet.pos or 0, packet.size
    content = bytearray(path.read_bytes())
    # one NAL unit of filler, where the first picture was
    content[start + 4 : start + length] = b"\x0c" * (length - 4)
    content[start : start + 4] = (length - 4).to_bytes(4, "big")
    path.write_bytes(content)
    with open_video(os.fsencode(path), known=True) as file:
        assert packets._times(file, os.fsencode(path), len(content), quick=True) is None
    assert found(path)["pixels"] == "yuv420p"


def test_every_encoder_of_the_kinds_is_used() -> None:
    assert {changes.get("codec", "h264") for changes, _ in KINDS.values()} == set(ENCODERS)


def remuxed(source: Path, target: Path, change: Callable[[int, Any], Any]) -> Path:
    """The packets of a file in a new one: those that `change(place, packet)` gives back."""
    with (
        av.open(str(source)) as old,
        av.open(str(target), "w", format={".ts": "mpegts", ".webm": "webm"}.get(target.suffix)) as new,
    ):
        stream = old.streams.video[0]
        copy = new.add_stream_from_template(stream)
        for place, packet in enumerate(packet for packet in old.demux(stream) if packet.size):
            changed = change(place, packet)
            if changed is not None:
                changed.stream = copy
                new.mux(changed)
    return target


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("ending", ["mkv", "mp4"])
@pytest.mark.parametrize("first", [5, 12])
def test_what_a_recording_that_began_too_late_cannot_show_is_not_counted(
    codec: str, ending: str, first: int, tmp_path: Path
) -> None:
    """First: a packet in the middle of a group, and the key frame of an open one with frames before it."""
    whole = make(tmp_path / "whole.mp4", codec=codec, b_frames=2, open_gop=True)
    late = remuxed(
        whole,
        tmp_path / f"late.{ending}",
        lambda place, packet: packet if place >= first - (first == 12) * 2 else None,
    )
    pts, numbers = shown(late)
    assert numbers == list(range(12, 40))
    times = read(os.fsencode(late))
    assert times.pts.tolist() == pts
    assert np.flatnonzero(times.keys).tolist() == [0, 12, 24]


def test_a_vp8_packet_that_shows_nothing_is_no_frame(tmp_path: Path) -> None:
    def hide(place: int, packet: Any) -> Any:
        if place != 20:
            return packet
        hidden = av.Packet(bytes([bytes(packet)[0] & ~16]) + bytes(packet)[1:])
        hidden.pts, hidden.dts, hidden.time_base = packet.pts, packet.dts, packet.time_base
        return hidden

    path = remuxed(make(tmp_path / "all.webm", codec="vp8"), tmp_path / "hidden.webm", hide)
    pts, numbers = shown(path)
    assert numbers == [i for i in range(40) if i != 20]
    assert read(os.fsencode(path)).pts.tolist() == pts


def test_an_edit_list_that_cuts_the_end(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", b_frames=2)
    content = bytearray(path.read_bytes())
    at = content.index(b"elst") + 12  # duration of the first edit, in 1/1000 s: 1.6 s
    assert int.from_bytes(content[at : at + 4], "big") == 1600
    content[at : at + 4] = (800).to_bytes(4, "big")
    path.write_bytes(content)
    pts, numbers = shown(path)
    assert numbers == list(range(20))
    assert read(os.fsencode(path)).pts.tolist() == pts
    assert found(path)["flags"] == Flags.EDIT_LIST


def test_flags_add_up(tmp_path: Path) -> None:
    odd = make(tmp_path / "a.mp4", ticks=TICKS, cut=3, b_frames=2, open_gop=True, other=Video(size=(64, 64)))
    assert (
        found(odd)["flags"] == Flags.VARIABLE_RATE | Flags.EDIT_LIST | Flags.OPEN_GOP | Flags.SEVERAL_STREAMS
    )


def test_one_frame_has_no_rate(tmp_path: Path) -> None:
    about = found(make(tmp_path / "one.mp4", frames=1))
    assert (about["count"], about["fps"], about["duration"], about["flags"]) == (1, 0.0, 0.0, Flags(0))


def test_any_name_that_a_file_can_have(tmp_path: Path) -> None:
    plain = make(tmp_path / "plain.mp4")
    for name in (
        b"caf\xe9.mp4",
        b"two\nlines.mp4",
        b"pipe:0",
        b"http:x.mp4",
        b"file:y",
        b"%d.mp4",
        b"concat:a|b",
    ):
        shutil.copy(plain, os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        assert len(read(os.fsencode(tmp_path) + b"/" + name).pts) == 40


def test_short_videos_are_named(tmp_path: Path) -> None:
    for name, frames in (("long", 9), ("short", 4), ("one", 1)):
        make(tmp_path / "data" / "a" / f"{name}\n.mp4", frames=frames)
    videos = open_videos(tmp_path / "data", cache=tmp_path / "cache", workers=1)
    assert [os.path.basename(videos.path(i)) for i in videos.shorter(5)] == [b"one\n.mp4", b"short\n.mp4"]
    named = Folder(videos).name
    assert videos.name_shorter(1, "short.txt", named) == (0, None)
    count, path = videos.name_shorter(5, "short.txt", named)
    assert count == 2 and path == videos.folder / "short.txt" and not list(videos.folder.glob("short.txt.*"))
    one, short = path.read_text().splitlines()
    assert one.endswith("/a/one\\n.mp4\t1 of 5 frames") and short.endswith("4 of 5 frames")
    count, path = videos.name_shorter(np.array([9.0, 1.0, 4.5]), "short.txt", named)
    assert count == 1 and path is not None and path.read_text().endswith("/a/short\\n.mp4\t4 of 4.5 frames\n")
    assert videos.name_shorter(5, "no/such/folder", named)[0] == 2, "no file, and no failure"
    assert open_videos(tmp_path / "data", cache=tmp_path / "cache", workers=1).folder == videos.folder


# --- real files ---------------------------------------------------------------------------------------------

# frames that decode, flags, displayed height and width, rotation
REAL: dict[str, tuple[int, Flags, tuple[int, int], int]] = {
    "demo.mp4": (280, Flags.OBLONG_PIXELS, (256, 340), 0),
    "test.avi": (164, Flags.PACKED_B, (240, 320), 0),
    "flipping_a_pancake.mkv": (310, Flags(0), (240, 426), 0),
    "video_90.mov": (3, Flags(0), (568, 320), 270),
    "nasa_13013.mp4": (390, Flags.SEVERAL_STREAMS, (270, 480), 0),
    "nasa_13013_hdr.mp4": (325, Flags.UNALIGNED, (180, 320), 0),
    "hevc.ts": (120, Flags.UNALIGNED, (1080, 1920), 0),
    "rotate-buck-bunny.mp4": (45, Flags(0), (1920, 1080), 270),
    "fire2.mp4": (25, Flags.VARIABLE_RATE, (720, 1280), 180),
    "bear-vp9-odd-dimensions.webm": (30, Flags.HIDDEN_FRAMES, (121, 161), 0),
    "sample_av1.mp4": (30, Flags(0), (720, 1080), 0),
    "sample.avi": (96, Flags.VARIABLE_RATE, (400, 960), 0),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    path = SAMPLES / "video_sample" / name
    if not path.exists():
        pytest.skip(f"no real videos in {SAMPLES}; set SATURATE_SAMPLES to a folder that holds video_sample")
    about = found(path)
    assert (about["count"], about["flags"], (about["height"], about["width"]), about["rotation"]) == REAL[
        name
    ]
    times: Times = read(os.fsencode(path))
    assert times.keys[0]
    with av.open(str(path)) as file:
        stream = file.streams[about["stream"]]
        assert isinstance(stream, av.VideoStream)
        decoded = (
            sorted(frame.pts or 0 for frame in file.decode(stream))
            if about["height"] < 700
            else times.pts.tolist()
        )
    assert times.pts.tolist() == decoded
