"""Videos that players show, and whose containers say wrong things of them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from contracts import Array
from dataset.scan.manifest import Rejected
from dataset.videos.columns import Flags, Videos
from dataset.videos.nal_units import is_turned
from dataset.videos.packets import Times, _packets, read
from dataset.videos.scan import open_videos
from loaders import Undecodable
from loaders.videos.exact import exact, notes
from loaders.videos.pyav import Pyav, planes
from tests.unit.clip_kinds import CLAIMED
from tests.unit.test_clip_readers import patterns, upright
from tests.unit.test_video_scan import FLAGS_PLACE, copied, remuxed
from tests.unit.video_files import make, number, with_lengths


def rejected(path: Path) -> str:
    with pytest.raises(Rejected) as caught:
        read(os.fsencode(path))
    return str(caught.value)


def flags(times: Times) -> Flags:
    return Flags(times.record[FLAGS_PLACE])


def in_sequence(path: Path) -> list[Array]:
    """uint8 [H, W, 3] of each frame that FFmpeg gives."""
    with av.open(str(path)) as file:
        stream = file.streams.best("video")
        assert isinstance(stream, av.VideoStream)
        return [upright(planes(frame, 0)) for frame in file.decode(stream)]


def scanned(path: Path, cache: Path) -> Videos:
    (cache / "data" / "x").mkdir(parents=True, exist_ok=True)
    (cache / "data" / "x" / path.name).hardlink_to(path)
    return open_videos(cache / "data", cache=cache / "manifests", workers=1)


def compared(path: Path, videos: Videos) -> tuple[int, list[int]]:
    """(frames that are not FFmpeg's at this place, places that cannot be had alone), by pyav."""
    numbers = [number(picture) for picture in in_sequence(path)]
    count = len(videos.pts(0))
    assert count == len(numbers)
    wrong = 0
    lost = []
    reader = Pyav(videos)
    for frames in [[place] for place in range(count)] + list(patterns(count)):
        try:
            came = {
                frame: number(upright(picture))
                for frame, picture in reader(0, videos.path(0), frames)
            }
        except Undecodable:
            lost += frames if len(frames) == 1 else []
            continue
        assert sorted(came) == frames
        wrong += sum(shown != numbers[frame] for frame, shown in came.items())
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
    "h264-open": {"b_frames": 2, "open_gop": True},
    "h264-pyramid": {"b_frames": 4, "options": {"preset": "medium"}},
    "h264-one-group": {"b_frames": 2, "gop": 250},
    "hevc": {"codec": "hevc", "b_frames": 2},
    "hevc-open": {"codec": "hevc", "b_frames": 3, "open_gop": True},
    "mpeg4": {"codec": "mpeg4"},
    "mpeg4-b": {"codec": "mpeg4", "b_frames": 2},
    "mpeg2": {"codec": "mpeg2video", "b_frames": 2},
    "vp9": {"codec": "vp9"},
    "vp8": {"codec": "vp8"},
    "av1": {"codec": "av1"},
}
Coded = Callable[..., Path]


def as_decoded(place: int, packet: Any) -> Any:
    """Give the packet the time that avi has for it, and that a copy into another container keeps."""
    packet.pts = packet.dts = place * packet.duration
    return packet


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        *(
            (kind, ending)
            for kind in ("h264", "h264-pyramid", "hevc-open")
            for ending in ("mp4", "mkv", "ts")
        ),
        *(
            ("h264", "flv"),
            ("h264-open", "mkv"),
            ("h264-one-group", "mp4"),
            ("hevc", "mkv"),
        ),
        *(("mpeg4-b", "mp4"), ("mpeg4-b", "mkv"), ("mpeg2", "ts"), ("mpeg2", "mp4")),
    ],
)
def test_times_in_the_order_of_decoding_are_none_of_display(
    kind: str, ending: str, coded: Coded, tmp_path: Path
) -> None:
    whole = coded(**KINDS[kind])
    right = remuxed(whole, tmp_path / f"right.{ending}", lambda place, packet: packet)
    assert len(read(os.fsencode(right)).pts) == 40
    said = rejected(remuxed(whole, tmp_path / f"wrong.{ending}", as_decoded))
    assert said.startswith(
        "its times are those of decoding, not of display, at packets 0 to "
    )
    assert "`ffmpeg -i FILE -vf setpts=N/FR/TB NEW.mp4`" in said


