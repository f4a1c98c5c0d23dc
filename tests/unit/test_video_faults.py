"""Videos that players show, and whose containers say wrong things of them."""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from saturate.dataset.scan.manifest import Rejected
from saturate.dataset.videos.columns import Flags, Videos
from saturate.dataset.videos.packets import Times, read
from saturate.dataset.videos.scan import open_videos
from saturate.loaders import Undecodable
from saturate.loaders.videos._planes import pixels_of
from saturate.loaders.videos.exact import exact
from saturate.loaders.videos.pyav import Pyav, planes
from tests.unit.clip_kinds import CLAIMED
from tests.unit.test_clip_readers import patterns
from tests.unit.test_video_scan import FLAGS_PLACE, copied, remuxed
from tests.unit.video_files import make, number, with_lengths


def flags(times: Times) -> Flags:
    return Flags(times.record[FLAGS_PLACE])


def in_sequence(path: Path) -> dict[int, set[int]]:
    """Time -> the numbers on the frames that FFmpeg gives with it."""
    shown: dict[int, set[int]] = defaultdict(set)
    with av.open(str(path)) as file:
        stream = file.streams.best("video")
        assert isinstance(stream, av.VideoStream)
        for frame in file.decode(stream):
            shown[frame.pts or 0].add(number(pixels_of(planes(frame, 0))))
    return shown


def scanned(path: Path, cache: Path) -> Videos:
    (cache / "data" / "x").mkdir(parents=True, exist_ok=True)
    (cache / "data" / "x" / path.name).hardlink_to(path)
    return open_videos(cache / "data", cache=cache / "manifests", workers=1)


