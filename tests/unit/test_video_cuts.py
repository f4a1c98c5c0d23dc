"""Recordings that were cut, or damaged in one place: what players show is there, and no more is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dataset.videos.packets import read
from tests.unit.test_video_faults import compared, later, scanned, transport_packets
from tests.unit.test_video_scan import remuxed
from tests.unit.video_files import make


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
    packets[half : half + 20 if fault == "twenty lost" else half] = [] if "lost" in fault else [packets[half]]
    path.write_bytes(b"".join(packets))
    assert 80 < len(read(os.fsencode(path)).pts) < 100


@pytest.mark.parametrize("codec", ["mpeg2video", "mpeg4"])
def test_a_doubled_time_among_b_frames(codec: str, tmp_path: Path) -> None:
    whole = make(tmp_path / "a.mkv", codec=codec, b_frames=2)
    path = remuxed(whole, tmp_path / "b.mkv", later(0, lambda place: place == 20))
    wrong, lost = compared(path, scanned(path, tmp_path / "s"))
    assert wrong == 0 and len(lost) == 2