def test_some_times_that_are_wrong(coded: Coded, tmp_path: Path) -> None:
    for about, change, said in (
        (
            {"b_frames": 2},
            lambda at, packet: as_decoded(at, packet) if at >= 24 else packet,
            "24 to 35:",
        ),
        (
            {},
            later(130, lambda place: place == 15),
            "not in the order of display at packets 12 to 23",
        ),
    ):
        assert said in rejected(remuxed(coded(**about), tmp_path / "b.mkv", change))


def later(ticks: int, which: Callable[[int], bool]) -> Callable[[int, Any], Any]:
    """Return what adds so much to the times of these packets; 0: the duration of each."""

    def change(place: int, packet: Any) -> Any:
        packet.pts += (ticks or packet.duration) if which(place) else 0
        return packet

    return change


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


FRAGMENTS = {"movflags": "frag_every_frame+empty_moov"}


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        *(
            (kind, ending)
            for kind in ("h264", "h264-open", "hevc", "mpeg4-b")
            for ending in ("mp4", "mkv")
        ),
        *(
            ("h264", "fragments"),
            ("hevc", "fragments"),
            ("vp9", "mp4"),
            ("vp8", "mkv"),
            ("av1", "mkv"),
        ),
        *(("mpeg4", "mp4"), ("mpeg4", "avi"), ("mpeg4-b", "avi"), ("mpeg2", "mkv")),
    ],
)
def test_key_frames_are_those_of_the_codec(
    kind: str, ending: str, marks: str, coded: Coded, tmp_path: Path
) -> None:
    right = read(os.fsencode(coded(**KINDS[kind])))
    path = tmp_path / f"wrong.{'mp4' if ending == 'fragments' else ending}"
    remuxed(
        coded(**KINDS[kind]),
        path,
        marked(marks),
        FRAGMENTS if ending == "fragments" else {},
    )
    times = read(os.fsencode(path))
    recovery_points = (
        marks == "first" and kind == "h264-open"
    )  # containers need not mark them
    assert not flags(right) & Flags.WRONG_KEYS
    assert bool(flags(times) & Flags.WRONG_KEYS) != recovery_points
    assert np.array_equal(times.keys, right.keys)
    videos = scanned(path, tmp_path / "s")
    assert recovery_points or not any(
        exact(backend, videos, np.arange(1))[0] for backend in CLAIMED
    )
    reader = Pyav(videos)
    for frames in patterns(len(times.pts)):
        shown = {
            frame: number(upright(each))
            for frame, each in reader(0, videos.path(0), frames)
        }
        assert shown == {frame: frame for frame in frames}
    reader.decoded = 0
    list(reader(0, videos.path(0), [35]))
    assert reader.decoded <= 13, "from the key frame before it on"


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_open_groups_of_hevc_are_begun_where_the_container_says_so(
    ending: str, coded: Coded, tmp_path: Path
) -> None:
    """It need not say so, and nobody who reads the file would begin there."""
    whole = coded(**KINDS["hevc-open"])
    for change, keys, shown in (
        (marked("first"), [0], Flags(0)),
        (lambda place, packet: packet, [0, 12, 24, 36], Flags.OPEN_GOP),
    ):
        times = read(os.fsencode(remuxed(whole, tmp_path / f"a.{ending}", change)))
        assert (np.flatnonzero(times.keys).tolist(), flags(times)) == (keys, shown)


def with_lengths_of(packet: Any) -> Any:
    new = av.Packet(with_lengths(bytes(packet)))
    for name in ("pts", "dts", "time_base", "duration", "is_keyframe"):
        setattr(new, name, getattr(packet, name))
    return new


def joined(first: Path, second: Path, target: Path) -> Path:
    """The packets of two files as one stream, which tells of the first."""
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
                if stream.codec_context.name in ("h264", "hevc"):
                    name = f"{stream.codec_context.name}_mp4toannexb"
                    annex_b = BitStreamFilterContext(name, in_stream=stream)
                    packets = [
                        each for packet in packets for each in annex_b.filter(packet)
                    ]
                    packets = [
                        with_lengths_of(each) if target.suffix == ".mkv" else each
                        for each in packets
                    ]
                step = packets[0].duration
                for packet in packets:
                    packet.pts += begin
                    packet.dts = (
                        packet.dts if packet.dts is None else packet.dts + begin
                    )
                    packet.stream = copy
                begin += len(packets) * step
                new.mux(packets)
    return target


