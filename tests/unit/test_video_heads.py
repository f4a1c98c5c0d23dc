"""What the heads of packets say of pictures. tests/unit/test_video_scan.py has whole files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from av.bitstream import BitStreamFilterContext

from dataset.scan.manifest import Rejected
from dataset.videos import packets
from dataset.videos.bitstream import (
    Sides,
    holds_several,
    is_grey,
    may_hide,
    pictures,
    shows_again,
    shows_nothing,
    sides,
    vp9_size,
)
from dataset.videos.columns import RECORD, Flags
from dataset.videos.container import open_video
from dataset.videos.packets import read
from tests.unit.video_files import make, with_lengths

FLAGS = (RECORD.names or ()).index("flags")


@pytest.mark.parametrize(
    ("extradata", "grey"),
    [
        ("01640028ffe1000967640028f8", True),  # High, its numbers are 0 and 0
        ("01640028ffe1000967640028a8", False),  # 0 and 1
        ("0142c028ffe100096742c028f8", False),  # Baseline, which does not say
        ("01640028ffe0000967640028f8", False),  # no parameter set
        ("00640028ffe1000967640028f8", False),  # no avcC
        ("01640028ffe10009676400", False),
        ("01640028ffe1000967640028", False),
        ("", False),
    ],
)
def test_h264_without_chroma(extradata: str, grey: bool) -> None:
    assert is_grey(bytes.fromhex(extradata)) == grey


def test_hevc_whose_size_is_not_known_is_taken_for_unaligned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a.mp4", codec="hevc")
    monkeypatch.setattr(packets, "sides", lambda *_: Sides((0, 0), (0, 0)))
    assert packets.read(os.fsencode(path)).record[FLAGS] == Flags.UNALIGNED


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize(
    ("size", "unit", "coded"),
    [((90, 100), 8, (96, 104)), ((90, 100), 32, (96, 128)), ((96, 128), 8, (96, 128))],
)
def test_sides_of_pictures(
    codec: str, size: tuple[int, int], unit: int, coded: tuple[int, int], tmp_path: Path
) -> None:
    paths = [
        make(tmp_path / f"{at}.mp4", codec=codec, size=sides, unit=unit, frames=1)
        for at, sides in enumerate([size, (192, 256)])
    ]
    expected = size, coded if codec == "hevc" else (96, 112 if size[1] == 100 else 128)
    with (
        open_video(os.fsencode(paths[0])) as file,
        open_video(os.fsencode(paths[1])) as other,
    ):
        stream, extradata = (
            file.streams.video[0],
            other.streams.video[0].codec_context.extradata,
        )
        head = stream.codec_context.extradata
        assert head is not None and extradata is not None
        (packet,) = [packet for packet in file.demux(stream) if packet.size]
        assert sides(codec, head, memoryview(packet)) == expected
        (in_band,) = BitStreamFilterContext(
            f"{codec}_mp4toannexb", in_stream=stream
        ).filter(packet)
        assert sides(codec, None, memoryview(in_band)) == expected
        lengths = memoryview(with_lengths(bytes(in_band)))
        assert sides(codec, extradata, lengths) == expected
        if codec == "hevc":
            assert sides(codec, head[:22] + b"\0", lengths) == expected, (
                "a head without parameter sets, as hev1 may have"
            )
    assert not any(sides(codec, None, memoryview(b"\0\0\1")).coded)


def test_sizes_that_vp9_says(tmp_path: Path) -> None:
    with open_video(
        os.fsencode(make(tmp_path / "a.webm", codec="vp9", size=(120, 162), frames=24))
    ) as file:
        packets = [packet for packet in file.demux(video=0) if packet.size]
        assert [vp9_size(memoryview(packet)) for packet in packets] == [
            (120, 162) if packet.is_keyframe else None for packet in packets
        ]


SIDES = f"{161:016b}{119:016b}"
SYNC = f"{0x498342:024b}"


@pytest.mark.parametrize(
    ("bits", "size"),
    [
        (
            "10 00 0 0 1 0" + SYNC + "001 0" + SIDES,
            (120, 162),
        ),  # a key frame, in BT.601
        ("10 00 1 010", None),  # one that is shown again
        # from others, of a size of its own
        (
            "10 00 0 1 1 0 00" + "00000001" + "0000 0010 0100" + "000" + SIDES,
            (120, 162),
        ),
        (
            "10 00 0 1 1 1" + "00000001" + "0000 0010 0100" + "000" + SIDES,
            (120, 162),
        ),  # that may be lost
        # that is not shown
        (
            "10 00 0 1 0 0 0 00" + "00000001" + "0000 0010 0100" + "000" + SIDES,
            (120, 162),
        ),
        # as large as the second reference
        ("10 00 0 1 1 0 00" + "00000001" + "0000 0010 0100" + "01" + SIDES, None),
        (
            "10 00 0 1 0 0 1 00" + SYNC + "00000001" + SIDES,
            (120, 162),
        ),  # from no other, not shown
    ],
)
def test_heads_of_vp9(bits: str, size: tuple[int, int] | None) -> None:
    """VP9, 6.2: uncompressed_header."""
    bits = bits.replace(" ", "").ljust(160, "1")
    assert vp9_size(memoryview(int(bits, 2).to_bytes(20, "big"))) == size


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        ("a1a2a3 b1 c9 0300 0100 c9", ["a1a2a3", "b1"]),
        ("a1 b1b2 c1 c2 01 02 01 c2", ["a1", "b1b2", "c1"]),
        ("a1 b1 c2 01 00 01 c2", ["a1", "b1"]),  # one of no bytes
        ("a1a2", ["a1a2"]),
        ("c0 05 c0", ["c005c0"]),
        ("c9 0500 0300 00", ["c90500030000"]),
        ("00 0500 0300 c9", ["0005000300c9"]),  # a last byte by chance
        ("c9", ["c9"]),  # shorter than its index would be
    ],
)
def test_pictures_of_a_packet(packet: str, expected: list[str]) -> None:
    """VP9, Annex B.2: superframe_index."""
    data = memoryview(bytes.fromhex(packet))
    assert [bytes(picture).hex() for picture in pictures(data)] == expected
    assert holds_several(data) == (len(expected) > 1)


@pytest.mark.parametrize(
    ("byte", "again", "nothing"),
    [
        ("1000 1000", True, False),
        ("1010 1111", True, False),
        ("1000 0110", False, False),  # from others, shown
        ("1001 0010", False, False),  # a key frame
        ("1000 0100", False, True),
    ],
)
def test_packets_without_a_picture_that_is_new_and_shown(
    byte: str, again: bool, nothing: bool
) -> None:
    """VP9, 6.2: show_existing_frame behind the frame marker and the profile, show_frame."""
    packet = memoryview(bytes([int(byte.replace(" ", ""), 2)]))
    assert (shows_again(packet), shows_nothing(packet)) == (again, nothing)


def test_a_hidden_picture_in_a_packet_of_its_own(tmp_path: Path) -> None:
    """Its packet has a time, but no frame is shown then."""
    path = make(tmp_path / "a.webm", codec="vp9", frames=24)
    with open_video(os.fsencode(path)) as file:
        packet = [bytes(packet) for packet in file.demux(video=0) if packet.size][5]
    path.write_bytes(
        path.read_bytes().replace(packet, bytes([packet[0] & ~2]) + packet[1:])
    )
    with pytest.raises(Rejected, match="hidden frames in packets of their own"):
        read(os.fsencode(path))


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts"])
def test_hevc_that_may_hide_pictures_is_left_out(ending: str, tmp_path: Path) -> None:
    path = make(tmp_path / f"a.{ending}", codec="hevc", frames=24)
    found = re.compile(rb"\x44\x01([\xc0\xc1])")
    path.write_bytes(
        found.sub(lambda unit: bytes([0x44, 1, unit[1][0] | 0x10]), path.read_bytes())
    )
    with pytest.raises(Rejected, match="may be hidden"):
        read(os.fsencode(path))


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("44 01 d0", True),  # numbers 0 and 0, no dependent slices
        ("44 01 f0", True),  # with them
        ("44 01 c0", False),
        ("44 01 e0", False),
        ("44 01 10 21", True),  # numbers 7 and 7
        ("44 01 10 20", False),
        ("44 09 d0", False),  # of another layer
        ("42 01 d0", False),  # another kind of parameter set
        ("44 01 00", False),  # cut short
        ("44 01", False),
    ],
)
def test_hevc_that_may_hide_pictures(unit: str, expected: bool) -> None:
    """H.265, 7.3.2.3.1, in hvcC, with start codes, and in a packet before its slice."""
    plain, other, slice_ = (
        bytes.fromhex(unit),
        bytes.fromhex("40 01 0c"),
        bytes.fromhex("26 01 af"),
    )
    empty = memoryview(b"")
    sets = [
        bytes([160 + kind]) + b"\0\1" + len(each).to_bytes(2, "big") + each
        for kind, each in ((0, other), (2, plain))
    ]
    assert may_hide(b"\1" + bytes(20) + b"\3\2" + b"".join(sets), empty) == expected
    annex_b = b"".join(b"\0\0\0\1" + each for each in (other, plain, slice_))
    assert may_hide(annex_b, empty) == expected
    assert may_hide(None, memoryview(annex_b)) == expected
    assert (
        may_hide(b"\1" + bytes(20) + b"\3\0", memoryview(with_lengths(annex_b)))
        == expected
    )
    assert not may_hide(b"\1" + bytes(20) + b"\3\xff\xa2\xff\xff", empty), (
        "a head that is cut short"
    )
