"""tasks/batching.py: the two plans of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from saturate.contracts import UserError
from saturate.plan.images import ImagePlan, ImagePolicy
from saturate.settings.config import Config, parse
from saturate.tasks.batching import Batching

POLICY = ImagePolicy(window="center", image_size=8, resize=9)


class Columns:
    exif = None
    fetch = None

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
        (["--batch-size", "8", "--val-batch-size", "9000"], 1, 30),
        (["--batch-size", "8", "--val-batch-size", "9000"], 2, 15),
        # as in training, so that nothing is compiled for another shape
        (["--batch-size", "64", "--val-batch-size", "9000"], 2, 50),
    ],
)
def test_a_validation_batch_is_no_larger_than_the_set(
    flags: list[str], ranks: int, size: int
) -> None:
    splits: dict[str, Any] = {"train": columns(200), "val": columns(30)}
    seen: list[int] = []
    for rank in range(ranks):
        own = Batching.from_config(config(*flags), world_size=ranks, rank=rank)
        train, val = own.pair(ImagePlan, splits, POLICY, POLICY)
        assert train.training and not val.training
        assert val.batch_size == size
        seen += [
            int(place) for rows in val.rows(0, 0) for place in rows.ids[rows.valid]
        ]
    assert sorted(seen) == list(range(30))


def test_no_step_is_a_mistake_unless_there_is_none_to_take() -> None:
    splits: dict[str, Any] = {"train": columns(3), "val": columns(3)}
    flags = ("--batch-size", "8", "--accumulate", "4")
    with pytest.raises(UserError, match="the data has 3 training samples; take fewer"):
        Batching.from_config(config(*flags)).pair(ImagePlan, splits, POLICY, POLICY)
    evaluates = config(*flags, "--evaluate", "true")
    Batching.from_config(evaluates).pair(ImagePlan, splits, POLICY, POLICY)


@pytest.mark.parametrize("flags", [["--repeats", "2"], ["--order", "sequential"]])
def test_classes_come_alike_in_no_other_order(flags: list[str]) -> None:
    own = Batching.from_config(config("--balance", "sampler", *flags))
    with pytest.raises(UserError, match="leave --order and --repeats out"):
        own.pair(ImagePlan, {"train": columns(9)}, POLICY, POLICY)


@pytest.mark.parametrize(
    ("count", "batch", "ranks", "fitted", "steps"),
    [
        (57, 32, 1, 29, 2),
        (100, 16, 3, 12, 3),
        (400, 20, 1, 20, 20),  # long enough: what is no whole step is dropped
    ],
)
def test_a_set_of_few_steps_loses_no_sample(
    count: int, batch: int, ranks: int, fitted: int, steps: int
) -> None:
    splits: dict[str, Any] = {"train": columns(count), "val": columns(3)}
    flags = config("--batch-size", str(batch))
    seen: list[int] = []
    for rank in range(ranks):
        own = Batching.from_config(flags, world_size=ranks, rank=rank)
        train, _ = own.pair(ImagePlan, splits, POLICY, POLICY)
        drawn = list(train.rows(0, 0))
        assert (train.batch_size, train.steps(), len(drawn)) == (fitted, steps, steps)
        assert {len(rows) for rows in drawn} == {fitted}, "the last one is filled up"
        assert all(rows.valid.all() for rows in drawn), "and by samples"
        for rows in drawn:
            counted = rows.valid if rows.fillers is None else ~rows.fillers
            seen += rows.ids[counted].tolist()
        # behind the first step, as a resume begins
        rest = train.rows(0, train.global_batch_size)
        assert [rows.ids.tolist() for rows in rest] == [
            rows.ids.tolist() for rows in drawn[1:]
        ]
    assert len(seen) == len({*seen}) == count
