"""loaders/_ops.py does to tensors what plan/ops.py does to arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from loaders._ops import distort, operated
from plan import ops

IDENTITY = np.array([[0, 1, 0, 1, 0, 0]], np.float32)
CLOSE = 2e-5  # a two-hundredth of a grey level
channels = st.sampled_from([0.0, 1.0, 0.5]) | st.integers(0, 255).map(lambda level: level / 255)


def both(pixels: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [B, H, W, 3] by torch, by NumPy."""
    expected = ops.distort(pixels, numbers[:, None, None])
    return distort(torch.from_numpy(pixels), torch.from_numpy(numbers)).numpy(), expected


@given(
    arrays.arrays(np.float32, (3, 4, 5, 3), elements=channels.map(lambda level: float(np.float32(level)))),
    st.integers(0, 2**31),
    st.integers(0, 1000),
)
def test_it_is_numpys(pixels: np.ndarray, seed: int, epoch: int) -> None:
    found, expected = both(pixels, ops.distortions(seed, epoch, np.arange(3)))
    np.testing.assert_allclose(found, expected, atol=CLOSE)


def test_clips_of_frames_too() -> None:
    pixels = np.random.default_rng(2).random((2, 3, 4, 5, 3), np.float32)
    numbers = ops.distortions(3, 0, np.arange(2))
    found = distort(torch.from_numpy(pixels), torch.from_numpy(numbers)).numpy()
    np.testing.assert_allclose(found, ops.distort(pixels, numbers[:, None, None, None]), atol=CLOSE)


def slots(*numbers: np.ndarray) -> np.ndarray:
    """`Rows.ops`, with a slot for each float32 [B, 6]; a row of zeros has no operation there."""
    each = [
        np.where((its != 0).any(axis=1).reshape(-1, 1, 1), ops.alone(ops.Op.DISTORT, its), 0)
        for its in numbers
    ]
    return np.concatenate(each, axis=1).astype(np.float32)


def on_host(values: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(value)) for value in values]


def test_rows_without_an_operation_keep_their_bits() -> None:
    levels = np.random.default_rng(3).integers(0, 256, (6, 4, 5, 3), np.uint8)
    numbers = ops.distortions(0, 0, np.arange(6)) * (np.arange(6) % 3 > 0)[:, None]
    given, before = torch.from_numpy(levels), levels.copy()
    found = operated(given, slots(numbers), on_host).numpy()
    np.testing.assert_array_equal(found[::3], levels[::3].astype(np.float32))
    expected = 255 * ops.distort(levels.astype(np.float32) / 255, numbers[:, None, None])
    np.testing.assert_allclose(found[[1, 2, 4, 5]], expected[[1, 2, 4, 5]], atol=255 * CLOSE)
    np.testing.assert_array_equal(given.numpy(), before)
    floats = torch.from_numpy(levels.astype(np.float32))
    assert np.array_equal(operated(floats, slots(0 * numbers), on_host).numpy(), levels)
    assert np.array_equal(operated(floats, slots(numbers), on_host).numpy(), found)
    assert np.array_equal(floats.numpy(), levels)


def test_slots_act_in_their_order() -> None:
    bright, half = np.tile(IDENTITY, (4, 1)), np.tile(IDENTITY, (4, 1))
    bright[:, ops.BRIGHTNESS], half[:, ops.CONTRAST] = 0.1, 0.5
    one = np.where(np.arange(4)[:, None] < 2, bright, half)
    other = np.where(np.arange(4)[:, None] < 2, half, bright)
    other[3] = 0
    found = operated(torch.full((4, 1, 1, 3), 255, dtype=torch.uint8), slots(one, other), on_host)
    assert found[:, 0, 0, 0].tolist() == pytest.approx([127.5, 127.5, 153, 127.5])
