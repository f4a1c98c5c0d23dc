"""The plan: which sample, which window, which flip, in which order, for one rank. Knows no loader, no label, no device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from config import Augmentation
from contracts import Mistake, Rows
from dataset import order, windows
from dataset.draws import Purpose, uniforms

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StillPolicy:
    """How still images are framed. `resize` (shorter side, pixels) is read by `center` alone."""

    window: Literal["random-resized", "center", "stretch"]
    image_size: int
    resize: int = 256
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0

    def __post_init__(self) -> None:
        if self.window == "center" and self.resize < self.image_size:
            raise Mistake(f"--val-resize {self.resize} is smaller than --image-size {self.image_size}; the crop would leave the image")

    @staticmethod
    def training(settings: Augmentation, image_size: int) -> StillPolicy:
        """What training images go through."""
        return StillPolicy(
            window=settings.train_window,
            image_size=image_size,
            resize=_shorter_side(settings, image_size),
            scale=settings.crop_scale,
            ratio=settings.crop_ratio,
            flip=settings.flip,
        )

    @staticmethod
    def validation(settings: Augmentation, image_size: int) -> StillPolicy:
        """What validation images go through: nothing random."""
        return StillPolicy(window=settings.val_window, image_size=image_size, resize=_shorter_side(settings, image_size))

    def frame(self, seed: int, epoch: int, ids: Array, heights: Array, widths: Array) -> tuple[Array, Array, Array]:
        """(regions, windows, flips) of samples `ids`, whose stored sizes are `heights` x `widths`."""
        if self.window == "random-resized":
            draws = uniforms(seed, epoch, Purpose.WINDOW, ids, windows.UNIFORMS)
            regions = windows.random_resized(heights, widths, draws, scale=self.scale, ratio=self.ratio)
        elif self.window == "stretch":
            regions = windows.whole(heights, widths)
        else:
            regions, inner = windows.resize_then_center(heights, widths, resize=self.resize, crop=self.image_size)
        if self.window != "center":
            inner = windows.filling(regions)
        flips = uniforms(seed, epoch, Purpose.FLIP, ids, 1)[:, 0] < self.flip
        return regions, inner, flips


def _shorter_side(settings: Augmentation, image_size: int) -> int:
    return settings.val_resize or round(image_size * 256 / 224)


@dataclass(frozen=True, slots=True, kw_only=True)
class StillPlan:
    """contracts.Plan for still images. `heights` and `widths` are columns of stored sizes, pixels [n]."""

    heights: Array
    widths: Array
    policy: StillPolicy
    seed: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    accumulate: int = 1
    training: bool = True

    @staticmethod
    def of(columns: Any, policy: StillPolicy, **numbers: Any) -> StillPlan:
        """The plan of a manifest's samples."""
        return StillPlan(heights=columns.height, widths=columns.width, policy=policy, **numbers)

    @property
    def samples(self) -> int:
        return len(self.heights)

    @property
    def image_size(self) -> int:
        return self.policy.image_size

    @property
    def step_samples(self) -> int:
        return self.world_size * self.batch_size * self.accumulate

    def steps(self, first: int = 0) -> int:
        """Optimiser steps left in an epoch after `first` samples (validation: micro-batches)."""
        if self.training:
            return order.steps(self.samples, first, self.step_samples)
        return len(self.rows(0, first))

    def require_a_step(self) -> None:
        """Raise Mistake when not even one step fits, naming the largest batch that would."""
        if self.training and self.steps() == 0:
            largest = self.samples // (self.world_size * self.accumulate)
            fits = f"the largest that fits is --batch-size {largest}" if largest else "too few samples for this many ranks"
            got = f"--batch-size {self.batch_size} x {self.world_size} ranks x --accumulate {self.accumulate} = {self.step_samples}"
            raise Mistake(f"{got} samples a step, but there are {self.samples} training samples; {fits}")

    def rows(self, epoch: int, first: int) -> _EpochRows:
        """This rank's micro-batches after `first` samples of the epoch are consumed."""
        ordered = order.order(self.seed, epoch, self.samples) if self.training else np.arange(self.samples, dtype=np.int64)
        return _EpochRows(self, epoch, first, ordered)

    def draw(self, epoch: int, ids: Array) -> Rows:
        """The rows of any ids, padded to the batch size with id -1."""
        real = len(ids)
        if real < self.batch_size:
            ids = np.concatenate([ids, np.full(self.batch_size - real, ids[-1] if real else 0)])
        regions, inner, flips = self.policy.frame(self.seed, epoch, ids, np.asarray(self.heights[ids]), np.asarray(self.widths[ids]))
        valid = np.arange(len(ids)) < real
        sizes = np.full((len(ids), 2), self.policy.image_size, np.int64)
        return Rows(ids=np.where(valid, ids, -1), regions=regions, windows=inner, sizes=sizes, flips=flips, valid=valid)


class _EpochRows(Sequence[Rows]):
    """Lazy: an index draws its micro-batch."""

    def __init__(self, plan: StillPlan, epoch: int, first: int, ordered: Array) -> None:
        self._plan, self._epoch, self._first, self._ordered = plan, epoch, first, ordered
        self._count = order.micro_batches(
            len(ordered), first, batch_size=plan.batch_size, world_size=plan.world_size, accumulate=plan.accumulate, training=plan.training
        )

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Rows: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rows]: ...
    def __getitem__(self, index: int | slice) -> Rows | list[Rows]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(f"micro-batch {index} of {self._count}")
        plan = self._plan
        return plan.draw(
            self._epoch,
            order.share(self._ordered, index, first=self._first, batch_size=plan.batch_size, world_size=plan.world_size, rank=plan.rank),
        )
