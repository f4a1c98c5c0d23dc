"""Every plan: an epoch is exact, a resume goes on with it, the numbers of a sample are its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contracts import Rows
from tests.conformance import plans
from tests.conformance.checks import raises
from tests.conformance.plans import PLANS, Faulty, Make

SMALL, COUNTS = (
    st.integers(1, 5),
    st.one_of(st.integers(0, 30), st.sampled_from([61, 97])),
)
every_plan = pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)


@every_plan
@settings(max_examples=15)
@given(COUNTS, SMALL, SMALL, SMALL, st.integers(0, 70), st.integers(0, 5))
@example(n=2, world=5, batch=1, accumulate=1, first=0, epoch=0)
def test_training(
    make: Make, n: int, world: int, batch: int, accumulate: int, first: int, epoch: int
) -> None:
    plans.training_is_exact(
        make,
        n,
        world_size=world,
        batch_size=batch,
        accumulate=accumulate,
        first=first,
        epoch=epoch,
    )


@every_plan
@settings(max_examples=15)
@given(COUNTS, SMALL, SMALL)
@example(n=1, world=5, batch=4)
def test_validation(make: Make, n: int, world: int, batch: int) -> None:
    plans.validation_is_exact(make, n, world_size=world, batch_size=batch)


@every_plan
@settings(max_examples=15)
@given(COUNTS, st.tuples(SMALL, SMALL), st.tuples(SMALL, SMALL), st.integers(0, 20))
def test_resume(
    make: Make, n: int, before: tuple[int, int], after: tuple[int, int], steps: int
) -> None:
    plans.a_resume_is_exact(make, n, before=before, after=after, steps=steps)


@every_plan
def test_epochs_and_seeds(make: Make) -> None:
    plans.epochs_and_seeds_differ(make)


@every_plan
def test_rows(make: Make) -> None:
    plans.rows_are_the_contract(make)


CHECKS: dict[str, Callable[[Make], None]] = {
    "training": lambda make: plans.training_is_exact(
        make, 26, world_size=2, batch_size=3, first=6
    ),
    "validation": lambda make: plans.validation_is_exact(
        make, 26, world_size=2, batch_size=4
    ),
    "resume": lambda make: plans.a_resume_is_exact(
        make, 26, before=(2, 3), after=(1, 4), steps=2
    ),
    "epochs": plans.epochs_and_seeds_differ,
    "rows": plans.rows_are_the_contract,
}


def each(change: Callable[..., dict[str, Any]]) -> Callable[..., list[Rows]]:
    return lambda plan, rows, *_: [replace(one, **change(one, plan)) for one in rows]


FAULTS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "a batch twice": (
        lambda plan, rows, *_: [*rows[:-1], rows[0]],
        ("training", "validation", "resume"),
    ),
    "begins again": (
        lambda plan, rows, epoch, first: plan.rows(epoch, 0)[: len(rows)],
        ("training", "resume"),
    ),
    "one batch short": (lambda plan, rows, *_: rows[:-1], ("training", "validation")),
    "alike in each epoch": (
        lambda plan, rows, epoch, first: plan.rows(0, first),
        ("epochs",),
    ),
    "by rank": (
        each(lambda one, plan: {"windows": one.windows * (1 - 0.01 * plan.rank)}),
        ("validation", "resume"),
    ),
    "by place": (
        each(
            lambda one, _: {
                "windows": one.windows * (1 - 0.01 * np.arange(len(one))[:, None])
            }
        ),
        ("validation", "resume"),
    ),
    "padding is real": (
        each(lambda one, _: {"ids": np.maximum(one.ids, 0), "valid": one.valid | True}),
        ("validation",),
    ),
    "outside": (each(lambda one, _: {"regions": one.regions + 1}), ("rows",)),
    "single precision": (
        each(lambda one, _: {"windows": one.windows.astype(np.float32)}),
        ("rows",),
    ),
    "other sizes": (
        each(lambda one, _: {"sizes": one.sizes - int(one.ids[0]) % 2}),
        ("rows",),
    ),
    "a random validation": (each(lambda one, _: {"turns": one.turns | 1}), ("rows",)),
}
"""fault(plan, rows, epoch, first) -> rows, and the checks that have to refuse it."""


@pytest.mark.parametrize(("fault", "names"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_refused(fault: Callable[..., Any], names: tuple[str, ...]) -> None:
    for name in names:
        assert raises(
            CHECKS[name],
            lambda n, **numbers: Faulty(PLANS["random-resized"](n, **numbers), fault),
        ), f"{name} lets it pass"
