"""What is done to the pixels of a training image or clip, drawn as `Rows.ops`. Knows no device.

Each augmentation is one class here: its fields are settings of train.py by their names, `draw` gives its
slots of `Rows.ops`, and its line in AUGMENTATIONS says when it acts. What a slot does to pixels is an
operation: plan/ops.py numbers them, loaders/_ops.py does them. Flips are turns, and crops are windows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from saturate.contracts import Array
from saturate.plan import affine, autoaugment, geometry
from saturate.plan.draws import Purpose, uniforms
from saturate.plan.ops import KEY_BITS, Op, joined, slot

ERASE_AREA = (0.02, 0.33)
"""Smallest and largest share of the image that is erased (Zhong et al. 2017)."""
ERASE_RATIO = (0.3, 3.3)
"""Smallest and largest height / width of it."""
TRIES = 10
"""Rectangles that are drawn until one fits; where none does, nothing is erased. As torchvision and timm."""
BLACK = (0.0, 0.0, 0.0)


def turns(
    seed: int, epoch: int, ids: Array, *, flip: float, upside_down: float
) -> Array:
    """Return uint8 [B], turns of samples `ids`: `flip` and `upside_down` are probabilities."""
    mirrored = uniforms(seed, epoch, Purpose.FLIP, ids, 1)[:, 0] < flip
    flipped = uniforms(seed, epoch, Purpose.UPSIDE_DOWN, ids, 1)[:, 0] < upside_down
    return geometry.mirror(mirrored) + geometry.FLIP * geometry.mirror(flipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What an augmentation knows of the network's images."""

    mean: tuple[float, float, float] = BLACK  # levels that become 0 once normalised
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)  # levels that become 1 apart
    # a pixel's new colour may depend on that pixel alone, as in SSD
    pixelwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation(ABC):
    """One augmentation of AUGMENTATIONS: built of the settings that its fields name, and a `look`."""

    look: Look = Look()

    @property
    @abstractmethod
    def on(self) -> bool:
        """Whether the settings ask for it."""

    @abstractmethod
    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array:
        """Return float32 [B, slots, WIDTH], its slots of `Rows.ops` for samples `ids`.

        `sizes`: int64 [B, 2], height and width of the images.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto(Augmentation):
    """A policy that chooses operations. Images have to be square and alike; maps that follow are composed."""

    auto_augment: str = "none"

    def __post_init__(self) -> None:
        autoaugment.policy_of(self.auto_augment)  # raises UserError for an unknown name

    @property
    def on(self) -> bool:
        return self.auto_augment != "none"

    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array:
        policy = autoaugment.policy_of(self.auto_augment)
        assert policy is not None
        side = int(sizes[0, 0])
        # outside of the image, timm has the mean and torchvision black
        fill = self.look.mean if self.auto_augment.startswith("rand-") else BLACK
        which, values = policy.draw(
            uniforms(seed, epoch, Purpose.AUTO, ids, policy.uniforms), side
        )
        return affine.composed(autoaugment.transformed(which, values, side, fill))


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter(Augmentation):
    """Brightness, contrast, saturation and hue, in an order that is drawn."""

    color_jitter: float = 0.0
    hue_jitter: float = 0.0

    @property
    def on(self) -> bool:
        return self.color_jitter > 0 or self.hue_jitter > 0

    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array:
        draws = uniforms(seed, epoch, Purpose.JITTER, ids, 8)
        low = max(1 - self.color_jitter, 0)
        brightness, contrast, saturation = low + draws[:, :3].T * (
            1 + self.color_jitter - low
        )
        hues = (2 * draws[:, 3] - 1) * self.hue_jitter
        colours = np.full(len(draws), self.color_jitter > 0)
        # contrast is about the image's mean, which is no pixel's own
        about_mean = Op.BRIGHTNESS if self.look.pixelwise else Op.CONTRAST
        parts = (
            slot(Op.BRIGHTNESS, colours, brightness),
            slot(about_mean, colours, contrast),
            slot(Op.SATURATION, colours, saturation),
            slot(Op.HUE, np.full(len(draws), self.hue_jitter > 0), hues),
        )
        order = draws[:, 4:].argsort(axis=1)
        slots = np.concatenate(parts, axis=1)
        return slots[np.arange(len(slots))[:, None], order]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grayscale(Augmentation):
    """Some images become grey."""

    grayscale: float = 0.0

    @property
    def on(self) -> bool:
        return self.grayscale > 0

    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array:
        chosen = uniforms(seed, epoch, Purpose.GREY, ids, 1)[:, 0] < self.grayscale
        return slot(Op.GREYSCALE, chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blur(Augmentation):
    """Some images are blurred by a Gaussian."""

    blur: float = 0.0

    @property
    def on(self) -> bool:
        return self.blur > 0

    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array:
        chosen, strength = uniforms(seed, epoch, Purpose.BLUR, ids, 2).T
        low, high = autoaugment.BLUR_SIGMA
        return slot(Op.BLUR, chosen < self.blur, low + strength * (high - low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase(Augmentation):
    """A rectangle becomes the mean (const), one colour (rand) or noise (pixel)."""

    erase: float = 0.0
    erase_mode: Literal["const", "rand", "pixel"] = "const"

    @property
    def on(self) -> bool:
        return self.erase > 0

    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array:
        draws = uniforms(seed, epoch, Purpose.ERASE, ids, 2 * TRIES + 11)
        tries, (applied, left, top, *_) = draws[:, : 2 * TRIES], draws[:, 2 * TRIES :].T
        tall, wide = sizes.T
        low, high = ERASE_AREA
        area = (tall * wide)[:, None] * (low + tries[:, ::2] * (high - low))
        low, high = np.log(ERASE_RATIO)
        ratio = np.exp(low + tries[:, 1::2] * (high - low))
        # axes: [B, TRIES]
        heights = np.rint(np.sqrt(area * ratio))
        widths = np.rint(np.sqrt(area / ratio))
        fits = (heights < tall[:, None]) & (widths < wide[:, None])
        # the first of the rectangles that is smaller than the image
        each, first = np.arange(len(ids)), fits.argmax(axis=1)
        height, width = heights[each, first], widths[each, first]
        x0 = np.floor(left * (wide - width + 1))
        y0 = np.floor(top * (tall - height + 1))
        colours = np.tile(np.array(self.look.mean), (len(draws), 1))
        if self.erase_mode == "rand":
            # axes: [B, 3]
            one, other = draws[:, -8:-5], draws[:, -5:-2]
            normal = np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * np.pi * other)
            colours = colours + normal * np.array(self.look.std)
        deviations = self.look.std if self.erase_mode == "pixel" else BLACK
        keys = np.floor(draws[:, -2:] * 2**KEY_BITS)
        chosen = (applied < self.erase) & fits.any(axis=1)
        corners = x0, y0, x0 + width, y0 + height
        return slot(Op.ERASE, chosen, *corners, *colours.T, *deviations, *keys.T)


AUGMENTATIONS: tuple[type[Augmentation], ...] = (Auto, Jitter, Grayscale, Blur, Erase)
"""The augmentations, in the order in which they act, which is that of timm and torchvision's references."""


@dataclass(frozen=True, slots=True)
class Augment:
    """What is done to a training image: augmentations in their order."""

    parts: tuple[Augmentation, ...] = ()

    @property
    def operates(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.parts)

    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array | None:
        """Return `Rows.ops` of samples `ids`, whose images have these `sizes`; None where all is off."""
        return joined(*(part.draw(seed, epoch, ids, sizes) for part in self.parts))


UNTOUCHED = Augment()
"""Nothing is done."""
