"""Readers of clips: the right frames or none, from every kind of file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from saturate.dataset.videos.scan import open_videos
from saturate.loaders import Undecodable
from saturate.loaders.videos._packets import Packets
from saturate.loaders.videos._planes import pixels_of
from saturate.loaders.videos.dali_video import Cutting
from saturate.loaders.videos.exact import exact
from saturate.loaders.videos.pyav import Pyav, planes
from tests.conformance.fixtures import sample_folder
from tests.unit.clip_kinds import CLAIMED, KINDS, Made, reader
from tests.unit.video_files import number

LEAST = {"pyav": (0, 12), "decord": (12, 7)}
"""Reader -> files of KINDS, and real ones, that it claims at least; of one that is not here: one."""


def patterns(count: int) -> Iterator[list[int]]:
    """Places of frames to ask for: single ones, short runs, wide steps, anything."""
    draws = np.random.default_rng(5)
    yield from ([0], [1], [1, 2], [count - 1], [0, count - 1])
    yield list(range(count - 4, count))
    for begin in draws.integers(0, count - 12, 2).tolist():
        yield [begin]
        yield list(range(begin, begin + 5))
        yield list(range(begin, count, 5))
        yield sorted(set(draws.integers(0, count, 4).tolist()))


def wrong(made: Made, read: Any, sample: int) -> dict[str, int]:
    """What went wrong, counted: frames with another number, and patterns that were refused."""
    found = {"wrong": 0, "refused": 0}
    for frames in patterns(len(made.videos.pts(sample))):
        try:
            came = {
                frame: number(pixels_of(picture))
                for frame, picture in read(sample, made.videos.path(sample), frames)
            }
            assert sorted(came) == frames
            found["wrong"] += sum(
                shown != made.shown(sample, frame) for frame, shown in came.items()
            )
        except Undecodable:
            found["refused"] += 1
    return found


@pytest.mark.parametrize("name", KINDS)
def test_pyav_gives_the_frames_that_were_asked_for(made: Made, name: str) -> None:
    found = wrong(made, Pyav(made.videos), made.names.index(name))
    assert found == {"wrong": 0, "refused": 0}


@pytest.mark.parametrize("backend", CLAIMED)
def test_the_table_is_true(made: Made, backend: str) -> None:
    """What it claims is right, or refused for a reason."""
    read = reader(backend, made.videos)
    claims = exact(backend, made.videos)
    found = {name: wrong(made, read, sample) for sample, name in enumerate(made.names)}
    false = {
        name: found[name]
        for name, claimed in zip(made.names, claims, strict=True)
        if claimed and any(found[name].values())
    }
    assert {name for name in false if found[name]["wrong"]} == set()
    assert set(false) <= {"h264-fragments.mp4", "h264-open-cut.mp4"}
    assert claims.sum() >= LEAST.get(backend, (1, 1))[0]


def with_columns(videos: Any, **changed: Any) -> Any:
    columns = {
        name: getattr(videos, name) for name in dir(videos) if not name.startswith("_")
    }
    return SimpleNamespace(**columns | changed)


@pytest.mark.parametrize("reads", [Packets, Cutting])
def test_packets_of_a_frame_that_is_not_there(made: Made, reads: Any) -> None:
    """A time that no packet has: its frame would be left as it was."""
    sample = made.names.index("h264.mp4")
    pts = made.videos.pts(sample).copy()
    pts[20] += 1
    columns = with_columns(made.videos, pts=lambda _: pts)
    assert reads(columns)(sample, made.videos.path(sample), [18, 19]).data.size
    with pytest.raises(Undecodable, match="1 of 2 frames did not come"):
        reads(columns)(sample, made.videos.path(sample), [19, 20])


@pytest.mark.parametrize("backend", ["pyav", *CLAIMED])
def test_real_files(backend: str, tmp_path: Path) -> None:
    """Random access gives what decoding in sequence gives."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").symlink_to(sample_folder("video_sample"))
    videos = open_videos(tmp_path / "data", cache=tmp_path / "cache", workers=2)
    assert len(videos) == 12
    read, draws, apart = reader(backend, videos), np.random.default_rng(1), {}
    for sample in np.flatnonzero(exact(backend, videos)).tolist():
        count = min(len(videos.pts(sample)), 40)
        frames = sorted(set(draws.integers(0, count, 4).tolist()) | {0, count - 1})
        with av.open(os.fsdecode(videos.path(sample))) as container:
            decoded: Any = container.decode(
                container.streams[int(videos.stream[sample])]
            )
            turns = int(videos.rotation[sample]) // 90
            numbered = zip(range(count), decoded, strict=False)
            sought = [frame for place, frame in numbered if place in frames]
            expected = [pixels_of(planes(frame, turns)) for frame in sought]
        name = os.path.basename(os.fsdecode(videos.path(sample)))
        try:
            found = {
                frame: pixels_of(picture)
                for frame, picture in read(sample, videos.path(sample), frames)
            }
        except Undecodable:
            # in fragments, whose times decord reads wrongly
            assert name == "rotate-buck-bunny.mp4" and backend == "decord"
            continue
        assert sorted(found) == frames
        apart[name] = max(
            float(np.abs(found[frame].astype(int) - pixels).mean())
            for frame, pixels in zip(frames, expected, strict=True)
        )
    assert max(apart.values()) <= (0 if backend == "pyav" else 2.5)
    assert len(apart) >= LEAST.get(backend, (1, 1))[1]
