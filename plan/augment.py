"""What is done to the pixels of a training image or clip, drawn as `Rows.ops`. Knows no device.

In the order of timm and torchvision's references: the policy of --auto-augment, colour jitter, greyscale,
blur, erasing. Flips are turns, and crops are windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from contracts import Array
from plan import affine, autoaugment, geometry
from plan.draws import Purpose, uniforms
from plan.ops import KEY_BITS, Op, slot

ERASE_AREA = (0.02, 0.33)
"""Smallest and largest share of the image that is erased (Zhong et al. 2017)."""
ERASE_RATIO = (0.3, 3.3)
"""Smallest and largest height / width of it."""
TRIES = 10
"""Rectangles that are drawn until one fits; where none does, nothing is erased. As torchvision and timm."""


def turns(seed: int, epoch: int, ids: Array, *, flip: float, upside_down: float) -> Array:
    """Return uint8 [B], turns of samples `ids`: `flip` and `upside_down` are probabilities."""
    mirrored = geometry.mirror(uniforms(seed, epoch, Purpose.FLIP, ids, 1)[:, 0] < flip)
    if not upside_down:
        return mirrored
    return mirrored + geometry.FLIP * geometry.mirror(
        uniforms(seed, epoch, Purpose.UPSIDE_DOWN, ids, 1)[:, 0] < upside_down
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """What may be done to a training image; all of it is off unless it is given."""

    auto: autoaugment.Policy | None = None
    smooth: bool = True  # maps of the policy are bilinear; else nearest
    fill: tuple[float, float, float] = (0.0, 0.0, 0.0)  # levels outside of what a map shows
    jitter: float = 0.0  # brightness, contrast and saturation are scaled by 1 - jitter to 1 + jitter
    hue: float = 0.0  # is turned by -hue to hue
    pixelwise: bool = False  # contrast is about black, as in SSD, and not about the image's mean
    greyscale: float = 0.0  # probability
    blur: float = 0.0  # probability
    erase: float = 0.0  # probability
    erase_mode: Literal["const", "rand", "pixel"] = "const"  # the mean; one colour; noise
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)  # levels that become 0 once normalised
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)  # levels that become 1 apart

    @property
    def operates(self) -> bool:
        """Whether there is anything to draw."""
        chances = (self.jitter, self.hue, self.greyscale, self.blur, self.erase)
        return self.auto is not None or any(chance > 0 for chance in chances)

    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array | None:
        """Return `Rows.ops` of samples `ids`; None where all is off. Maps that follow are composed.

        `sizes`: int64 [B, 2], height and width of the images, which are square and alike where `auto` is
        given.
        """
        if not self.operates:
            return None
        slots = []
        if self.auto is not None:
            draws = uniforms(seed, epoch, Purpose.AUTO, ids, self.auto.uniforms)
            side = int(sizes[0, 0])
            look = autoaugment.Look(side=side, smooth=self.smooth, fill=self.fill)
            slots.append(affine.composed(autoaugment.transformed(*self.auto.draw(draws, side), look)))
        if self.jitter or self.hue:
            slots.append(self._jittered(uniforms(seed, epoch, Purpose.JITTER, ids, 8)))
        if self.greyscale:
            drawn = uniforms(seed, epoch, Purpose.GREY, ids, 1)[:, 0]
            slots.append(slot(Op.GREYSCALE, drawn < self.greyscale))
        if self.blur:
            draws = uniforms(seed, epoch, Purpose.BLUR, ids, 2)
            low, high = autoaugment.BLUR_SIGMA
            slots.append(slot(Op.BLUR, draws[:, 0] < self.blur, low + draws[:, 1] * (high - low)))
        if self.erase:
            slots.append(self._erased(uniforms(seed, epoch, Purpose.ERASE, ids, 2 * TRIES + 11), sizes))
        return np.concatenate(slots, axis=1)

    def _jittered(self, draws: Array) -> Array:
        """Return float32 [B, 4, WIDTH]: the four parts in an order that is drawn."""
        low = max(1 - self.jitter, 0)
        factors = low + draws[:, :3] * (1 + self.jitter - low)
        turns = (2 * draws[:, 3] - 1) * self.hue
        colours = np.full(len(draws), self.jitter > 0)
        contrast = Op.BRIGHTNESS if self.pixelwise else Op.CONTRAST
        scaled = (Op.BRIGHTNESS, contrast, Op.SATURATION)
        parts = [
            *(slot(op, colours, factor) for op, factor in zip(scaled, factors.T, strict=True)),
            slot(Op.HUE, np.full(len(draws), self.hue > 0), turns),
        ]
        order = draws[:, 4:].argsort(axis=1)
        return np.take_along_axis(np.concatenate(parts, axis=1), order[:, :, None], axis=1)

    def _erased(self, draws: Array, sizes: Array) -> Array:
        """Return float32 [B, 1, WIDTH]: the first of the rectangles drawn that is smaller than the image."""
        tries, (applied, left, top, *_) = draws[:, : 2 * TRIES], draws[:, 2 * TRIES :].T
        tall, wide = sizes.T
        area = (tall * wide)[:, None] * (ERASE_AREA[0] + tries[:, ::2] * (ERASE_AREA[1] - ERASE_AREA[0]))
        low, high = np.log(ERASE_RATIO)
        ratio = np.exp(low + tries[:, 1::2] * (high - low))
        # axes: [B, TRIES]
        heights = np.rint(np.sqrt(area * ratio))
        widths = np.rint(np.sqrt(area / ratio))
        fits = (heights < tall[:, None]) & (widths < wide[:, None])
        first = fits.argmax(axis=1)[:, None]
        height, width = (np.take_along_axis(sides, first, axis=1)[:, 0] for sides in (heights, widths))
        x0 = np.floor(left * (wide - width + 1))
        y0 = np.floor(top * (tall - height + 1))
        colours = np.tile(np.array(self.mean), (len(draws), 1))
        if self.erase_mode == "rand":
            # axes: [B, 3]
            one, other = draws[:, -8:-5], draws[:, -5:-2]
            normal = np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * np.pi * other)
            colours = colours + normal * np.array(self.std)
        deviations = self.std if self.erase_mode == "pixel" else (0.0, 0.0, 0.0)
        keys = np.floor(draws[:, -2:] * 2**KEY_BITS)
        chosen = (applied < self.erase) & fits.any(axis=1)
        return slot(Op.ERASE, chosen, x0, y0, x0 + width, y0 + height, *colours.T, *deviations, *keys.T)


UNTOUCHED = Augment()
"""Nothing is done."""