PIXELS = {
    "mjpeg": "yuvj420p",
    "prores_ks": "yuv422p10le",
    "png": "rgb24",
    "jpeg2000": "rgb24",
}


@pytest.mark.parametrize(
    ("codec", "ending"),
    [
        *(("h264", "ts"), ("hevc", "ts"), ("vp9", "mkv"), ("vp8", "mkv")),
        *(("av1", "mkv"), ("mpeg4", "avi"), ("mpeg2video", "ts"), ("mjpeg", "avi")),
        *(("prores_ks", "mov"), ("png", "avi"), ("jpeg2000", "mkv")),
    ],
)
def test_pictures_that_change_their_size_are_left_out(
    codec: str, ending: str, coded: Coded, tmp_path: Path
) -> None:
    about: dict[str, Any] = {
        "codec": codec,
        "frames": 24,
        "ending": "avi" if ending == "avi" else "mkv",
    }
    about["pixels"] = PIXELS.get(codec, "yuv420p")
    first, smaller = coded(**about), coded(size=(64, 96), **about)
    said = rejected(joined(first, smaller, tmp_path / f"changes.{ending}"))
    assert said.startswith("its pictures change their size at packet 24: ")
    assert (
        len(read(os.fsencode(joined(first, first, tmp_path / f"stays.{ending}"))).pts)
        == 48
    )


def test_parameters_that_change_and_leave_the_size_as_it_was(tmp_path: Path) -> None:
    first = make(tmp_path / "a.mkv", frames=24)
    other = make(
        tmp_path / "b.mkv",
        frames=24,
        b_frames=0,
        options={"level": "40"},
        full_range=True,
    )
    assert len(read(os.fsencode(joined(first, other, tmp_path / "c.ts"))).pts) == 48


def transport_packets(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[at : at + 188] for at in range(0, len(content), 188)]


def noisy(path: Path, frames: int = 90) -> Path:
    """H.264 whose pictures have several references, in open groups."""
    draws = np.random.default_rng(3)
    still = draws.integers(0, 256, (120, 160, 3), np.uint8)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        stream.options = {"x264-params": "open-gop=1:bframes=3:keyint=15:threads=1"}
        for place in range(frames):
            pixels = np.roll(still, 3 * place, axis=1) // 2 + draws.integers(
                0, 60, still.shape, np.uint8
            )
            file.mux(
                stream.encode(
                    av.VideoFrame.from_ndarray(pixels.astype(np.uint8), format="rgb24")
                )
            )
        file.mux(stream.encode(None))
    return path


