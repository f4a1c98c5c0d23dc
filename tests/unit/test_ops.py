"""SSD's distortion: the numbers' distribution, and what each of them does to pixels; slots and their rows."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import pytest
import torch

from saturate.loaders._ops import distort, operated
from saturate.plan import ops
from saturate.plan.ops import (
    PERMUTATIONS,
    Op,
    distortions,
)
from tests.unit.test_ops_torchvision import ON_DEVICE

NAMES = ["brightness", "contrast", "contrast_first", "saturation", "hue", "permutation"]
NONE: Any = np.array([0, 1, 0, 1, 0, 0], np.float32)


def numbers(**said: float) -> Any:
    """The numbers of one image; what is not said leaves pixels alone."""
    out = NONE.copy()
    for name, value in said.items():
        out[NAMES.index(name)] = value
    return out


def pixels(seed: int = 0, shape: tuple[int, ...] = (7, 9)) -> Any:
    rng = np.random.default_rng(seed)
    out = rng.random((*shape, 3))
    special = np.array(
        [
            [0, 0, 0],
            [1, 1, 1],
            [0.5, 0.5, 0.5],
            [1, 0, 0],
            [0, 1, 0],
            [0, 0, 1],
            [1, 1, 0],
            [0.2, 0.7, 0.7],
        ]
    )
    flat = out.reshape(-1, 3)
    flat[: min(len(flat), 8)] = special[: len(flat)]
    return out


def distorted(image: Any, given: Any) -> Any:
    """One image, RGB in 0..1, in 64 bits."""
    each = torch.from_numpy(given.astype(np.float64)).view(-1, 1, 1, 1, 1)
    line = torch.from_numpy(image).reshape(1, 1, -1, 3)
    return distort(line, *each)[0].reshape(image.shape).numpy()


def test_brightness_adds_and_contrast_multiplies() -> None:
    here = pixels()
    np.testing.assert_allclose(distorted(here, NONE), here, atol=1e-12)
    for value in (0.1, -0.1):
        got = distorted(here, numbers(brightness=value))
        np.testing.assert_allclose(
            got, np.clip(here + np.float32(value), 0, 1), atol=1e-9
        )
    for first in (0, 1):
        got = distorted(here, numbers(contrast=1.5, contrast_first=first))
        np.testing.assert_allclose(got, np.clip(here * 1.5, 0, 1), atol=1e-9)


def test_saturation_and_hue_are_those_of_hsv() -> None:
    here = pixels().reshape(-1, 3)
    for factor, turn in (
        (0.5, 0.0),
        (1.0, 0.05),
        (1.0, -0.05),
        (0.8, 0.031),
        (1.4, -0.02),
    ):
        for pixel, got in zip(
            here, distorted(here, numbers(saturation=factor, hue=turn)), strict=True
        ):
            h, s, v = colorsys.rgb_to_hsv(*pixel.tolist())
            if s * factor <= 1:
                expected = colorsys.hsv_to_rgb((h + turn) % 1, s * factor, v)
                np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("index", range(6))
def test_channels_change_places_last(index: int) -> None:
    here = pixels()
    plain = distorted(here, numbers(brightness=0.05, saturation=0.7, hue=0.02))
    got = distorted(
        here, numbers(brightness=0.05, saturation=0.7, hue=0.02, permutation=index)
    )
    for channel in range(3):
        assert (got[..., channel] == plain[..., PERMUTATIONS[index][channel]]).all()


def slots(*numbers: np.ndarray) -> np.ndarray:
    """`Rows.ops`, with a slot for each float32 [B, 6]; a row of zeros has no operation there."""
    each = [
        np.where(
            (its != 0).any(axis=1).reshape(-1, 1, 1), ops.alone(Op.DISTORT, its), 0
        )
        for its in numbers
    ]
    return np.concatenate(each, axis=1).astype(np.float32)


def test_rows_without_an_operation_keep_their_bits() -> None:
    levels = np.random.default_rng(3).integers(0, 256, (6, 4, 5, 3), np.uint8)
    numbers = distortions(0, 0, np.arange(6)) * (np.arange(6) % 3 > 0)[:, None]
    given, before = torch.from_numpy(levels), levels.copy()
    found = operated(given, slots(numbers), ON_DEVICE).numpy()
    np.testing.assert_array_equal(found[::3], levels[::3].astype(np.float32))
    for row in (1, 2, 4, 5):
        np.testing.assert_allclose(
            found[row], 255 * distorted(levels[row] / 255, numbers[row]), atol=0.005
        )
    np.testing.assert_array_equal(given.numpy(), before)


def test_slots_act_in_their_order() -> None:
    bright, half = np.tile(NONE, (4, 1)), np.tile(NONE, (4, 1))
    bright[:, 0], half[:, 1] = 0.1, 0.5
    one = np.where(np.arange(4)[:, None] < 2, bright, half)
    other = np.where(np.arange(4)[:, None] < 2, half, bright)
    other[3] = 0
    found = operated(
        torch.full((4, 1, 1, 3), 255, dtype=torch.uint8), slots(one, other), ON_DEVICE
    )
    assert found[:, 0, 0, 0].tolist() == pytest.approx([127.5, 127.5, 153, 127.5])
