"""Every plan: an epoch is exact, a resume goes on with it, the numbers of a sample are its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conformance import plans
from tests.conformance.plans import PLANS, Make

SMALL, COUNTS = (
    st.integers(1, 5),
    st.one_of(st.integers(0, 30), st.sampled_from([61, 97])),
)
every_plan = pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)


@every_plan
@settings(max_examples=8)
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
@settings(max_examples=8)
@given(COUNTS, SMALL, SMALL, SMALL, st.integers(0, 70))
@example(n=19, world=2, batch=2, accumulate=2, first=0)
@example(n=19, world=2, batch=2, accumulate=2, first=17)
@example(n=7, world=2, batch=5, accumulate=2, first=6)
def test_a_small_set(
    make: Make, n: int, world: int, batch: int, accumulate: int, first: int
) -> None:
    plans.a_small_set_is_filled_up(
        make,
        n,
        world_size=world,
        batch_size=batch,
        accumulate=accumulate,
        first=first,
    )


@every_plan
@settings(max_examples=8)
@given(COUNTS, SMALL, SMALL)
@example(n=1, world=5, batch=4)
def test_validation(make: Make, n: int, world: int, batch: int) -> None:
    plans.validation_is_exact(make, n, world_size=world, batch_size=batch)


@every_plan
@settings(max_examples=4)
@given(COUNTS, st.tuples(SMALL, SMALL), st.tuples(SMALL, SMALL), st.integers(0, 20))
def test_resume(
    make: Make, n: int, before: tuple[int, int], after: tuple[int, int], steps: int
) -> None:
    plans.a_resume_is_exact(make, n, before=before, after=after, steps=steps)


GOLDEN: dict[str, float] = {
    "random-resized": 699686.4472267625,
    "stretched": 770643.4472267625,
    "clips": 1557251.0537012678,
    "clips-in-time": 1551055.0537012678,
    "clips-of-views": 7881567.324656434,
    "patches": 627211.0,
    "patches-of-pairs": 591363.0,
    "patches-in-blocks": 626946.0,
    "boxes": 11225953.0,
    "boxes-stretched": 7505098.0,
    "boxes-multiscale": 10932534.0,
    "boxes-lsj": 14525676.241307586,
    "boxes-ssd": 8792460.426081333,
    "boxes-ssdlite": 7206726.0,
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_draws_what_it_drew_in_a_run_of_last_year(name: str) -> None:
    """Checksums of two epochs of training and of a validation; see plans.checksum."""
    drawn = [
        rows
        for training in (True, False)
        for rows in PLANS[name](40, batch_size=8, training=training).rows(1, 0)
    ]
    columns = [column for rows in drawn for column in plans.columns_of(rows)]
    # the 64-bit ones have golden values of their own
    found = plans.checksum(one for one in columns if one.dtype != np.uint64)
    assert found == pytest.approx(GOLDEN[name], rel=1e-9)
    assert not any(rows.turns.any() for rows in drawn[-5:]), "nothing of it is random"
