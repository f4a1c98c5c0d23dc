"""The affine map of a row is exact both ways."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saturate.contracts import Rows
from saturate.loaders import _flips
from saturate.loaders._memory import to_device
from saturate.plan import geometry
from tests.conformance.placed import turned

SEEDS = st.integers(0, 2**32 - 1)


def drawn_rows(seed: int, count: int = 6) -> Rows:
    """Rows of one window, in any turns."""
    turns = np.random.default_rng(seed).integers(0, geometry.TURNS, count)
    return Rows(
        ids=np.arange(count),
        regions=np.tile([13, 7, 113, 80], (count, 1)),
        windows=np.tile([1.5, 2.25, 90.75, 70.5], (count, 1)),
        sizes=np.full((count, 2), 4),
        turns=turns.astype(np.uint8),
        valid=np.ones(count, bool),
    )


@pytest.mark.parametrize("turn", range(geometry.TURNS))
@pytest.mark.parametrize("places", [False, True])
def test_a_point_goes_where_its_pixel_is_turned_to(turn: int, places: bool) -> None:
    drawn = drawn_rows(7, count=1)
    sizes = np.array([[4, 3] if turn & geometry.TRANSPOSE else [3, 4]])
    rows = replace(drawn, sizes=sizes, turns=np.array([turn], np.uint8), places=None)
    if places:
        covered = np.array([[1, 0, 3, 2]])
        rows = replace(rows, places=geometry.turned_places(covered, rows.turns, sizes))
        assert geometry.upright(rows).placed.tolist() == covered.tolist()
        pixels = np.zeros((3, 4, 1), int)
        pixels[0:2, 1:3] = 1
        ys, xs = np.nonzero(turned(pixels, turn)[..., 0])
        assert rows.placed.tolist() == [
            [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
        ]
    before, numbers = geometry.upright(rows), np.arange(12).reshape(3, 4, 1)
    assert before.padded == (3, 4) and not before.turns.any()
    after = turned(numbers, turn)[..., 0]
    for number in range(12):
        y, x = divmod(number, 4)
        here = geometry.to_image(before, np.array([0]), np.array([[x + 0.5, y + 0.5]]))
        ((row, column),) = np.argwhere(after == number)
        there = geometry.to_output(rows, np.array([0]), here)
        np.testing.assert_allclose(there, [[column + 0.5, row + 0.5]], atol=1e-6)
        np.testing.assert_allclose(
            geometry.to_image(rows, np.array([0]), there), here, rtol=1e-9
        )


@given(SEEDS, st.booleans(), st.booleans())
def test_rows_turned_together_are_those_turned_one_by_one(
    seed: int, into: bool, clips: bool
) -> None:
    """A GPU turns a batch of equal squares by a few launches, a CPU row by row."""
    rows = drawn_rows(seed)
    shape = (6, 2, 4, 4, 3) if clips else (6, 4, 4, 3)
    pixels = torch.arange(math.prod(shape)).view(shape)
    alone = _flips._turned_by_row(pixels, rows)
    memory = torch.zeros_like(pixels) if into and rows.turns.any() else None
    together = _flips._turned_together(
        pixels, rows, lambda values: to_device(values, pixels.device), memory
    )
    assert torch.equal(together, alone) and (memory is None or together is memory)
    for row, turn in enumerate(rows.turns.tolist()):
        image = alone[row, 0] if clips else alone[row]
        stored = pixels[row, 0] if clips else pixels[row]
        assert np.array_equal(image.numpy(), turned(stored.numpy(), turn))
