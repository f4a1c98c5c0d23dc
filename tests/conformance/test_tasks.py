"""Every task has targets, losses, probes, figures and settings as train.py needs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tasks import TASKS, kind_named
from tests.conformance import tasks
from tests.conformance.tasks import CASES, Case

CHECKS: dict[str, Callable[[Case], object]] = {
    "entry": tasks.entry_is_whole,
    "settings": tasks.settings_that_it_does_not_read_are_refused,
    "padding": tasks.padding_has_no_target,
    "losses": tasks.losses_are_one_a_sample,
    "probes": tasks.probes_run,
    "facts": tasks.facts_are_json,
}


OF_NETWORKS = ("losses", "probes")


@pytest.mark.parametrize(
    ("name", "check"),
    [
        (name, check)
        for name, case in CASES.items()
        for check in CHECKS
        if case.light or check not in OF_NETWORKS
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
