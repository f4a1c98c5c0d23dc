"""What is told of a step without a valid sample, and of a loss that is not finite."""

from __future__ import annotations

import math

import numpy as np
import torch

from saturate.engine.distributed import ProcessWorld
from saturate.engine.loss_log import LossLog

CPU = torch.device("cpu")


def test_a_step_without_a_valid_sample_has_no_loss() -> None:
    recent = LossLog(4, ProcessWorld(CPU), precision="fp32")
    for step, (loss_sum, valid) in enumerate(
        ((6.0, 4.0), (0.0, 0.0), (0.0, 2.0)), start=1
    ):
        recent.add(step, torch.tensor([loss_sum, valid, math.nan, 1.0]), [np.arange(4)])
    first, second, third = (point["loss"] for point in recent.read())
    assert (first, third) == (1.5, 0.0)
    assert math.isnan(second)


def test_parts_of_the_loss_are_means_too() -> None:
    recent = LossLog(4, ProcessWorld(CPU), precision="fp32")
    for step in (1, 2):
        recent.add(
            step,
            torch.tensor([6.0 * step, 4.0, math.nan, 1.0, 2.0 * step, 4.0]),
            [np.arange(4)],
            ("classes", "boxes"),
        )
    assert [
        (point["loss"], point["classes"], point["boxes"]) for point in recent.read()
    ] == [
        (1.5, 0.5, 1.0),
        (3.0, 1.0, 1.0),
    ]


def test_outcomes_are_read_in_order_while_steps_go_on() -> None:
    """A read leaves the last two, and the ring goes round many times."""
    recent = LossLog(4, ProcessWorld(CPU), precision="fp32")
    points = []
    for step in range(1, 51):
        recent.add(step, torch.tensor([float(step), 1.0, 2.0, 1.0]), [np.arange(4)])
        if recent.full():
            points += recent.read(everything=False)
    points += recent.read()
    assert [(point["step"], point["loss"]) for point in points] == [
        (step, float(step)) for step in range(1, 51)
    ]
