"""What the heads of packets say of pictures. tests/unit/test_video_scan.py has whole files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from av.bitstream import BitStreamFilterContext

from dataset.videos.bitstream import (
    is_grey,
    sides,
    slice_type,
    vp9_holds_several,
)
from dataset.videos.container import open_video
from dataset.videos.packets import read
from tests.unit.video_files import make, with_lengths


@pytest.mark.parametrize(
    ("extradata", "grey"),
    [
        ("01640028ffe1000967640028f8", True),  # High, its numbers are 0 and 0
        ("01640028ffe1000967640028a8", False),  # 0 and 1
        ("0142c028ffe100096742c028f8", False),  # Baseline, which does not say
        ("01640028ffe0000967640028f8", False),  # no parameter set
        ("00640028ffe1000967640028f8", False),  # no avcC
        ("01640028ffe1000967640028", False),
        ("", False),
    ],
)
def test_h264_without_chroma(extradata: str, grey: bool) -> None:
    assert is_grey(bytes.fromhex(extradata)) == grey


@pytest.mark.parametrize(
    ("unit", "kind"),
    [("41 e0", 0), ("41 a0", 1), ("65 b0", 2), ("41 88 80", 2), ("06 b0", None)],
)
def test_types_of_slices(unit: str, kind: int | None) -> None:
    """H.264, 7.3.3: two Exp-Golomb numbers, of which the second is the type, with or without 5 more."""
    packet = b"\0\0\0\1" + bytes.fromhex(unit)
    assert slice_type(memoryview(packet), 0) == kind
    assert slice_type(memoryview(with_lengths(packet)), 4) == kind


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize(
    ("size", "unit", "coded"), [((90, 100), 8, (96, 104)), ((96, 128), 32, (96, 128))]
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
        stream = file.streams.video[0]
        head = stream.codec_context.extradata
        extradata = other.streams.video[0].codec_context.extradata
        (packet,) = [packet for packet in file.demux(stream) if packet.size]
        assert sides(codec, head, memoryview(packet)) == expected
        annex_b = BitStreamFilterContext(f"{codec}_mp4toannexb", in_stream=stream)
        (in_band,) = annex_b.filter(packet)
        assert sides(codec, None, memoryview(in_band)) == expected
        # a packet's own parameter sets go before those of the container
        lengths = memoryview(with_lengths(bytes(in_band)))
        assert sides(codec, extradata, lengths) == expected
    assert not any(sides(codec, None, memoryview(b"\0\0\1")).coded)


def test_a_hidden_picture_in_a_packet_of_its_own(tmp_path: Path) -> None:
    """Its packet has a time, but no frame is shown then."""
    path = make(tmp_path / "a.webm", codec="vp9", frames=24)
    with open_video(os.fsencode(path)) as file:
        packet = [bytes(packet) for packet in file.demux(video=0) if packet.size][5]
    shown = read(os.fsencode(path)).pts.tolist()
    path.write_bytes(
        path.read_bytes().replace(packet, bytes([packet[0] & ~2]) + packet[1:])
    )
    assert read(os.fsencode(path)).pts.tolist() == shown[:5] + shown[6:]


@pytest.mark.parametrize(
    ("packet", "several"),
    [
        ("a1a2a3 b1 c9 0300 0100 c9", True),
        ("a1 b1b2 c1 c2 01 02 01 c2", True),
        ("a1a2", False),
        ("c9 0500 0300 00", False),
        ("00 0500 0300 c9", False),  # a last byte by chance
        ("c9", False),  # shorter than its index would be
    ],
)
def test_packets_of_several_pictures(packet: str, several: bool) -> None:
    """VP9, Annex B.2: superframe_index."""
    assert vp9_holds_several(memoryview(bytes.fromhex(packet))) == several
