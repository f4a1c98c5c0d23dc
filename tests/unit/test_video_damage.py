"""A scan says why it leaves out what is no video, or a damaged one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saturate.dataset.scan.manifest import Rejected
from saturate.dataset.videos.columns import RECORD
from saturate.dataset.videos.packets import read
from tests.unit.clip_kinds import Made
from tests.unit.test_video_scan import remuxed
from tests.unit.video_files import make


def damaged(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Name -> (content, why it is rejected)."""
    plain = make(folder / "d.mp4").read_bytes()
    fast = make(folder / "f.mp4", muxer={"movflags": "faststart"}).read_bytes()
    mirrored = make(folder / "r.mp4", mirrored=True).read_bytes()
    turned = make(folder / "t.mp4", rotation=30, size=(96, 96)).read_bytes()
    sound = folder / "sound.mp4"
    with av.open(str(sound), "w") as file:
        stream = file.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
        )
        frame.rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return {
        "empty": (b"", "empty file"),
        "page.mp4": (b"<html>", "cannot be read: Invalid data"),
        "cut.mp4": (plain[: len(plain) // 2], "cannot be read: Invalid data"),
        "cut-fast.mp4": (fast[: len(fast) * 7 // 10], "cut short or damaged"),
        "sound.mp4": (sound.read_bytes(), "has no video"),
        "b-frames.avi": (
            make(folder / "b.avi", b_frames=2).read_bytes(),
            "not those of display",
        ),
        "refresh.mkv": (
            make(folder / "p.mkv", refresh=True).read_bytes(),
            "renewed part by part",
        ),
        "mirrored.mp4": (mirrored, "is to be shown mirrored"),
        "turned.mp4": (turned, "is to be shown turned by (29|30) degrees"),
    }


def test_what_is_no_video_says_why(tmp_path: Path) -> None:
    for name, (content, why) in damaged(tmp_path / "made").items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(Rejected, match=why):
            read(os.fsencode(tmp_path / name))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    others = {
        "pipe": "no regular file",
        "link": "broken link",
        "gone": "No such file",
        ".": "no regular file",
    }
    for name, why in others.items():
        with pytest.raises(Rejected, match=why):
            read(os.fsencode(tmp_path / name))


def test_a_video_without_a_key_frame_shows_nothing(tmp_path: Path) -> None:
    path = remuxed(
        make(tmp_path / "a.mkv", gop=60),
        tmp_path / "b.mkv",
        lambda place, packet: packet if place else None,
    )
    with pytest.raises(Rejected, match="has no key frame"):
        read(os.fsencode(path))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_of_any_kind_is_rejected_or_read(
    data: Any, made: Made, tmp_path: Path
) -> None:
    """Never another exception, and never columns that contradict each other."""
    kinds = [
        "h264.mp4",
        "h264-fragments.mp4",
        "hevc-open.mp4",
        "mpeg4-packed.avi",
        "h264.ts",
    ]
    path = made.folder / data.draw(st.sampled_from(kinds))
    content = bytearray(path.read_bytes())
    for at, byte in data.draw(
        st.lists(
            st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=8
        )
    ):
        content[at] = byte
    bad = tmp_path / f"bad{path.suffix}"
    bad.write_bytes(
        content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    )
    try:
        times = read(os.fsencode(bad))
    except Rejected:
        return
    assert len(times.pts) == len(times.keys) == times.record[-1] > 0
    assert (np.diff(times.pts) > 0).all()
    assert np.array([times.record], RECORD)["size"][0] == len(bad.read_bytes())
