"""The learning rate as a function of the epoch."""

from __future__ import annotations

from typing import Any

import pytest

from config import Optimisation
from engine.schedules import learning_rate

DROPS: dict[str, Any] = {"lr": 0.1, "epochs": 26, "schedule": "step", "lr_gamma": 0.1}


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0.001), (0.25, 0.0505), (0.5, 0.1), (15.99, 0.1), (16, 0.01), (22, 0.001)]
)
def test_drops_at_milestones(epoch: float, expected: float) -> None:
    optimisation = Optimisation(warmup_epochs=0.5, lr_step_epochs=1, lr_milestones=(16.0, 22.0), **DROPS)
    assert learning_rate(epoch, optimisation) == pytest.approx(expected)


def test_drops_at_steps() -> None:
    optimisation = Optimisation(warmup_epochs=0, lr_step_epochs=2, **DROPS)
    found = [learning_rate(epoch, optimisation) for epoch in (0, 1.99, 2, 4)]
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.001])
