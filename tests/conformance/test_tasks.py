"""Every task has targets, losses and figures as train.py needs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tasks import TASKS, kind_named
from tests.conformance import tasks
from tests.conformance.tasks import CASES, Case

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


@pytest.mark.parametrize("task", TASKS)
def test_figures_are_the_declared_ones_and_exact_over_ranks(task: str) -> None:
    kind = kind_named(task)
    assert kind.name == task
    own = [case for case in CASES.values() if case.kind is kind]
    given = set().union(*map(tasks.figures_are_exact, own))
    assert given == {figure.name for figure in kind.figures}
