"""DALI's decoder of clips, on the CPU, where it decodes VP9 alone: the graph, exact frames, pyav for what it refuses."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Mistake
from loaders import open_loader
from loaders._clips import REFUSED, exact
from loaders._planes import Fitter
from loaders.dali_video import DaliVideo, Filling, Sizes, apart
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
    fill = Filling(made.videos, source, CPU, 0, lambda clip: clip)
    height, width = int(made.videos.height[sample]), int(made.videos.width[sample])
    rows: Any = SimpleNamespace(
        frames=np.tile(frames, (3, 1)),
        regions=np.array([[0, 0, width, height], [8, 6, 100, 90], [8, 6, 100, 90]]),
        windows=np.array([[0.0, 0, width, height], [3.2, 4.7, 80.1, 77.7], [0.0, 0.0, 60.0, 84.0]]),
        sizes=np.array([[height, width], [48, 56], [40, 40]]),
        flips=np.array([False, True, False]),
    )
    out = torch.zeros((3, len(frames), height, width, 3))
    fill(sample, made.videos.path(sample), rows, np.arange(3), out)
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
        assert loading.fallbacks["h264 in mp4, refused"] >= 2 and loading.fallbacks["h264 in mp4, edit list"] == 2
        assert not any("vp9" in words and "odd" not in words and "refused" in words for words in loading.fallbacks)
        assert set(loading.refusals) == {sort for sort in loading.fallbacks if sort.endswith(REFUSED)}
        assert "Failed to create video decoder" in loading.refusals["h264 in mp4" + REFUSED]


@pytest.mark.parametrize("padded", [(1088, 1920), (1080, 1920)])
def test_sizes_that_dali_takes_for_each_other(padded: tuple[int, int]) -> None:
    """1080 rows are stored as 1088: a decoder made for files that show 1088 would be taken for them. Whichever came first stays."""
    sizes = Sizes()
    assert sizes.take(padded) and sizes.take((720, 1280)) and sizes.take((1080, 1440))
    assert not sizes.take((1088, 1920) if padded == (1080, 1920) else (1080, 1920))
    assert sizes.take(padded) and sizes.take((1096, 1920)), "which is stored as 1104 or more"
    assert not sizes.take((52, 72)) or not sizes.take((64, 80)), "some codecs store in units of 64"


def test_files_that_dali_takes_for_each_other() -> None:
    """Those of most files are decoded by DALI, at the same number the larger ones; of another codec they harm nobody."""
    kinds = {(0, 40, 60): 2, (0, 48, 64): 2, (0, 270, 480): 3, (0, 272, 480): 1, (1, 40, 60): 1}
    codec, height, width = np.array([kind for kind, count in kinds.items() for _ in range(count)]).T
    columns, able = SimpleNamespace(codec=codec, height=height, width=width), np.ones(len(codec), bool)
    sizes: defaultdict[int, Sizes] = defaultdict(Sizes)
    assert apart(columns, able, sizes).tolist() == [False] * 2 + [True] * 2 + [True] * 3 + [False] + [True]
    others = SimpleNamespace(codec=codec[:4], height=np.array([272, 270, 48, 40]), width=np.array([480, 480, 64, 60]))
    able = np.array([True, True, True, False])
    assert apart(others, able, sizes).tolist() == [False, True, True, False], "as another loader of this process has begun"
    assert not apart(others, np.zeros(4, bool), sizes).any()


def test_a_file_that_is_gone_is_the_users_mistake(tmp_path: Path) -> None:
    kinds = Made(tmp_path, {"vp9.webm": KINDS["vp9.webm"], "other.webm": KINDS["vp9.webm"]})
    Path(kinds.videos.path(1).decode()).unlink()
    with DaliVideo(feed(kinds.videos)) as loading, pytest.raises(Mistake, match="is gone"):
        list(loading.batches(0, 0))


def test_without_a_gpu(made: Made) -> None:
    with pytest.raises(Mistake, match="dali-video needs an NVIDIA GPU"):
        open_loader("dali-video", feed(made.videos))
