"""The classification task: losses, and a metric that depends neither on order nor on ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

from saturate.contracts import Batch, Rows
from saturate.tasks.classification import IGNORE, LARGEST_LOSS, Classification
from tests.unit.test_meter import alone, on_ranks

CPU = torch.device("cpu")
LABELS = np.array([3, 0, 2, 1, 3], np.int32)


def rows(ids: list[int]) -> Rows:
    count = len(ids)
    return Rows(
        ids=np.array(ids),
        regions=np.zeros((count, 4), np.int64),
        windows=np.zeros((count, 4)),
        sizes=np.zeros((count, 2), np.int64),
        turns=np.zeros(count, np.uint8),
        valid=np.array(ids) >= 0,
    )


def batch_of(labels: torch.Tensor, valid: torch.Tensor | None = None) -> Batch:
    valid = torch.ones(len(labels), dtype=torch.bool) if valid is None else valid
    return Batch(
        images=torch.zeros(len(labels), 3, 1, 1),
        sizes=torch.ones(len(labels), 2, dtype=torch.int64),
        targets={"labels": torch.where(valid, labels, IGNORE)},
        valid=valid,
        ids=np.where(valid.numpy(), np.arange(len(labels)), -1),
    )


def random(
    count: int, classes: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits, labels, valid), a third of them not valid."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    return (
        logits,
        torch.randint(0, classes, (count,), generator=generator),
        torch.rand(count, generator=generator) > 0.33,
    )


def measured(
    *batches: tuple[torch.Tensor, Batch], world: Any = None
) -> dict[str, float]:
    metric = Classification(LABELS, label_smoothing=0.3).metric(
        CPU
    )  # figures are of the plain loss
    for logits, batch in batches:
        metric.update(logits, batch)
    found = metric.result(world or alone())
    assert isinstance(found, dict)
    return {name: value for name, value in found.items() if name != "extras"}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_loss_a_sample_in_single_precision(smoothing: float) -> None:
    logits, labels, valid = random(20, 1000)
    half = logits.half()
    losses = Classification(LABELS, label_smoothing=smoothing).losses(
        half, batch_of(labels, valid)
    )
    assert losses.dtype == torch.float32
    expected = functional.cross_entropy(
        half.float(), labels, reduction="none", label_smoothing=smoothing
    )
    torch.testing.assert_close(losses, torch.where(valid, expected, 0.0))


def test_auxiliary_heads_count_with_their_weight_in_training_only() -> None:
    heads = [random(9, 7, seed)[0] for seed in range(3)]
    _, labels, valid = random(9, 7)
    batch = batch_of(labels, valid)
    task = Classification(LABELS, auxiliary_weight=0.3)
    each = [task.losses(head, batch) for head in heads]
    torch.testing.assert_close(
        task.losses(tuple(heads), batch), each[0] + 0.3 * each[1] + 0.3 * each[2]
    )
    torch.testing.assert_close(task.losses([heads[0]], batch), each[0])
    assert measured((tuple(heads), batch)) == measured((heads[0], batch))  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [2, 5, 6])
def test_top_5_is_of_more_than_five_classes(classes: int) -> None:
    logits, labels, valid = random(20, classes)
    found = measured((logits, batch_of(labels, valid)))
    assert ("top5" in found) == (classes > 5), "else it is 1 whatever is said"


def test_losses_that_are_no_number_are_left_out_and_huge_ones_cut() -> None:
    logits = torch.zeros(6, 3)
    logits[1], logits[2, 0] = math.nan, -math.inf
    logits[3, 1] = 2 * LARGEST_LOSS
    logits[4] = math.nan  # of a sample that is not valid: counts nowhere
    labels = torch.zeros(6, dtype=torch.int64)
    batch = batch_of(labels, torch.arange(6) != 4)
    found = measured((logits, batch))
    assert (found["samples"], found["losses_not_finite"]) == (5, 2)
    assert found["loss"] == pytest.approx((2 * math.log(3) + LARGEST_LOSS) / 3)
    assert math.isnan(measured((logits * math.nan, batch))["loss"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 6])
def test_a_sample_whose_output_is_no_number_is_wrong_and_counted(
    value: float, where: int
) -> None:
    """NaN is the largest value to topk: a network of NaNs was right for a class."""
    labels = torch.tensor([0, 0, 0, 1, 2])
    logits = torch.eye(7)[labels]
    batch = batch_of(labels, torch.arange(5) < 4)
    assert measured((logits, batch))["top1"] == 1.0
    logits[1, where] = value
    logits[4] = value  # of a sample that is not valid
    names = ("top1", "top5", "samples", "outputs_not_finite")
    found = measured((logits, batch))
    assert [found[name] for name in names] == [0.75, 0.75, 4, 1]
    lost = torch.full((5, 7), value), batch
    # the first of two ranks has no sample
    dead, _ = on_ranks(2, lambda world: measured(*[lost] * world.rank, world=world))
    assert [dead[name] for name in names] == [0.0, 0.0, 4, 4]
