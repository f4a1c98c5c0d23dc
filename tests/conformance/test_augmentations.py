"""Augmentations draw what the libraries draw that recipes were made with: each of the table has a case."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torchvision.transforms import (
    ColorJitter,
    GaussianBlur,
    RandomErasing,
    TrivialAugmentWide,
)

from saturate.contracts import Array
from saturate.plan.augment import AUGMENTATIONS, Augmentation
from saturate.plan.ops import Op

COUNT = 6000
SIDES = 200, 300
"""Height and width of the images."""


class Case(NamedTuple):
    """Settings of an augmentation; samples of `ours`, of its slots [B, N, 1 + P], are drawn as those of `theirs`."""

    settings: dict[str, Any]
    ours: Callable[[Array], dict[str, Array]]
    theirs: Callable[[], dict[str, Array]]
    sizes: tuple[int, int] = SIDES


def of(slots: Array, op: Op) -> Array:
    """Return the numbers of all slots of an operation, [n, P]."""
    return np.asarray(slots[slots[..., 0] == op][:, 1:])


def jittered(slots: Array) -> dict[str, Array]:
    ops = {
        name: of(slots, op)[:, 0]
        for name, op in (
            ("brightness", Op.BRIGHTNESS),
            ("contrast", Op.CONTRAST),
            ("saturation", Op.SATURATION),
            ("hue", Op.HUE),
        )
    }
    first = slots[:, 0, 0]
    return ops | {"brightness first": (first == Op.BRIGHTNESS).astype(float)}


def jittered_by_torchvision() -> dict[str, Array]:
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)
    drawn = [
        ColorJitter.get_params(
            jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue
        )
        for _ in range(COUNT)
    ]
    names = "brightness", "contrast", "saturation", "hue"
    found = {
        name: np.array([one[1 + at] for one in drawn]) for at, name in enumerate(names)
    }
    # the order has their numbers, and brightness is 0
    return found | {
        "brightness first": np.array([float(one[0][0] == 0) for one in drawn])
    }


def greyed(slots: Array) -> dict[str, Array]:
    return {"grey": (slots[:, 0, 0] == Op.GREYSCALE).astype(float)}


def blurred(slots: Array) -> dict[str, Array]:
    chosen = (slots[:, 0, 0] == Op.BLUR).astype(float)
    return {"chosen": chosen, "sigma": of(slots, Op.BLUR)[:, 0]}


def blurred_by_torchvision() -> dict[str, Array]:
    sigma = [GaussianBlur.get_params(0.1, 2.0) for _ in range(COUNT)]
    return {"chosen": shares(0.5), "sigma": np.array(sigma)}


def erased(slots: Array) -> dict[str, Array]:
    x0, y0, x1, y1 = of(slots, Op.ERASE)[:, :4].T
    chosen = (slots[:, 0, 0] == Op.ERASE).astype(float)
    return {"chosen": chosen, "x": x0, "y": y0, **sides(y1 - y0, x1 - x0)}


def sides(height: Array, width: Array) -> dict[str, Array]:
    return {
        "width": width,
        "height": height,
        "area": height * width,
        "ratio": height / width,
    }


def erased_by_torchvision() -> dict[str, Array]:
    image = torch.empty(3, *SIDES)
    drawn = [
        RandomErasing.get_params(image, (0.02, 0.33), (0.3, 3.3), [0.0])[:4]
        for _ in range(COUNT)
    ]
    y, x, height, width = np.array(drawn, float).T
    return {"chosen": shares(0.6), "x": x, "y": y, **sides(height, width)}


MOVES = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"}
OPS = {
    "Brightness": Op.BRIGHTNESS,
    "Color": Op.SATURATION,
    "Contrast": Op.CONTRAST,
    "Sharpness": Op.SHARPNESS,
    "Posterize": Op.POSTERIZE,
    "Solarize": Op.SOLARIZE,
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
}


def chosen_ops(slots: Array) -> dict[str, Array]:
    codes = slots[..., 0].max(axis=1)
    found = {name: (codes == op).astype(float) for name, op in OPS.items()}
    return found | {"moved": (codes == Op.AFFINE).astype(float)}


def chosen_by_torchvision() -> dict[str, Array]:
    """Each operation of its space is as likely."""
    names = list(TrivialAugmentWide()._augmentation_space(31))
    each = 1 / len(names)
    found = {name: shares(each) for name in OPS if name in names}
    return found | {"moved": shares(each * len(MOVES.intersection(names)))}


def shares(share: float) -> Array:
    """Return ones and zeros, so many of them ones."""
    return (np.arange(COUNT) < share * COUNT).astype(float)


CASES = {
    "Auto": Case(
        {"auto_augment": "trivialaugment"},
        chosen_ops,
        chosen_by_torchvision,
        sizes=(224, 224),
    ),
    "Jitter": Case(
        {"color_jitter": 0.4, "hue_jitter": 0.1}, jittered, jittered_by_torchvision
    ),
    "Grayscale": Case({"grayscale": 0.3}, greyed, lambda: {"grey": shares(0.3)}),
    "Blur": Case({"blur": 0.5}, blurred, blurred_by_torchvision),
    "Erase": Case({"erase": 0.6}, erased, erased_by_torchvision),
}
"""A class of AUGMENTATIONS -> how it draws."""


@pytest.mark.parametrize("kind", AUGMENTATIONS, ids=lambda kind: kind.__name__)
def test_an_augmentation_draws_as_the_library_does(kind: type[Augmentation]) -> None:
    """Two samples of 6,000 of one distribution differ in none of their shares below a value by 4 % or more."""
    assert kind.__name__ in CASES, f"{kind.__name__} has no case in CASES"
    case = CASES[kind.__name__]
    sizes = np.tile(case.sizes, (COUNT, 1))
    torch.manual_seed(0)
    slots = kind(**case.settings).draw(3, 1, np.arange(COUNT), sizes)
    ours, theirs = case.ours(slots), case.theirs()
    assert ours.keys() == theirs.keys()
    for name, drawn in ours.items():
        assert largest_difference(drawn, theirs[name]) < 0.04, name


def largest_difference(one: Array, other: Array) -> float:
    """Return the statistic of Kolmogorov and Smirnov."""
    every = np.sort(np.concatenate([one, other]))
    below = [
        np.searchsorted(np.sort(sample), every, side="right") / len(sample)
        for sample in (one, other)
    ]
    return float(np.abs(below[0] - below[1]).max())


def test_the_statistic_is_that_of_a_hand() -> None:
    """Half of 1, 2, 3, 4 is below 2.5, and nothing of 3, 4, 5, 6 is."""
    one, other = np.array([1.0, 2, 3, 4]), np.array([3.0, 4, 5, 6])
    assert math.isclose(largest_difference(one, other), 0.5)
