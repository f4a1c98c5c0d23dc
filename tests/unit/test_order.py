"""The order of an epoch and its groups, for any n."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan.order import BLOCK, CHUNK, block_size, by_size, grouped, order

COUNTS = st.one_of(
    st.integers(0, 200), st.sampled_from([2, 3, 5, 7, 31, 127, 251, 256, 509, 1021])
)
SEEDS = st.integers(0, 2**63 - 1)


def test_golden_orders() -> None:
    assert order(0, 0, 10).tolist() == [1, 8, 5, 3, 7, 6, 2, 9, 0, 4]
    assert order(0, 1, 10).tolist() == [5, 6, 7, 8, 0, 1, 3, 2, 4, 9]
    assert order(1, 0, 10).tolist() == [7, 5, 1, 2, 6, 8, 0, 4, 3, 9]
    ordered = order(42, 5, 1_281_167)  # as many as ImageNet
    assert ordered[:4].tolist() == [278232, 1151434, 1081936, 1185125]
    assert ordered[-2:].tolist() == [337823, 165603]
    assert order(7, 3, 19).tolist() == [
        13,
        4,
        11,
        9,
        12,
        1,
        6,
        0,
        17,
        10,
        14,
        3,
        8,
        5,
        18,
        15,
        16,
        2,
        7,
    ]


def test_no_order_repeats_over_a_grid_of_seeds_and_epochs() -> None:
    orders = {
        tuple(order(seed, epoch, 31)) for seed, epoch in product(range(40), range(40))
    }
    assert len(orders) == 1600


def test_every_place_gets_every_id() -> None:
    """Chi-square of id against place over 20,000 epochs of 8 samples; 49 degrees of freedom have 0.1 % beyond
    86.
    """
    epochs = 20_000
    orders = np.stack([order(11, epoch, 8) for epoch in range(epochs)])
    table = np.stack([np.bincount(orders[:, place], minlength=8) for place in range(8)])
    assert ((table - epochs / 8) ** 2 / (epochs / 8)).sum() < 86


def test_adding_a_sample_keeps_the_order_of_the_others() -> None:
    larger = order(3, 1, 101)
    assert (larger[larger != 100] == order(3, 1, 100)).all()


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


def test_golden_group() -> None:
    heights, widths = np.array([4, 2, 9, 3] * 48), np.array([5, 8, 3, 3] * 48)
    places = grouped(heights, widths, seed=7, epoch=3)
    assert places[::16].tolist() == [160, 34, 65, 1, 66, 128, 33, 3, 35, 98, 0, 32]


def test_a_block_has_like_sizes_and_blocks_are_shuffled() -> None:
    n = 4 * TOGETHER
    heights, widths = pixels(1, n)
    places = grouped(heights, widths, seed=0, epoch=0)
    # axes: [blocks, BLOCK]
    tall, wide = (side[places].reshape(-1, BLOCK) for side in (heights, widths))
    assert ((tall > wide).all(axis=1) | (tall <= wide).all(axis=1)).sum() >= len(
        tall
    ) - 4, "one block of a chunk may hold both"
    shorter = np.minimum(tall, wide)
    assert np.median(np.ptp(shorter, axis=1)) <= 8 < 100 < np.ptp(shorter)
    means = shorter.mean(axis=1)
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.2, (
        "the next block says nothing of its neighbour"
    )
    assert (grouped(heights, widths, seed=0, epoch=1) != places).mean() > 0.9


def test_a_group_is_made_of_a_chunk_of_the_order() -> None:
    """So that, from epoch to epoch, the same images of a rare size seldom meet."""
    n = 3 * TOGETHER
    places = grouped(*pixels(2, n), seed=5, epoch=1).reshape(-1, BLOCK)
    assert (places // TOGETHER == places[:, :1] // TOGETHER).all()


def test_what_is_less_than_a_block_stays_at_the_end() -> None:
    n = TOGETHER + 3 * BLOCK + 17
    places = grouped(*pixels(3, n), seed=5, epoch=1)
    # in the order of the epoch: sorted, a last step would drop the largest
    assert places[-17:].tolist() == list(range(n - 17, n))


@pytest.mark.parametrize(
    ("n", "size"),
    [(0, 8), (46, 8), (255, 8), (256, 16), (1000, 32), (4096, 256), (118_287, 256)],
)
def test_small_sets_have_small_blocks(n: int, size: int) -> None:
    assert block_size(n) == size


@pytest.mark.parametrize("batch", [5, 16, 20])
def test_every_image_of_a_small_set_is_met(batch: int) -> None:
    heights, widths = pixels(4, 46)
    met: set[int] = set()
    batches: set[tuple[int, ...]] = set()
    for epoch in range(40):
        ids = order(0, epoch, 46)
        ids = ids[grouped(heights[ids], widths[ids], seed=0, epoch=epoch)]
        met |= set(ids[: 46 // batch * batch].tolist())
        batches |= {
            tuple(sorted(ids[at : at + batch].tolist()))
            for at in range(0, 46 // batch * batch, batch)
        }
    assert len(met) == 46 and len(batches) > 0.6 * 40 * (46 // batch)


def test_one_size_keeps_blocks_of_the_order() -> None:
    same = np.full(16 * BLOCK, 480)
    blocks = grouped(same, same, seed=1, epoch=0).reshape(-1, BLOCK)
    assert (np.diff(blocks, axis=1) == 1).all() and not (
        np.diff(blocks[:, 0]) > 0
    ).all()


def test_by_size_puts_landscapes_first_and_small_ones_first() -> None:
    heights, widths = np.array([9, 3, 4, 3, 2]), np.array([3, 9, 4, 8, 9])
    assert by_size(heights, widths).tolist() == [4, 3, 1, 2, 0]
