"""Every task has targets, losses and figures as train.py needs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from saturate.engine.evaluate import Outcome
from saturate.tasks import TASKS, kind_named
from tests.conformance import tasks
from tests.conformance.tasks import CASES, Case
from tests.unit.test_meter import alone

CHECKS: dict[str, Callable[[Case], object]] = {
    "padding": tasks.padding_has_no_target,
    "losses": tasks.losses_are_one_a_sample,
}


@pytest.mark.parametrize(
    ("name", "check"),
    [
        (name, check)
        for name, case in CASES.items()
        for check in CHECKS
        if case.light or check != "losses"
    ],
)
def test_a_task(name: str, check: str) -> None:
    CHECKS[check](CASES[name])


# the objects of a set that nobody has looked at are not found: an AP of 0
@pytest.mark.parametrize(
    "name", [one for one in CASES if not one.startswith("detection")]
)
def test_a_figure_of_nothing_is_no_number(name: str) -> None:
    """A validation of no sample has counts, and neither a share nor a mean: 0 % would be an answer."""
    world: Any = alone()
    metric = CASES[name].tasks()[1].metric(tasks.CPU)
    outcome = Outcome(metric.result(world), failed=[], pass_s=0.0, score_s=0.0)
    figures = outcome.result(world)
    for figure in CASES[name].kind.figures:
        value = figures.get(figure.name, math.nan)
        assert value == 0 if isinstance(value, int) else math.isnan(value), figure
    assert math.isnan(figures[CASES[name].kind.figures[0].name])


@pytest.mark.parametrize("task", TASKS)
def test_figures_are_the_declared_ones_and_exact_over_ranks(task: str) -> None:
    kind = kind_named(task)
    assert kind.name == task
    own = [case for case in CASES.values() if case.task == task]
    given = set().union(*map(tasks.figures_are_exact, own))
    assert given == {figure.name for figure in kind.figures}
