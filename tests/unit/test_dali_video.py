"""DALI's decoder of clips, on the CPU, where it decodes VP9 alone: the graph, exact frames, pyav for what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Mistake
from dataset.videos import CODECS
from loaders import dali_video, open_loader
from loaders._clips import REFUSED, exact
from loaders._planes import Fitter
from loaders.dali_video import OF_A_SIZE, DaliVideo, Filling, Sizes, Whole, of_safe_sizes
from loaders.pyav import Pyav
from tests.unit.clip_kinds import KINDS, Made
from tests.unit.test_clip_loaders import BATCH, SIZE, T, feed, levels
from tests.unit.video_files import number

CPU = torch.device("cpu")
VP9 = ("vp9.webm", "vp9-variable.webm", "vp9.mp4")
CLAIMED = [
    *("h264.mp4", "h264.mkv", "h264-variable.mp4", "h264-variable.mkv", "h264-fragments.mp4", "h264-every.mp4"),
    *("hevc.mp4", "hevc-variable.mkv", *VP9),
]


def test_the_table(made: Made) -> None:
    claimed = exact("dali-video", made.videos, np.arange(len(made.videos)))
    assert sorted(np.array(made.names)[claimed]) == sorted(CLAIMED)


@pytest.mark.parametrize("name", VP9)
def test_windows_of_the_frames_that_were_asked_for(made: Made, name: str) -> None:
    """In any order and more than once; resized as pyav's are, to a grey level or so, also at a region's border."""
    sample, frames = made.names.index(name), [30, 3, 3, 47, 0]
    source = SimpleNamespace(check=lambda sample, size: None)
    fill = Filling(made.videos, CPU, 0, lambda clip: clip)
    height, width = int(made.videos.height[sample]), int(made.videos.width[sample])
    rows: Any = SimpleNamespace(
        ids=np.full(3, sample),
        frames=np.tile(frames, (3, 1)),
        regions=np.array([[0, 0, width, height], [8, 6, 100, 90], [8, 6, 100, 90]]),
        windows=np.array([[0.0, 0, width, height], [3.2, 4.7, 80.1, 77.7], [0.0, 0.0, 60.0, 84.0]]),
        sizes=np.array([[height, width], [48, 56], [40, 40]]),
        flips=np.array([False, True, False]),
    )
    out = torch.zeros((3, len(frames), height, width, 3))
    fill(Whole(source)(sample, made.videos.path(sample), frames), rows, np.arange(3), out)
    assert [number(frame.numpy()) for frame in out[0]] == frames
    for place in range(3):
        size = tuple(rows.sizes[place].tolist())
        for frame, picture in Pyav(made.videos)(sample, made.videos.path(sample), sorted(set(frames))):
            expected = np.empty((*size, 3), np.uint8)
            Fitter(picture, rows.regions[place], rows.windows[place], size, bool(rows.flips[place])).fill(expected, picture)
            found = out[place, frames.index(frame), : size[0], : size[1]].numpy()
            assert np.abs(found - expected).mean() < 1.5
    fill.close()


def test_every_clip_of_every_kind(made: Made) -> None:
    """What DALI refuses here pyav decodes in its place; what it is not exact for goes to the workers."""
    given = feed(made.videos)
    loading = DaliVideo(given)
    with loading:
        for batch, rows in zip(loading.batches(0, 0), given.plan.rows(0, 0), strict=True):
            assert batch.failed == () and batch.images.shape == (BATCH, 3, T, SIZE, SIZE)
            for place in np.flatnonzero(rows.valid).tolist():
                assert rows.frames is not None
                upright = levels(batch.images)[place][:, :, :: -1 if rows.flips[place] else 1]
                assert [number(frame) for frame in upright] == [made.shown(int(rows.ids[place]), f) for f in rows.frames[place].tolist()]
        assert loading.counts.fallbacks["h264 in mp4, refused"] >= 2 and loading.counts.fallbacks["h264 in mp4, edit list"] == 4
        assert not any("vp9" in words and "odd" not in words and "refused" in words for words in loading.counts.fallbacks)
        assert set(loading.counts.refusals) == {sort for sort in loading.counts.fallbacks if sort.endswith(REFUSED)}
        assert "Failed to create video decoder" in loading.counts.refusals["h264 in mp4" + REFUSED]


@pytest.mark.parametrize(
    ("codec", "size", "stored", "other"),
    [
        ("h264", (1080, 1920), (1088, 1920), (1104, 1920)),
        ("h264", (720, 1280), (736, 1280), (752, 1280)),
        ("h264", (40, 60), (48, 64), (80, 64)),
        ("hevc", (168, 250), (168, 256), (168, 264)),
        ("hevc", (168, 248), (176, 256), (168, 264)),
        ("hevc", (168, 248), (192, 256), (168, 264)),
        ("vp9", (130, 130), (192, 192), (130, 200)),
    ],
)
def test_sizes_that_dali_takes_for_each_other(codec: str, size: tuple[int, int], stored: tuple[int, int], other: tuple[int, int]) -> None:
    """A decoder made for files that show `stored` would be taken for those of `size`, which may be stored so. The first one stays."""
    for first, second in ((size, stored), (stored, size)):
        sizes = Sizes(codec)
        assert sizes.take(first) and not sizes.take(second)
        assert sizes.take(first) and sizes.take(other) and not sizes.take(second)


def test_h264_is_stored_in_units_of_16() -> None:
    """So these may lie beside each other, as the widths of a set with short sides of 256 do."""
    sizes, short = Sizes("h264"), 256
    taken = [sizes.take((short, width)) for width in range(320, 642, 2)]
    assert taken[:2] == [True, True] and sum(taken) >= 140
    assert [width for width, good in zip(range(320, 642, 2), taken, strict=True) if not good] == list(range(336, 642, 16))


def test_files_that_dali_takes_for_each_other() -> None:
    """Those of most files are decoded by DALI, at the same number the larger ones; of another codec they harm nobody."""
    h264, hevc = CODECS.index("h264"), CODECS.index("hevc")
    kinds = {(h264, 40, 60): 2, (h264, 48, 64): 2, (h264, 270, 480): 3, (h264, 272, 480): 1, (hevc, 40, 60): 1}
    codec, height, width = np.array([kind for kind, count in kinds.items() for _ in range(count)]).T
    columns, able = SimpleNamespace(codec=codec, height=height, width=width), np.ones(len(codec), bool)
    sizes: dict[int, Sizes] = {}
    assert of_safe_sizes(columns, able, sizes).tolist() == [False] * 2 + [True] * 2 + [True] * 3 + [False] + [True]
    others = SimpleNamespace(codec=np.full(4, h264), height=np.array([272, 270, 48, 40]), width=np.array([480, 480, 64, 60]))
    able = np.array([True, True, True, False])
    assert of_safe_sizes(others, able, sizes).tolist() == [False, True, True, False], "as another loader of this process has begun"
    assert not of_safe_sizes(others, np.zeros(4, bool), sizes).any()


@pytest.mark.parametrize("workers", [0, 2])
def test_files_left_out_for_their_size(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named as such, and pyav decodes them."""
    kinds = Made(tmp_path, dict.fromkeys(("a.webm", "b.webm", "c.webm"), KINDS["vp9.webm"]) | {"d.ts": KINDS["h264.ts"]})
    kept = kinds.names.index("b.webm")
    monkeypatch.setattr(dali_video, "of_safe_sizes", lambda columns, able, sizes: able & (np.arange(len(able)) == kept))
    given = replace(feed(kinds.videos), workers=workers)
    monkeypatch.setattr(dali_video, "on_gpu", lambda device: True)
    loading = DaliVideo(given)
    with loading:
        assert len(loading.notes) == 2 and sum(line.startswith("2 of 4 videos are vp9 in mkv" + OF_A_SIZE) for line in loading.notes) == 1
        for batch, rows in zip(loading.batches(0, 0), given.plan.rows(0, 0), strict=True):
            assert batch.failed == () and rows.frames is not None
            for place in np.flatnonzero(rows.valid).tolist():
                upright = levels(batch.images)[place][:, :, :: -1 if rows.flips[place] else 1]
                assert [number(frame) for frame in upright] == rows.frames[place].tolist()
        assert loading.counts.fallbacks == {"vp9 in mkv" + OF_A_SIZE: 4, "h264 in ts": 2} and not loading.counts.refusals


def test_a_file_that_is_gone_is_the_users_mistake(tmp_path: Path) -> None:
    kinds = Made(tmp_path, {"vp9.webm": KINDS["vp9.webm"], "other.webm": KINDS["vp9.webm"]})
    Path(kinds.videos.path(1).decode()).unlink()
    with DaliVideo(feed(kinds.videos)) as loading, pytest.raises(Mistake, match="is gone"):
        list(loading.batches(0, 0))


def test_without_a_gpu(made: Made) -> None:
    with pytest.raises(Mistake, match="dali-video needs an NVIDIA GPU"):
        open_loader("dali-video", feed(made.videos))
