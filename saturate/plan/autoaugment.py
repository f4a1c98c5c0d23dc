"""Policies that choose operations at random: RandAugment, TrivialAugment, AutoAugment, 3-Augment.

    policy.draw(uniforms) -> which of TRANSFORMS, and how strong, a slot each -> `transformed`: Rows.ops

Strengths are torchvision's (torchvision/transforms/v2/_auto_augment.py), and of names that begin with "rand-"
timm's (timm/data/auto_augment.py). Knows no sample, no device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from saturate.contracts import Array, UserError
from saturate.plan import affine
from saturate.plan.ops import WIDTH, Op

BLUR_SIGMA = (0.1, 2.0)
"""Smallest and largest deviation of a blur, pixels: of 3-Augment and of SimCLR."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What a transform is given at a strength of 0 (`low`) to 1 (`high`)."""

    low: float
    high: float
    signed: bool = False  # the half of them is negative
    whole: Callable[[Array], Array] | None = None  # rounds them
    of_side: bool = False  # in sides of the image; else in what the transform takes

    def __call__(self, strength: Array, negative: Array, side: int) -> Array:
        """Return float64 [n] of strengths [n]; `negative`: bool [n]."""
        values = (self.low + (self.high - self.low) * strength) * (
            side if self.of_side else 1
        )
        values = np.where(negative & self.signed, -values, values)
        return self.whole(values) if self.whole else values


Space = Mapping[str, Scale | None]
"""Name of a transform -> its strengths; None where it has no number."""
Take = Callable[[Array, int], Array]
"""(strengths float64 [n], the image's side in pixels) -> the operation's numbers, [n, P]."""


def _factor(values: Array, side: int) -> Array:
    return np.maximum(1 + values, 0)[:, None]


def _same(values: Array, side: int) -> Array:
    return values[:, None]


def _nothing(values: Array, side: int) -> Array:
    return np.zeros((len(values), 0))


TRANSFORMS: dict[str, tuple[Op | None, Take]] = {
    "identity": (None, _nothing),
    "shear_x": (Op.AFFINE, affine.shear_x),
    "shear_y": (Op.AFFINE, affine.shear_y),
    "translate_x": (
        Op.AFFINE,
        lambda values, side: affine.translation(values, 0 * values),
    ),
    "translate_y": (
        Op.AFFINE,
        lambda values, side: affine.translation(0 * values, values),
    ),
    "rotate": (Op.AFFINE, lambda values, side: affine.rotation(values)),
    "brightness": (Op.BRIGHTNESS, _factor),
    "color": (Op.SATURATION, _factor),
    "contrast": (Op.CONTRAST, _factor),
    "sharpness": (Op.SHARPNESS, _factor),
    "posterize": (Op.POSTERIZE, _same),
    "solarize": (Op.SOLARIZE, _same),
    "solarize_add": (Op.SOLARIZE_ADD, _same),
    "autocontrast": (Op.AUTOCONTRAST, _nothing),
    "equalize": (Op.EQUALIZE, _nothing),
    "invert": (Op.INVERT, _nothing),
    "greyscale": (Op.GREYSCALE, _nothing),
    "blur": (Op.BLUR, _same),
}
"""Name -> its operation, and what makes the operation's numbers; of AFFINE the map alone."""
NAMES = tuple(TRANSFORMS)
COLOURS = ("brightness", "color", "contrast", "sharpness")


def _space(
    *, shear: float, shift: Scale, turn: float, colour: float, bits: int
) -> Space:
    return {
        "identity": None,
        **dict.fromkeys(("shear_x", "shear_y"), Scale(0, shear, signed=True)),
        **dict.fromkeys(("translate_x", "translate_y"), shift),
        "rotate": Scale(0, turn, signed=True),
        **dict.fromkeys(COLOURS, Scale(0, colour, signed=True)),
        "posterize": Scale(8, 8 - bits, whole=np.rint),
        "solarize": Scale(255, 0),
        "autocontrast": None,
        "equalize": None,
    }