def test_a_recording_that_begins_at_a_recovery_point_is_whole(tmp_path: Path) -> None:
    packets = transport_packets(noisy(tmp_path / "whole.ts"))
    refused = 0
    for share in (3, 4, 5, 6, 7):
        path = tmp_path / f"late-{share}.ts"
        path.write_bytes(b"".join(packets[len(packets) // share :]))
        pictures = in_sequence(path)
        videos = scanned(path, tmp_path / f"s{share}")
        count = len(videos.pts(0))
        assert count == len(pictures) > 40
        refused += needs_lenience(path)
        for frames in [[place] for place in range(30)] + list(patterns(count)):
            for frame, picture in Pyav(videos)(0, videos.path(0), frames):
                assert np.array_equal(upright(picture), pictures[frame])
    assert refused, "one at least, or this test shows nothing"


def needs_lenience(path: Path) -> bool:
    """Whether FFmpeg, asked to be strict, calls a picture behind the first key frame damaged."""
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        stream.codec_context.options = {"err_detect": "explode"}
        begun = False
        for packet in file.demux(stream):
            begun = begun or packet.is_keyframe
            try:
                if begun:
                    packet.decode()
            except av.error.InvalidDataError:
                return True
    return False


@pytest.mark.parametrize("place", [0.25, 0.75])
def test_a_lost_transport_packet_loses_clips_and_no_file(
    place: float, tmp_path: Path
) -> None:
    packets = transport_packets(make(tmp_path / "whole.ts", b_frames=2, frames=96))
    del packets[int(len(packets) * place)]
    path = tmp_path / "lost.ts"
    path.write_bytes(b"".join(packets))
    assert flags(read(os.fsencode(path))) & Flags.DAMAGED
    videos = scanned(path, tmp_path / "s")
    wrong, lost = compared(path, videos)
    assert wrong == 0 and 0 < len(lost) <= 12
    assert not any(exact(backend, videos, np.arange(1))[0] for backend in CLAIMED)


def test_many_lost_packets_lose_the_file(tmp_path: Path) -> None:
    packets = transport_packets(make(tmp_path / "whole.ts", b_frames=2, frames=48))
    (tmp_path / "lost.ts").write_bytes(
        b"".join(each for at, each in enumerate(packets) if at % 9 or at < 9)
    )
    assert "packets are not whole" in rejected(tmp_path / "lost.ts")


@pytest.mark.parametrize("kind", ["h264", "mpeg4", "vp9"])
def test_a_doubled_time_loses_its_frames_and_no_others(
    kind: str, coded: Coded, tmp_path: Path
) -> None:
    path = remuxed(
        coded(**KINDS[kind]), tmp_path / "b.mkv", later(0, lambda place: place == 20)
    )
    times = read(os.fsencode(path))
    assert flags(times) & Flags.DAMAGED and (np.diff(times.pts) > 0).all()
    wrong, lost = compared(path, scanned(path, tmp_path / "s"))
    assert wrong == 0 and len(lost) == 2


def test_many_doubled_times_lose_the_file(coded: Coded, tmp_path: Path) -> None:
    path = remuxed(coded(), tmp_path / "b.mkv", later(0, lambda place: place % 4 == 2))
    assert "10 of 40 frames have the time of another" in rejected(path)


def test_files_one_behind_the_other(tmp_path: Path) -> None:
    parts = [
        make(tmp_path / f"{frames}.ts", b_frames=2, frames=frames)
        for frames in (60, 48)
    ]
    for order in (parts, parts[::-1]):
        (tmp_path / "both.ts").write_bytes(
            b"".join(part.read_bytes() for part in order)
        )
        said = rejected(tmp_path / "both.ts")
        assert said.startswith(
            f"its times go back at packet {60 if order is parts else 48}, "
        )
        assert "`ffmpeg -i FILE -c copy NEW.mp4`" in said


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


def with_message(path: Path, orientation: str) -> Path:
    """H.264 whose units say how it is to be shown."""
    with (
        av.open(str(make(path.parent / "whole.mp4", frames=24))) as old,
        av.open(str(path), "w") as new,
    ):
        stream = old.streams.video[0]
        copy = new.add_stream_from_template(stream)
        name = (
            f"h264_mp4toannexb,h264_metadata=display_orientation=insert:{orientation}"
        )
        insert = BitStreamFilterContext(name, in_stream=stream, out_stream=copy)
        for packet in old.demux(stream):
            for each in insert.filter(packet if packet.size else None):
                each.stream = copy
                new.mux(each)
    return path


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts"])
def test_pictures_that_a_message_turns_are_left_out(
    ending: str, tmp_path: Path
) -> None:
    for orientation in ("rotate=90", "flip=horizontal", "rotate=180:flip=vertical"):
        said = rejected(with_message(tmp_path / f"a.{ending}", orientation))
        assert said.startswith("is to be shown turned, by a message in its h264")
    nothing = with_message(tmp_path / f"a.{ending}", "rotate=0")
    assert ending == "ts" or len(read(os.fsencode(nothing)).pts) == 24


@pytest.mark.parametrize(
    ("body", "turned"),
    [("08000060", True), ("20000060", True), ("00000060", False), ("a0000060", False)],
    ids=["a quarter", "a flip", "nothing", "cancelled"],
)
def test_a_message_of_hevc(body: str, turned: bool) -> None:
    """H.265, D.2.17, in a unit of its own before the slice."""
    unit = bytes.fromhex("4e01" + "0501ff" + "2f04" + body + "80")
    packet = b"\0\0\0\1" + unit + b"\0\0\1\x26\1\xaf\0\0"
    assert is_turned(memoryview(packet), "hevc", 0) == turned
    assert is_turned(memoryview(with_lengths(packet)), "hevc", 4) == turned


def test_pixels_that_are_not_square_are_told(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", options={"aspect": "4:3"})
    assert flags(read(os.fsencode(path))) == Flags.OBLONG_PIXELS
    assert flags(
        read(os.fsencode(make(tmp_path / "b.mp4", options={"aspect": "1:1"})))
    ) == Flags(0)
    videos = scanned(path, tmp_path / "s")
    assert exact("decord", videos, np.arange(1)).all(), (
        "all readers take pictures as they are stored"
    )
    (said,) = notes("decord", videos, np.ones(1, bool))
    assert said.startswith(
        "1 of 1 videos have pixels that are not square: trained on as stored"
    )


@pytest.mark.parametrize(
    ("kind", "size", "frames"), [("P", 7, 3), ("B", 30, 4), ("B", 14, 0)]
)
def test_a_placeholder_in_packed_mpeg4_is_no_b_frame(
    kind: str, size: int, frames: int
) -> None:
    """FFmpeg's filter drops B-frames of a few bytes, and the frames behind it would be those of others."""

    def vop(kind: str, size: int = 40) -> bytes:
        return b"\0\0\1\xb6" + bytes(["IPB".index(kind) << 6 | 1]) + b"\1" * (size - 5)

    packets: list[Any] = [
        av.Packet(each)
        for each in (vop("I"), vop("P") + vop("B"), vop(kind, size), vop("P", 7))
    ]
    for place, packet in enumerate(packets):
        packet.pts = place
    packets = packets[: 4 if kind == "B" else 3]
    if not frames:
        with pytest.raises(Rejected, match="as small as the placeholders"):
            _packets(packets, "mpeg4", "avi", None)
    else:
        assert len(_packets(packets, "mpeg4", "avi", None)[1]) == frames


def test_a_recording_that_begins_with_pictures_renewed_in_part(tmp_path: Path) -> None:
    """No player shows them, before all parts have come."""
    packets = transport_packets(make(tmp_path / "whole.ts", refresh=True, frames=60))
    path = tmp_path / "cut.ts"
    path.write_bytes(b"".join(packets[len(packets) // 3 :]))
    assert compared(path, scanned(path, tmp_path / "s")) == (0, [])


@pytest.mark.parametrize("fault", ["twenty lost", "one doubled"])
def test_damage_of_mpeg2_loses_clips_and_no_file(fault: str, tmp_path: Path) -> None:
    path = make(tmp_path / "whole.ts", codec="mpeg2video", b_frames=2, frames=96)
    packets = transport_packets(path)
    half = len(packets) // 2
    packets[half : half + 20 if fault == "twenty lost" else half] = (
        [] if "lost" in fault else [packets[half]]
    )
    path.write_bytes(b"".join(packets))
    assert 80 < len(read(os.fsencode(path)).pts) < 100


@pytest.mark.parametrize("codec", ["mpeg2video", "mpeg4"])
def test_a_doubled_time_among_b_frames(codec: str, tmp_path: Path) -> None:
    whole = make(tmp_path / "a.mkv", codec=codec, b_frames=2)
    path = remuxed(whole, tmp_path / "b.mkv", later(0, lambda place: place == 20))
    wrong, lost = compared(path, scanned(path, tmp_path / "s"))
    assert wrong == 0 and len(lost) == 2


@pytest.mark.parametrize(
    ("codec", "pixels", "ending"),
    [
        ("msvideo1", "rgb555le", "avi"),
        ("qtrle", "rgb24", "mov"),
        ("flashsv", "bgr24", "flv"),
    ],
)
def test_key_frames_that_no_decoder_confirms(
    codec: str, pixels: str, ending: str, tmp_path: Path
) -> None:
    whole = make(tmp_path / f"a.{ending}", codec=codec, pixels=pixels, frames=18)
    path = remuxed(whole, tmp_path / f"b.{ending}", marked("all"))
    assert compared(path, scanned(path, tmp_path / "s")) == (0, [])
