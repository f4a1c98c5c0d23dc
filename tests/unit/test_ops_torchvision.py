"""Each operation of loaders/_ops.py is torchvision.transforms.v2's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from saturate.loaders._ops import OPERATIONS, operated
from saturate.plan import affine, ops
from saturate.plan.ops import Op

Change = Callable[[torch.Tensor], torch.Tensor]
HEIGHT, WIDTH = 23, 30
SMOOTH, NEAREST = InterpolationMode.BILINEAR, InterpolationMode.NEAREST
ON_DEVICE = lambda values: [  # noqa: E731
    torch.from_numpy(np.ascontiguousarray(value)) for value in values
]


def pictures(count: int = 4) -> torch.Tensor:
    """uint8 [B, H, W, 3]: a soft one, one of few levels, noise, and one colour."""
    rng = np.random.default_rng(4)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    soft = np.stack([40 + 3 * x + y, 200 - 4 * y, 60 + 2 * x + 3 * y], axis=-1)
    few = 60 * rng.integers(0, 4, (HEIGHT, WIDTH, 3)) + 20
    flat = np.broadcast_to([90, 120, 30], (HEIGHT, WIDTH, 3))
    return torch.from_numpy(
        np.stack([soft, few, rng.integers(0, 256, (HEIGHT, WIDTH, 3)), flat]).astype(
            np.uint8
        )[:count]
    )


def one(operation: int, *numbers: float, rows: int = 4) -> Any:
    return ops.slot(operation, np.ones(rows, bool), *numbers)


def of_map(map_: Any, smooth: bool) -> Any:
    return one(Op.AFFINE, *map_[0].tolist(), float(smooth), 0, 0, 0)


def done(levels: torch.Tensor, *slots: Any) -> Any:
    return operated(levels, np.concatenate(slots, axis=1), ON_DEVICE).numpy()


def by_torchvision(levels: torch.Tensor, change: Change) -> Any:
    return change(levels.movedim(-1, 1)).movedim(1, -1).numpy().astype(np.float32)


A = np.array


def of(change: Callable[..., Any], *numbers: Any, **options: Any) -> Change:
    """What torchvision does with an image and these numbers."""
    return lambda image: change(image, *numbers, **options)


def rotated(angle: float) -> Callable[[bool], Change]:
    return lambda smooth: of(
        tv.rotate, angle, interpolation=SMOOTH if smooth else NEAREST
    )


SINGLE: dict[str, tuple[Any, Change]] = {
    **{
        f"{name} {factor}": (one(op, factor), of(change, factor))
        for name, op, change in (
            ("brightness", Op.BRIGHTNESS, tv.adjust_brightness),
            ("saturation", Op.SATURATION, tv.adjust_saturation),
            ("contrast", Op.CONTRAST, tv.adjust_contrast),
            ("sharpness", Op.SHARPNESS, tv.adjust_sharpness),
        )
        for factor in (0.1, 1.9)
    },
    **{
        f"hue {turn}": (one(Op.HUE, turn), of(tv.adjust_hue, turn))
        for turn in (-0.3, 0.5)
    },
    "greyscale": (one(Op.GREYSCALE), of(tv.rgb_to_grayscale, num_output_channels=3)),
    **{
        f"posterize {bits}": (one(Op.POSTERIZE, bits), of(tv.posterize, bits))
        for bits in (0, 3)
    },
    **{
        f"solarize {level}": (one(Op.SOLARIZE, level), of(tv.solarize, level))
        for level in (0, 178.5)
    },
    "solarize_add": (
        one(Op.SOLARIZE_ADD, 40),  # which torchvision does not have; as timm says it
        lambda image: torch.where(image < 128, (image.int() + 40).clamp(0, 255), image),
    ),
    "autocontrast": (one(Op.AUTOCONTRAST), of(tv.autocontrast)),
    "equalize": (one(Op.EQUALIZE), of(tv.equalize)),
    "invert": (one(Op.INVERT), of(tv.invert)),
    **{
        f"blur {sigma}": (
            one(Op.BLUR, sigma),
            of(tv.gaussian_blur, [ops.BLUR_SIDE] * 2, [sigma] * 2),
        )
        for sigma in (0.1, 2.0)
    },
}
MOVED: dict[str, tuple[Any, Callable[[bool], Change]]] = {
    **{
        f"rotated {angle}": (affine.rotation(A([angle])), rotated(angle))
        for angle in (27.3, -131.0)
    },
}


def test_every_operation_can_be_done() -> None:
    assert OPERATIONS.keys() == {*Op} and 0 not in OPERATIONS


@pytest.mark.parametrize("name", SINGLE)
def test_one_operation_is_torchvisions(name: str) -> None:
    slot, change = SINGLE[name]
    found = done(pictures(), slot)
    assert (found == np.rint(found)).all()
    assert np.abs(found - by_torchvision(pictures(), change)).max() <= 1


@pytest.mark.parametrize("smooth", [True, False], ids=["bilinear", "nearest"])
@pytest.mark.parametrize("name", MOVED)
def test_one_map_is_torchvisions(name: str, smooth: bool) -> None:
    map_, change = MOVED[name]
    off = (
        np.abs(
            done(pictures(), of_map(map_, smooth))
            - by_torchvision(pictures(), change(smooth))
        )
        > 1
    )
    # nearest: a pixel that is half-way between two may be either
    assert off.mean() <= (0 if smooth else 0.002)


def test_outside_is_the_colour_that_was_asked_for() -> None:
    half = WIDTH // 2
    # moved to the right by half, and down by three
    slot = one(Op.AFFINE, 1, 0, -half, 0, 1, -3, 1, 124, 116, 104)
    found = done(pictures(), slot)
    assert (found[:, :, :half] == [124, 116, 104]).all()
    assert (found[:, :3] == [124, 116, 104]).all()
    assert (found[:, 3:, half:] == pictures()[:, :-3, :half].numpy()).all()


def test_frames_of_a_clip_are_images() -> None:
    levels = pictures()
    both = np.ones(2, bool)
    contrast = ops.slot(Op.CONTRAST, both, np.array([0.4, 1.6]))
    noise = ops.slot(Op.ERASE, both, 2, 3, 9, 9, 5, 6, 7, 8, 9, 9, np.array([1, 5]), 2)
    every = np.concatenate([one(Op.EQUALIZE, rows=2), contrast, noise], axis=1)
    clips = operated(levels.view(2, 2, HEIGHT, WIDTH, 3), every, ON_DEVICE)
    images = operated(levels, np.repeat(every, 2, axis=0), ON_DEVICE)
    assert torch.equal(clips.view(images.shape), images)


def test_noise_is_a_hash_of_keys_and_place() -> None:
    keys = np.array([[7.0, 8.0], [7.0, 9.0], [2**24 - 1, 0]], np.float32)
    whole = (0, 0, 110, 100, 0, 0, 0, 1, 1, 1)
    slot = ops.slot(Op.ERASE, np.ones(3, bool), *whole, keys[:, 0], keys[:, 1])
    found = done(torch.zeros(3, 100, 110, 3), slot).reshape(3, -1)
    golden = [
        [-0.55679, 1.05202, -0.76335],
        [1.17433, 1.62351, 0.23811],
        [-1.21705, 1.23388, -0.08961],
    ]
    np.testing.assert_allclose(found[:, [0, 1, -1]], golden, atol=2e-4)
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=0.01)
    np.testing.assert_allclose(found.std(axis=1), 1, atol=0.01)


def test_a_rectangle_is_erased() -> None:
    levels = pictures(2)
    slot = ops.slot(
        Op.ERASE,
        np.ones(2, bool),
        4,
        3,
        9,
        20,
        10,
        20,
        30,
        *[np.array([0.0, 60.0])] * 3,
        np.array([5.0, 6.0]),
        1,
    )
    found = done(levels, slot)
    outside = np.ones((HEIGHT, WIDTH), bool)
    outside[3:20, 4:9] = False
    np.testing.assert_array_equal(found[:, outside], levels.numpy()[:, outside])
    assert (found[0, 3:20, 4:9] == [10, 20, 30]).all()
    noisy = found[1, 3:20, 4:9]
    assert (
        noisy.std() == pytest.approx(60, rel=0.2) and noisy.min() < 0
    )  # a share of the normalised image