RANDAUGMENT = _space(
    shear=0.3,
    shift=Scale(0, 150 / 331, signed=True, of_side=True, whole=np.trunc),
    turn=30,
    colour=0.9,
    bits=4,
)
"""RandAugment's magnitudes (Cubuk et al. 2019), torchvision's; AutoAugment has them too, with invert."""
TRIVIALAUGMENT = _space(
    shear=0.99,
    shift=Scale(0, 32, signed=True, whole=np.trunc),
    turn=135,
    colour=0.99,
    bits=6,
)
"""TrivialAugment Wide's magnitudes (Mueller and Hutter 2021)."""
AUTOAUGMENT: Space = {**RANDAUGMENT, "invert": None}
THREEAUGMENT: Space = {
    "greyscale": None,
    "solarize": Scale(128, 128),
    "blur": Scale(*BLUR_SIGMA),
}
_TIMM_MOVES: Space = {
    "autocontrast": None,
    "equalize": None,
    "invert": None,
    "solarize_add": Scale(0, 110, whole=np.floor),
    "rotate": Scale(0, 30, signed=True),
    **dict.fromkeys(("shear_x", "shear_y"), Scale(0, 0.3, signed=True)),
    **dict.fromkeys(
        ("translate_x", "translate_y"), Scale(0, 0.45, signed=True, of_side=True)
    ),
}
# a name is drawn by its place in the space
TIMM_COLOURS = ("color", "contrast", "brightness", "sharpness")
TIMM: Space = {
    **_TIMM_MOVES,
    "posterize": Scale(0, 4, whole=np.floor),
    "solarize": Scale(0, 256, whole=np.floor),
    **dict.fromkeys(TIMM_COLOURS, Scale(-0.9, 0.9)),
}
"""Magnitudes of timm's strings without inc1: colours, posterize, solarize are strong where it is low."""
TIMM_INCREASING: Space = {
    **_TIMM_MOVES,
    "posterize": Scale(4, 0, whole=np.ceil),
    "solarize": Scale(256, 0, whole=np.ceil),
    **dict.fromkeys(TIMM_COLOURS, Scale(0, 0.9, signed=True)),
}
"""Magnitudes of timm's strings with inc1: all grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What --auto-augment names: draws `slots` operations for an image.

    This one is RandAugment, any transforms of a space, each with its own strength; also TrivialAugment.
    """

    space: Space
    slots: int = 2
    # None: any of `bins`, evenly
    strength: float | None = 9 / 30
    bins: int = 31
    # the strength's: it is normal and cut to [0, 1]; inf: it is uniform from 0 to `strength`
    deviation: float = 0.0
    probability: float = 1.0

    @property
    def uniforms(self) -> int:
        """Return how many uniforms `draw` takes."""
        return 5 * self.slots

    def draw(self, draws: Array, side: int) -> tuple[Array, Array]:
        """Return (which, values), int64 and float64 [B, slots]: places in NAMES, -1 for none, and strengths.

        `draws`: float64 [B, uniforms] in [0, 1).
        """
        # axes: [5, B, slots]
        name, sign, applied, first, second = np.moveaxis(
            draws.reshape(len(draws), self.slots, 5), 2, 0
        )
        if self.strength is None:
            strengths = np.floor(first * self.bins) / (self.bins - 1)
        elif self.deviation == np.inf:
            strengths = first * self.strength
        else:
            normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
            strengths = np.clip(self.strength + self.deviation * normal, 0, 1)
        names = np.array([NAMES.index(one) for one in self.space])
        which = names[(name * len(names)).astype(np.int64)]
        which = np.where(applied < self.probability, which, -1)
        return which, _values(self.space, which, strengths, sign < 0.5, side)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoAugment(Policy):
    """One of IMAGENET's pairs, each part with its probability and strength (Cubuk et al. 2018)."""

    @property
    def uniforms(self) -> int:
        # the pair; of its parts whether they are applied, and their signs
        return 5

    def draw(self, draws: Array, side: int) -> tuple[Array, Array]:
        pair = (draws[:, 0] * len(IMAGENET)).astype(np.int64)
        # axes: [B, 2 parts, 3]
        parts = IMAGENET[pair]
        which = np.where(draws[:, 1:3] < parts[:, :, 1], parts[:, :, 0], -1)
        which = which.astype(np.int64)
        strengths = parts[:, :, 2] / 9
        return which, _values(self.space, which, strengths, draws[:, 3:] < 0.5, side)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreeAugment(Policy):
    """Greyscale, solarize or blur, one of the three (Touvron et al., DeiT III, 2022)."""

    @property
    def uniforms(self) -> int:
        return 2

    def draw(self, draws: Array, side: int) -> tuple[Array, Array]:
        names = np.array([NAMES.index(one) for one in self.space])
        which = names[(draws[:, :1] * 3).astype(np.int64)]
        negative = np.zeros(which.shape, bool)
        return which, _values(self.space, which, draws[:, 1:], negative, side)


def _pairs(table: str) -> Array:
    """Return float64 [pairs, 2, 3] of lines: place in NAMES, probability, strength."""
    words = table.split()
    names = [NAMES.index(word) for word in words[::3]]
    numbers = zip(names, map(float, words[1::3]), map(float, words[2::3]), strict=True)
    return np.array(list(numbers)).reshape(-1, 2, 3)


