"""The video task: labels of clips, and figures of videos that depend on no order and no rank."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch
from saturate.settings.config import build
from saturate.tasks import kind_of
from saturate.tasks.classification import IGNORE
from saturate.tasks.kind import Opening
from saturate.tasks.video import KIND, LARGEST_LOGIT, Video
from tests.unit.test_classification import rows
from tests.unit.test_meter import alone, on_ranks
from tests.unit.test_splits import Console
from tests.unit.video_files import make, number

CPU = torch.device("cpu")
VIDEOS, VIEWS, CLASSES = 8, 3, 7
LABELS = np.array([3, 0, 2, 1, 3, 6, 5, 0], np.int32)


def batch_of(videos: Any, valid: Any = None) -> Batch:
    """Make a batch as a loader does: -1 for padding; a failed view keeps its video."""
    ids = np.asarray(videos, np.int64)
    known = torch.from_numpy(ids >= 0)
    valid = known if valid is None else known & torch.as_tensor(valid)
    return Batch(
        images=torch.zeros(len(ids), 3, 1, 1, 1),
        sizes=torch.ones(len(ids), 2, dtype=torch.int64),
        targets={
            "labels": torch.where(
                valid, torch.from_numpy(LABELS[ids].astype(np.int64)), IGNORE
            ),
            "videos": torch.from_numpy(ids),
        },
        valid=valid,
        ids=ids,
    )


def measured(
    *batches: tuple[torch.Tensor, Batch], world: Any = None
) -> dict[str, float]:
    metric = Video(LABELS).metric(CPU)
    for logits, batch in batches:
        metric.update(logits, batch)
    found = metric.result(world or alone())
    assert isinstance(found, dict)
    return {name: value for name, value in found.items() if name != "extras"}


def epoch(seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """(logits of all views of all videos, which video each is of): in double precision, since sums of a few
    single ones are exact there.
    """
    logits = 3 * torch.randn(
        VIDEOS * VIEWS,
        CLASSES,
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )
    return logits, np.repeat(np.arange(VIDEOS), VIEWS)


def test_labels_and_videos_of_the_rows() -> None:
    found = Video(LABELS).targets(rows([4, 4, 1, -1]))
    assert {name: value.tolist() for name, value in found.items()} == {
        "labels": [3, 3, 0, IGNORE],
        "videos": [4, 4, 1, -1],
    }
    assert {value.dtype for value in found.values()} == {np.dtype(np.int64)}


def test_failed_views_and_videos() -> None:
    logits, videos = epoch()
    valid = ~np.isin(
        np.arange(len(videos)), [0, 7, *range(9, 12)]
    )  # one of video 0, one of 2, all of 3
    kept = np.flatnonzero(valid)
    logits[0] = math.nan  # what a network makes of a black clip does not matter
    found = measured((logits, batch_of(videos, valid)))
    assert found == measured((logits[kept], batch_of(videos[kept])))
    assert (found["samples"], found["views"], found["losses_not_finite"]) == (
        VIDEOS - 1,
        len(kept),
        0,
    )


@pytest.mark.parametrize(
    "values",
    [(math.nan,), (math.inf, -math.inf), (math.nan, -math.inf, 2 * LARGEST_LOGIT)],
)
def test_a_video_of_which_a_view_is_no_number_is_wrong_and_counted(
    values: tuple[float, ...],
) -> None:
    logits, videos = epoch()
    others = measured((logits[VIEWS:], batch_of(videos[VIEWS:])))
    assert set(videos[:VIEWS]) == {0} and 0 not in videos[VIEWS:]
    logits[:VIEWS] = torch.eye(CLASSES)[LABELS[0]]  # right, but for what follows
    assert measured((logits, batch_of(videos)))["top1"] == pytest.approx(
        (others["top1"] * (VIDEOS - 1) + 1) / VIDEOS
    )
    for view, value in enumerate(values):
        logits[view, LABELS[0]] = value
    found = measured((logits, batch_of(videos)))
    assert found["samples"] == VIDEOS and found["outputs_not_finite"] == 1
    assert found["top1"] == pytest.approx(others["top1"] * (VIDEOS - 1) / VIDEOS)
    assert found["top5"] == pytest.approx(others["top5"] * (VIDEOS - 1) / VIDEOS)
    assert (found["loss"], found["losses_not_finite"]) == (others["loss"], len(values))


def test_some_ranks_may_have_no_view() -> None:
    whole = epoch()[0], batch_of(epoch()[1])
    found = on_ranks(
        3, lambda world: measured(*[whole] * (world.rank == 1), world=world)
    )
    assert found == [measured(whole)] * 3
    assert measured()["samples"] == 0 == measured()["views"]


def test_a_picture_of_a_video_is_a_strip_of_its_frames(tmp_path: Path) -> None:
    """Four of ten, from the first to the last; one of two frames shows each twice."""
    videos = {"train/run/long.mp4": 10, "val/run/short.mp4": 2}
    for name, frames in videos.items():
        make(tmp_path / name, frames=frames, size=(64, 64))
    shown = []
    console: Any = Console()
    where = {"data": tmp_path, "manifest_dir": tmp_path.parent / "cache"}
    config = build({"task": "video", "clip_frames": 2, "clip_stride": 9, **where})
    splits = kind_of(config).splits(Opening.from_config(config, "pyav", console))
    # two frames, nine apart, are of ten
    (said,) = (line for line in console.warnings if "a clip is longer" in line)
    assert said.startswith("val: a clip is longer than 1 of 1 videos")
    for split in splits.values():
        strip = np.asarray(KIND.strip(split)(0))
        shown.append([number(frame) for frame in np.hsplit(strip, len(strip[0]) // 64)])
    assert shown == [[0, 3, 6, 9], [0, 0, 1, 1]]
