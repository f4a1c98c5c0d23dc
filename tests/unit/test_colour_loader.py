"""loaders/_colour.py does to tensors what plan/colour.py does to arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from loaders._colour import distort
from plan import colour

IDENTITY = np.array([[0, 1, 0, 1, 0, 0]], np.float32)
CLOSE = 2e-5  # a two-hundredth of a grey level
channels = st.sampled_from([0.0, 1.0, 0.5]) | st.integers(0, 255).map(lambda level: level / 255)


def both(pixels: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [B, H, W, 3] by torch, by NumPy."""
    expected = colour.distort(pixels, numbers[:, None, None])
    return distort(torch.from_numpy(pixels), torch.from_numpy(numbers)).numpy(), expected


@given(
    arrays.arrays(np.float32, (3, 4, 5, 3), elements=channels.map(lambda level: float(np.float32(level)))),
    st.integers(0, 2**31),
    st.integers(0, 1000),
)
def test_it_is_numpys(pixels: np.ndarray, seed: int, epoch: int) -> None:
    """Greys, primaries and ties of two channels among them, for which a hue is a matter of definition."""
    found, expected = both(pixels, colour.distortions(seed, epoch, np.arange(3)))
    np.testing.assert_allclose(found, expected, atol=CLOSE)


def test_each_image_has_its_own_numbers() -> None:
    numbers = colour.distortions(0, 0, np.arange(64))
    pixels = np.tile(np.random.default_rng(0).random((1, 6, 7, 3), np.float32), (64, 1, 1, 1))
    found, expected = both(pixels, numbers)
    np.testing.assert_allclose(found, expected, atol=CLOSE)
    assert len({image.tobytes() for image in found}) > 32


def test_no_distortion_changes_nothing() -> None:
    levels = np.arange(256, dtype=np.float32) / 255
    pixels = np.stack([levels, levels[::-1], np.roll(levels, 99)], axis=-1)[None, None]
    found, _ = both(pixels, IDENTITY)
    np.testing.assert_allclose(found, pixels, atol=1e-6)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (colour.BRIGHTNESS, 0.1, [0.9, 0.5, 0.3]),
        (colour.CONTRAST, 0.5, [0.4, 0.2, 0.1]),
        (colour.SATURATION, 0.5, [0.8, 0.6, 0.5]),
        (colour.HUE, 1 / 3, [0.2, 0.8, 0.4]),
        (colour.PERMUTATION, 5, [0.2, 0.4, 0.8]),
    ],
)
def test_one_number_alone(column: int, value: float, expected: list[float]) -> None:
    numbers = IDENTITY.copy()
    numbers[0, column] = value
    found, reference = both(np.array([[[[0.8, 0.4, 0.2]]]], np.float32), numbers)
    np.testing.assert_allclose(found[0, 0, 0], expected, atol=1e-6)
    np.testing.assert_allclose(reference[0, 0, 0], expected, atol=1e-6)


def test_nothing_is_clipped_in_between() -> None:
    """Contrast before the rest and after it would differ then; as it is, all of them scale."""
    pixels = np.random.default_rng(1).random((1, 8, 8, 3), np.float32)
    first, last = IDENTITY.copy(), IDENTITY.copy()
    first[0, 1:5] = 1.5, 1, 1.5, 0.05
    last[0, 1:5] = 1.5, 0, 1.5, 0.05
    np.testing.assert_allclose(both(pixels, first)[0], both(pixels, last)[0], atol=1e-5)


def test_clips_of_frames_too() -> None:
    """[B, T, H, W, 3]: every frame of a row alike."""
    pixels = np.random.default_rng(2).random((2, 3, 4, 5, 3), np.float32)
    numbers = colour.distortions(3, 0, np.arange(2))
    found = distort(torch.from_numpy(pixels), torch.from_numpy(numbers)).numpy()
    np.testing.assert_allclose(found, colour.distort(pixels, numbers[:, None, None, None]), atol=CLOSE)