IMAGENET = _pairs("""
    posterize 0.4 8   rotate 0.6 9
    solarize 0.6 5    autocontrast 0.6 0
    equalize 0.8 0    equalize 0.6 0
    posterize 0.6 7   posterize 0.6 6
    equalize 0.4 0    solarize 0.2 4
    equalize 0.4 0    rotate 0.8 8
    solarize 0.6 3    equalize 0.6 0
    posterize 0.8 5   equalize 1.0 0
    rotate 0.2 3      solarize 0.6 8
    equalize 0.6 0    posterize 0.4 6
    rotate 0.8 8      color 0.4 0
    rotate 0.4 9      equalize 0.6 0
    equalize 0.0 0    equalize 0.8 0
    invert 0.6 0      equalize 1.0 0
    color 0.6 4       contrast 1.0 8
    rotate 0.8 8      color 1.0 2
    color 0.8 8       solarize 0.8 7
    sharpness 0.4 7   invert 0.6 0
    shear_x 0.6 5     equalize 1.0 0
    color 0.4 0       equalize 0.6 0
    equalize 0.4 0    solarize 0.2 4
    solarize 0.6 5    autocontrast 0.6 0
    invert 0.6 0      equalize 1.0 0
    color 0.6 4       contrast 1.0 8
    equalize 0.8 0    equalize 0.6 0
""")
"""AutoAugment's pairs for ImageNet: (name, probability, strength out of 9) twice."""
UNIFORM_DEVIATION = 100
"""Deviation of timm's strings, mstd, above which magnitudes are uniform from 0 to m."""
POLICIES: dict[str, Policy | None] = {
    "none": None,
    "randaugment": Policy(space=RANDAUGMENT),
    "trivialaugment": Policy(space=TRIVIALAUGMENT, slots=1, strength=None),
    "autoaugment": AutoAugment(space=AUTOAUGMENT),
    "3augment": ThreeAugment(space=THREEAUGMENT, slots=1),
}
"""Name -> policy, of those that have one. A name that begins with "rand-" is timm's."""


def policy_of(name: str) -> Policy | None:
    """Return the policy that --auto-augment names. Raises UserError."""
    if name in POLICIES:
        return POLICIES[name]
    if name.startswith("rand-"):
        return _of_timm(name)
    raise UserError(
        f"--auto-augment {name}: choose {', '.join(POLICIES)}, or timm's rand-m9-mstd0.5-inc1"
    )


def _of_timm(name: str) -> Policy:
    """Return the policy of timm's string. Raises UserError.

    m is the magnitude of 10, n how many operations, mstd the magnitude's deviation (above 100: uniform from 0
    to m), p their probability, inc that all grow with it. timm's mmax and t are not here.
    """
    values = {"m": 10.0, "n": 2.0, "mstd": 0.0, "p": 0.5, "inc": 0.0}
    words = [re.fullmatch(r"([a-z]+)(\d+\.?\d*)", word) for word in name.split("-")[1:]]
    given = {word[1]: float(word[2]) for word in words if word}
    known = len(given) == len(words) and given.keys() <= values.keys()
    values |= given
    in_range = values["m"] <= 10 and values["n"] >= 1 and values["p"] <= 1
    if not known or not in_range or values["n"] % 1 or values["inc"] % 1:
        raise UserError(
            f"--auto-augment {name}: of m9 (the magnitude, 0 to 10), n2 (how many operations), mstd0.5 (the "
            "magnitude's deviation; mstd101: any up to m), inc1 (all grow with it) and p0.5 (their "
            "probability) each may be there once"
        )
    return Policy(
        space=TIMM_INCREASING if values["inc"] else TIMM,
        slots=int(values["n"]),
        strength=values["m"] / 10,
        deviation=np.inf if values["mstd"] > UNIFORM_DEVIATION else values["mstd"] / 10,
        probability=values["p"],
    )


def _values(
    space: Space, which: Array, strengths: Array, negative: Array, side: int
) -> Array:
    """Return float64 [B, slots], what each transform is given; 0 where it takes nothing."""
    values = np.zeros(which.shape)
    for name, scale in space.items():
        selected = which == NAMES.index(name)
        if scale is not None:
            values[selected] = scale(strengths[selected], negative[selected], side)
    return values


def transformed(
    which: Array, values: Array, side: int, fill: tuple[float, float, float]
) -> Array:
    """Return float32 [B, slots, WIDTH], `Rows.ops` of what a policy has drawn; nothing is composed yet.

    Images are `side` pixels wide and tall. Maps are bilinear, and show the levels `fill` outside of them.
    """
    out = np.zeros((*which.shape, WIDTH), np.float32)
    for place, (operation, take) in enumerate(TRANSFORMS.values()):
        selected = which == place
        if operation is not None and selected.any():
            numbers = take(values[selected], side)
            out[selected, 0] = operation
            out[selected, 1 : 1 + numbers.shape[1]] = numbers
            if operation == Op.AFFINE:
                out[selected, 7:11] = (1.0, *fill)
    return out
