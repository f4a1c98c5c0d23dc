"""The order of an epoch and its groups, for any n."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from saturate.plan.order import BLOCK, CHUNK, grouped, order, repeated

COUNTS = st.one_of(
    st.integers(0, 200), st.sampled_from([2, 3, 5, 7, 31, 127, 251, 256, 509, 1021])
)
SEEDS = st.integers(0, 2**63 - 1)


def test_golden_orders() -> None:
    assert order(0, 0, 10).tolist() == [1, 8, 5, 3, 7, 6, 2, 9, 0, 4]
    ordered = order(42, 5, 1_281_167)  # as many as ImageNet
    assert ordered[:4].tolist() == [278232, 1151434, 1081936, 1185125]
    assert ordered[-2:].tolist() == [337823, 165603]


def pixels(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shorter, longer = rng.integers(300, 500, n), rng.integers(500, 700, n)
    upright = rng.random(n) < 1 / 3
    return np.where(upright, longer, shorter), np.where(upright, shorter, longer)


TOGETHER = CHUNK * BLOCK


@given(
    SEEDS,
    st.integers(0, 2**31),
    st.one_of(
        COUNTS, st.sampled_from([TOGETHER, TOGETHER + 1, 2 * TOGETHER + BLOCK + 5])
    ),
)
def test_grouping_is_a_permutation(seed: int, epoch: int, n: int) -> None:
    heights, widths = pixels(seed % 1000, n)
    places = grouped(heights, widths, seed=seed, epoch=epoch)
    assert places.dtype == np.int64 and sorted(places.tolist()) == list(range(n))
    assert (places == grouped(heights, widths, seed=seed, epoch=epoch)).all()


@given(COUNTS, st.integers(1, 7))
def test_repeats_are_those_of_a_loop(n: int, repeats: int) -> None:
    """An epoch has as many items as without repeats, also where they do not divide it."""
    samples = list(range(100, 100 + n))
    items = [sample * repeats + r for sample in samples for r in range(repeats)]
    assert repeated(np.array(samples, np.int64), repeats).tolist() == items[:n]
