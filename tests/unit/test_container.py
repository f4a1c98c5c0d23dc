"""What the head of a video file says of its length."""

from __future__ import annotations

import os
from pathlib import Path

from dataset.videos.container import declared_bytes
from dataset.videos.packets import read
from tests.unit.video_files import make


def test_what_a_container_says_of_its_length(tmp_path: Path) -> None:
    for name, codec in (("a.mkv", "h264"), ("a.webm", "vp9"), ("a.avi", "mpeg4")):
        content = make(tmp_path / name, codec=codec).read_bytes()
        assert declared_bytes(content) == len(content) - 8 * (name == "a.avi"), name
    live = make(tmp_path / "live.mkv", muxer={"live": "1"})
    assert declared_bytes(live.read_bytes()) is None and len(
        read(os.fsencode(live)).pts
    ), "a stream does not know it"
    avi = tmp_path / "a.avi"
    content = avi.read_bytes()
    for length in (0, 0xFFFFFFFF, len(content)):
        avi.write_bytes(content[:4] + length.to_bytes(4, "little") + content[8:])
        assert len(read(os.fsencode(avi)).pts), (
            "not known yet, not known, and of the whole file"
        )
    assert declared_bytes(make(tmp_path / "a.mp4").read_bytes()) is None
