"""The learning rate as a function of the epoch."""

from __future__ import annotations

from typing import Any

import pytest

from engine.schedules import learning_rate, warmup_warning
from settings.optimisation import Optimisation

DROPS: dict[str, Any] = {"lr": 0.1, "epochs": 26, "schedule": "step", "lr_gamma": 0.1}


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0.001), (0.25, 0.0505), (0.5, 0.1), (15.99, 0.1), (16, 0.01), (22, 0.001)]
)
def test_drops_at_milestones(epoch: float, expected: float) -> None:
    optimisation = Optimisation(warmup_epochs=0.5, lr_step_epochs=1, lr_milestones=(16.0, 22.0), **DROPS)
    assert learning_rate(epoch, optimisation) == pytest.approx(expected)


def test_a_line() -> None:
    optimisation = Optimisation(lr=0.1, final_lr=0.02, epochs=10, schedule="linear", warmup_epochs=2)
    assert [learning_rate(epoch, optimisation) for epoch in (2, 6, 10)] == pytest.approx([0.1, 0.06, 0.02])


def test_drops_at_steps() -> None:
    optimisation = Optimisation(warmup_epochs=0, lr_step_epochs=2, **DROPS)
    found = [learning_rate(epoch, optimisation) for epoch in (0, 1.99, 2, 4)]
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.001])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"epochs": 3},
            "the warm-up of 5 epochs fills the run of 3: the learning rate only rises, to 0.0604 of",
        ),
        ({"epochs": 5}, "the learning rate only rises, to 0.1 of --lr 0.1"),
        ({"steps": 20}, "fills the run of 2: "),
        ({"epochs": 6}, None),
        ({"steps": 51}, None),
        ({"steps": 20, "warmup_epochs": 0}, None),
    ],
)
def test_a_warmup_longer_than_the_run_is_told(settings: dict[str, Any], said: str | None) -> None:
    found = warmup_warning(Optimisation(**settings), epoch_steps=10)
    assert (said is None and found is None) or (said is not None and found is not None and said in found)
