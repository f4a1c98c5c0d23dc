"""The plan of images with a label: which window and which turn. Knows no loader, no label, no device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from saturate.contracts import Array, BatchSpec, UserError
from saturate.plan import windows
from saturate.plan.augment import UNTOUCHED, Augment, turns
from saturate.plan.draws import Purpose, uniforms
from saturate.plan.epoch import EpochPlan

MULTIPLE = 32
"""Sizes between the first and the last are multiples of so many pixels: the stride of most networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Images that grow: `start` pixels up to epoch `begin`, the full size from epoch `end` on.

    In between the size is in proportion, rounded to a multiple of MULTIPLE, as in ffcv-imagenet.
    """

    start: int
    begin: int
    end: int

    def size(self, epoch: int, full: int) -> int:
        """Return the height and width of an epoch's images, in pixels."""
        if epoch >= self.end:
            return full
        if epoch <= self.begin:
            return self.start
        share = (epoch - self.begin) / (self.end - self.begin)
        size = self.start + share * (full - self.start)
        return min(max(round(size / MULTIPLE) * MULTIPLE, self.start), full)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePolicy:
    """How images are framed. `resize` (shorter side, pixels) is read by `center` alone."""

    window: Literal["random-resized", "center", "stretch"]
    image_size: int
    growth: Growth | None = None  # training: smaller images in the first epochs
    resize: int = 256
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    vflip: float = 0.0
    # a name of windows.SUPPORT: what a centre crop decodes reaches as far
    interpolation: str = "bilinear"
    augment: Augment = UNTOUCHED

    def __post_init__(self) -> None:
        if self.window == "center" and self.resize < self.image_size:
            raise UserError(
                f"--val-resize {self.resize} is smaller than the image size, {self.image_size}; "
                "the crop would leave the image"
            )

    def size(self, epoch: int) -> int:
        """Return the height and width of an epoch's images, in pixels."""
        growth = self.growth
        return growth.size(epoch, self.image_size) if growth else self.image_size

    def frame(
        self, seed: int, epoch: int, ids: Array, heights: Array, widths: Array
    ) -> tuple[Array, Array, Array]:
        """Return (regions, windows, turns) of samples `ids`, whose stored sizes are `heights` x `widths`."""
        size = self.size(epoch)
        if self.window == "random-resized":
            draws = uniforms(seed, epoch, Purpose.WINDOW, ids, windows.UNIFORMS)
            regions = windows.random_resized(
                heights, widths, draws, scale=self.scale, ratio=self.ratio
            )
            inner = windows.filling(regions)
        elif self.window == "stretch":
            regions = windows.whole(heights, widths)
            inner = windows.filling(regions)
        else:
            regions, inner = windows.resize_then_center(
                heights,
                widths,
                # the same share of the image
                resize=round(self.resize * size / self.image_size),
                crop=size,
                support=windows.SUPPORT[self.interpolation],
            )
        turned = turns(seed, epoch, ids, flip=self.flip, upside_down=self.vflip)
        return regions, inner, turned


@dataclass(frozen=True, slots=True)
class ImagePlan(EpochPlan):
    """contracts.Plan for images."""

    policy: ImagePolicy

    @property
    def first_epochs(self) -> tuple[int, ...]:
        size = self.policy.size
        last = self.policy.growth.end if self.policy.growth else 0
        later = range(1, last + 1)
        return 0, *(epoch for epoch in later if size(epoch) != size(epoch - 1))

    def pixels(self, epoch: int) -> int:
        return self.policy.size(epoch) ** 2

    def batch_spec(self) -> BatchSpec:
        return replace(EpochPlan.batch_spec(self), ops=self.policy.augment.operates)

    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        drawn = self.rng_counters(ids, views)
        regions, inner, turned = self.policy.frame(
            self.seed, epoch, drawn, *self._stored(ids)
        )
        sizes = np.full((len(ids), 2), self.policy.size(epoch), np.int64)
        ops = self.policy.augment.draw(self.seed, epoch, drawn, sizes)
        return {
            "regions": regions,
            "windows": inner,
            "sizes": sizes,
            "turns": turned,
            "ops": ops,
        }
