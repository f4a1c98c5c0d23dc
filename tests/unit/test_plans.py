"""tasks/_plans.py: the two plans of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from config import Config, parse
from contracts import UserError
from plan.clips import ClipPlan, ClipPolicy
from plan.images import ImagePlan, ImagePolicy
from tasks._plans import pair

POLICY = ImagePolicy(window="center", image_size=8, resize=9)
ALONE: dict[str, int] = {"seed": 0, "world_size": 1, "rank": 0}


class Columns:
    def __init__(self, count: int) -> None:
        self.height = self.width = np.full(count, 10)

    def __len__(self) -> int:
        return len(self.height)


def columns(count: int) -> Any:
    return SimpleNamespace(columns=Columns(count))


def config(*flags: str) -> Config:
    return parse(["--loader", "synthetic", *flags])


@pytest.mark.parametrize(
    ("flags", "ranks", "size"),
    [
        (["--batch-size", "8"], 1, 8),
        (["--batch-size", "8", "--val-batch-size", "3"], 1, 3),
        (["--batch-size", "8", "--val-batch-size", "20"], 1, 20),
        (["--batch-size", "8", "--val-batch-size", "9000"], 1, 30),
        (["--batch-size", "8", "--val-batch-size", "9000"], 2, 15),
        # as in training, so that nothing is compiled for another shape
        (["--batch-size", "64", "--val-batch-size", "9000"], 2, 64),
        (["--batch-size", "64"], 1, 64),
    ],
)
def test_a_validation_batch_is_no_larger_than_the_set(flags: list[str], ranks: int, size: int) -> None:
    splits: dict[str, Any] = {"train": columns(200), "val": columns(30)}
    seen: list[int] = []
    for rank in range(ranks):
        train, val = pair(
            ImagePlan.of, config(*flags), splits, POLICY, POLICY, seed=0, world_size=ranks, rank=rank
        )
        assert train.batch_size == int(flags[1]) and train.training and not val.training
        assert val.batch_size == size
        seen += [int(place) for rows in val.rows(0, 0) for place in rows.ids[rows.valid]]
    assert sorted(seen) == list(range(30))


def test_a_views_place_counts() -> None:
    """A validation of videos counts clips x crops."""
    policy = ClipPolicy(frames=4, image_size=8, shorter=(9, 9), clips=2, crops=3, resize=9)
    splits: dict[str, Any] = {"train": columns(8), "val": columns(2)}
    flags = config("--batch-size", "8", "--val-batch-size", "100")
    _, val = pair(ClipPlan.of, flags, splits, policy, policy, **ALONE)
    assert val.batch_size == 12


def test_no_step_is_a_mistake_unless_there_is_none_to_take() -> None:
    splits: dict[str, Any] = {"train": columns(3), "val": columns(3)}
    with pytest.raises(UserError, match="--batch-size 8"):
        pair(ImagePlan.of, config("--batch-size", "8"), splits, POLICY, POLICY, **ALONE)
    pair(ImagePlan.of, config("--batch-size", "8", "--evaluate", "true"), splits, POLICY, POLICY, **ALONE)