def compared(path: Path, videos: Videos) -> tuple[int, list[int]]:
    """(frames that are not FFmpeg's at this place, places that cannot be had alone), by pyav."""
    shown = in_sequence(path)
    pts = videos.pts(0).tolist()
    assert pts == sorted(shown)
    count = len(pts)
    wrong = 0
    lost = []
    reader = Pyav(videos)
    for frames in [[place] for place in range(count)] + list(patterns(count)):
        try:
            came = {
                frame: number(pixels_of(picture))
                for frame, picture in reader(0, videos.path(0), frames)
            }
        except Undecodable:
            lost += frames if len(frames) == 1 else []
            continue
        assert sorted(came) == frames
        wrong += sum(each not in shown[pts[frame]] for frame, each in came.items())
    return wrong, lost


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return what makes a file of any kind, once for all of these tests, which only read it."""
    folder = tmp_path_factory.mktemp("coded")

    def once(ending: str = "mkv", **about: Any) -> Path:
        path = folder / f"{zlib.crc32(repr(about).encode())}.{ending}"
        return path if path.exists() else make(path, **about)

    return once


KINDS: dict[str, dict[str, Any]] = {
    "h264": {"b_frames": 2},
    "hevc": {"codec": "hevc", "b_frames": 2},
    "hevc-open": {"codec": "hevc", "b_frames": 3, "open_gop": True},
    "mpeg4": {"codec": "mpeg4"},
    "mpeg4-b": {"codec": "mpeg4", "b_frames": 2},
    "mpeg2": {"codec": "mpeg2video", "b_frames": 2},
    "vp9": {"codec": "vp9"},
}
Coded = Callable[..., Path]


MARKS: dict[str, Callable[[int], bool]] = {
    "all": lambda place: True,
    "first": lambda place: place == 0,
    "fifth": lambda place: place % 5 == 0,
}


def marked(marks: str) -> Callable[[int, Any], Any]:
    def change(place: int, packet: Any) -> Any:
        packet.is_keyframe = MARKS[marks](place)
        return packet

    return change


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("h264", "mp4"),
        ("hevc-open", "mp4"),
        ("hevc", "mkv"),
        ("vp9", "mp4"),
    ],
)
def test_key_frames_are_those_of_the_codec(
    kind: str, ending: str, coded: Coded, tmp_path: Path
) -> None:
    """Containers may mark others. Loaders that would believe them are exact for no such file."""
    right = read(os.fsencode(coded(**KINDS[kind])))
    assert not flags(right) & Flags.WRONG_KEYS
    for marks in MARKS:
        path = tmp_path / f"{marks}.{ending}"
        remuxed(coded(**KINDS[kind]), path, marked(marks))
        times = read(os.fsencode(path))
        assert np.array_equal(times.keys, right.keys)
        # of other codecs in Matroska FFmpeg, and so all of them, finds key frames by itself
        if ending != "mkv" or kind == "hevc":
            assert flags(times) & Flags.WRONG_KEYS
        videos = scanned(path, tmp_path / marks)
        if flags(times) & Flags.WRONG_KEYS:
            assert not any(exact(name, videos)[0] for name in CLAIMED)
        reader = Pyav(videos)
        for frames in patterns(len(times.pts)):
            shown = {
                frame: number(pixels_of(each))
                for frame, each in reader(0, videos.path(0), frames)
            }
            assert shown == {frame: frame for frame in frames}
        list(reader(0, videos.path(0), [35]))
        assert reader.decoded <= 13, "from the key frame before it on"


def shown_late(_: int, packet: Any) -> Any:
    packet.pts = packet.pts * 3 // 2
    return packet


def test_key_frames_that_are_shown_once_the_next_one_is_decoded(
    coded: Coded, tmp_path: Path
) -> None:
    """decord has other frames there, and none of them by another time."""
    path = remuxed(coded(**KINDS["h264"]), tmp_path / "late.mp4", shown_late)
    videos = scanned(path, tmp_path / "late")
    assert not any(exact(name, videos)[0] for name in CLAIMED)
    frames = [*range(25, 40, 2)]
    came = Pyav(videos)(0, videos.path(0), frames)
    assert {frame: number(pixels_of(each)) for frame, each in came} == {
        frame: frame for frame in frames
    }


def with_lengths_of(packet: Any) -> Any:
    new = av.Packet(with_lengths(bytes(packet)))
    for name in ("pts", "dts", "time_base", "duration", "is_keyframe"):
        setattr(new, name, getattr(packet, name))
    return new


def joined(first: Path, second: Path, target: Path) -> Path:
    """The packets of two files as one stream in Matroska, which tells of the first."""
    with av.open(str(target), "w") as new:
        copy: Any = None
        begin = 0
        for path in (first, second):
            with av.open(str(path)) as old:
                stream = old.streams.video[0]
                copy = copy or copied(new, stream)
                packets: list[Any] = [
                    packet for packet in old.demux(stream) if packet.size
                ]
                step = packets[0].duration
                if stream.codec_context.name in ("h264", "hevc"):
                    name = f"{stream.codec_context.name}_mp4toannexb"
                    annex_b = BitStreamFilterContext(name, in_stream=stream)
                    packets = [
                        with_lengths_of(each)
                        for packet in packets
                        for each in annex_b.filter(packet)
                    ]
                for packet in packets:
                    packet.pts += begin
                    if packet.dts is not None:
                        packet.dts += begin
                    packet.stream = copy
                begin += len(packets) * step
                new.mux(packets)
    return target


def transport_packets(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[at : at + 188] for at in range(0, len(content), 188)]


def test_a_lost_transport_packet_loses_clips_and_no_file(tmp_path: Path) -> None:
    packets = transport_packets(make(tmp_path / "whole.ts", b_frames=2, frames=96))
    del packets[len(packets) // 4]
    path = tmp_path / "lost.ts"
    path.write_bytes(b"".join(packets))
    assert flags(read(os.fsencode(path))) & Flags.DAMAGED
    videos = scanned(path, tmp_path / "s")
    wrong, lost = compared(path, videos)
    assert wrong == 0 and 0 < len(lost) <= 12
    assert not any(exact(backend, videos)[0] for backend in CLAIMED)


@pytest.mark.parametrize("kind", ["h264", "mpeg4-b"])
def test_of_frames_with_one_time_one_is_left(
    kind: str, coded: Coded, tmp_path: Path
) -> None:
    def with_the_next_ones_time(place: int, packet: Any) -> Any:
        packet.pts += packet.duration if place == 20 else 0
        return packet

    path = remuxed(coded(**KINDS[kind]), tmp_path / "b.mkv", with_the_next_ones_time)
    assert flags(read(os.fsencode(path))) & Flags.DAMAGED
    assert compared(path, scanned(path, tmp_path / "s")) == (0, [])


def test_files_one_behind_the_other(tmp_path: Path) -> None:
    parts = [
        make(tmp_path / f"{frames}.ts", b_frames=2, frames=frames)
        for frames in (60, 48)
    ]
    both = tmp_path / "both.ts"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.raises(Rejected, match=r"^its times go back at packet 60, "):
        read(os.fsencode(both))


def test_hevc_that_was_cut_at_an_open_group(tmp_path: Path) -> None:
    """Matroska has no times below 0: those of frames that need the group before are none."""
    late: dict[str, Any] = {
        "from_key": 2,
        "cut": 24,
        "muxer": {"avoid_negative_ts": "disabled"},
    }
    path = make(tmp_path / "b.mkv", frames=60, **KINDS["hevc-open"], **late)
    with av.open(str(path)) as file:
        assert any(packet.size and packet.pts is None for packet in file.demux(video=0))
    assert compared(path, scanned(path, tmp_path / "s")) == (0, [])


def test_pixels_that_are_not_square_are_told(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", options={"aspect": "4:3"})
    assert flags(read(os.fsencode(path))) == Flags.OBLONG_PIXELS
    assert flags(
        read(os.fsencode(make(tmp_path / "b.mp4", options={"aspect": "1:1"})))
    ) == Flags(0)


@pytest.mark.parametrize(
    ("codec", "pixels", "ending"),
    [
        ("qtrle", "rgb24", "mov"),
        ("wmv2", "yuv420p", "avi"),
    ],
)
def test_key_frames_of_other_codecs_are_the_decoders(
    codec: str, pixels: str, ending: str, tmp_path: Path
) -> None:
    """Whatever the container marks; some decoders tell of no frame that it is one."""
    whole = make(tmp_path / f"a.{ending}", codec=codec, pixels=pixels, frames=18)
    path = remuxed(whole, tmp_path / f"b.{ending}", marked("all"))
    assert compared(path, scanned(path, tmp_path / "s")) == (0, [])
