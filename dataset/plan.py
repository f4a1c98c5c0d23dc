"""The plan: which sample, which frames, which window, which flip, in which order, for one rank. Knows no loader, no label, no device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, overload

import numpy as np

from config import Augmentation
from contracts import Mistake, Rows
from dataset import clips, order, windows
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
    def training(settings: Augmentation, native: Any) -> StillPolicy:
        """What training images go through; `native` has `size` and `zoom`, as a models.Native."""
        return StillPolicy(
            window=settings.train_window,
            image_size=native.size,
            resize=_shorter_side(settings, native),
            scale=settings.crop_scale,
            ratio=settings.crop_ratio,
            flip=settings.flip,
        )

    @staticmethod
    def validation(settings: Augmentation, native: Any) -> StillPolicy:
        """What validation images go through: nothing random."""
        return StillPolicy(window=settings.val_window, image_size=native.size, resize=_shorter_side(settings, native))

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


def _shorter_side(settings: Augmentation, native: Any) -> int:
    return settings.val_resize or round(native.size * native.zoom)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPolicy:
    """How clips are taken from videos: random ones to train on, evenly spaced ones to validate."""

    frames: int  # of a clip
    image_size: int
    stride: int = 1  # from one frame to the next: frames of the video, or of `fps`
    fps: float | None = None  # frames a second to sample at: the nearest in time; None = every video at its own rate
    shorter: tuple[int, int] = (256, 320)  # training: the side to which a video is scaled before the random crop, pixels
    flip: float = 0.0  # training: probability, one draw a clip
    clips: int = 1  # validation: of a video
    crops: int = 1  # validation: of a clip, 1 in the middle or 3 along the longer side
    resize: int = 256  # validation: shorter side before the crops, pixels; SlowFast takes `image_size` for 3 crops

    def __post_init__(self) -> None:
        for flag, side in (("--short-side", self.shorter[0]), ("--short-side", self.shorter[1]), ("--val-resize", self.resize)):
            if side < self.image_size:
                raise Mistake(f"{flag} {side} is smaller than --image-size {self.image_size}; the crop would leave the video")
        if self.crops not in (1, 3):
            raise Mistake(f"--val-crops {self.crops}: 1 (the middle) or 3 (along the longer side)")

    def training(self, seed: int, epoch: int, ids: Array, heights: Array, widths: Array) -> tuple[Array, Array, Array]:
        """(regions, windows, flips) of samples `ids`, displayed at `heights` x `widths`."""
        draws = uniforms(seed, epoch, Purpose.WINDOW, ids, clips.UNIFORMS)
        regions, inner = clips.random_window(heights, widths, draws, shorter=self.shorter, crop=self.image_size)
        return regions, inner, uniforms(seed, epoch, Purpose.FLIP, ids, 1)[:, 0] < self.flip

    def validation(self, crop: Array, heights: Array, widths: Array) -> tuple[Array, Array, Array]:
        """The same of crops number `crop`."""
        place = crop if self.crops == 3 else np.ones_like(crop)
        regions, inner = clips.fixed_window(heights, widths, place, resize=self.resize, crop=self.image_size)
        return regions, inner, np.zeros(len(crop), bool)


TOGETHER = 64
"""Rows that are drawn at once, where a micro-batch has fewer: NumPy's calls take nearly as long for 8, and other threads stand still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan(ABC):
    """What plans share: whose share of which order. A *place* is a view of a sample: sample * views + view."""

    seed: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    accumulate: int = 1
    training: bool = True

    @property
    @abstractmethod
    def samples(self) -> int:
        """Of the whole data set."""

    @property
    @abstractmethod
    def image_size(self) -> int:
        """Of the outputs, pixels."""

    @property
    def views(self) -> int:
        """Rows that a sample has in an epoch."""
        return 1

    @property
    def resident(self) -> int:
        return 1

    @property
    def together(self) -> int:
        """Micro-batches that are drawn at once."""
        return max(TOGETHER // self.batch_size, 1)

    @property
    def ordering(self) -> str:
        return f"seed {self.seed}"

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of what a model gets for one row: 3, frames of a clip, height, width."""
        return (3, self.image_size, self.image_size)

    @abstractmethod
    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        """The fields of Rows of views of samples, but ids and valid; sizes may be left out where all are image_size x image_size."""

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
        """This rank's micro-batches after `first` samples (validation: places) of the epoch are consumed."""
        return _EpochRows(self, epoch, first, self.ordered(epoch))

    def ordered(self, epoch: int) -> Array:
        """int64, the places of an epoch in their order."""
        if self.training:
            return order.order(self.seed, epoch, self.samples)
        return np.arange(self.samples * self.views, dtype=np.int64)

    def draw(self, epoch: int, places: Array, count: int = 0) -> Rows:
        """The rows of any places, padded with id -1 to `count`, or to the batch size."""
        real, count = len(places), count or self.batch_size
        if real < count:
            places = np.concatenate([places, np.full(count - real, places[-1] if real else 0)])
        ids, views = np.divmod(places, self.views)
        valid = np.arange(len(ids)) < real
        sizes = np.full((len(ids), 2), self.image_size, np.int64)
        return Rows(**{"ids": np.where(valid, ids, -1), "valid": valid, "sizes": sizes, **self.frame(epoch, ids, views)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StillPlan(EpochPlan):
    """contracts.Plan for still images. `heights` and `widths` are columns of stored sizes, pixels [n]."""

    heights: Array
    widths: Array
    policy: StillPolicy

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

    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        """Regions and windows in stored pixels."""
        heights, widths = np.asarray(self.heights[ids]), np.asarray(self.widths[ids])
        regions, inner, flips = self.policy.frame(self.seed, epoch, ids, heights, widths)
        return {"regions": regions, "windows": inner, "flips": flips}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPlan(EpochPlan):
    """contracts.Plan for clips of videos. `columns` is a dataset.videos.Videos.

    Training: one random clip of each video. Validation: policy.clips x policy.crops views of each video, one after the other, with the
    video's id.
    """

    columns: Any
    policy: ClipPolicy

    @staticmethod
    def of(columns: Any, policy: ClipPolicy, **numbers: Any) -> ClipPlan:
        """The plan of a manifest's videos."""
        return ClipPlan(columns=columns, policy=policy, **numbers)

    @property
    def samples(self) -> int:
        return len(self.columns)

    @property
    def image_size(self) -> int:
        return self.policy.image_size

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return (3, self.policy.frames, self.image_size, self.image_size)

    @property
    def views(self) -> int:
        return 1 if self.training else self.policy.clips * self.policy.crops

    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        """Regions and windows in displayed pixels; frames int64 [B, T], counted from the first of the file."""
        heights, widths = (np.asarray(column[ids]) for column in (self.columns.height, self.columns.width))
        clip, crop = np.divmod(views, self.policy.crops)
        if self.training:
            regions, inner, flips = self.policy.training(self.seed, epoch, ids, heights, widths)
        else:
            regions, inner, flips = self.policy.validation(crop, heights, widths)
        return {"regions": regions, "windows": inner, "flips": flips, "frames": self._frames(epoch, ids, clip)}

    def _frames(self, epoch: int, ids: Array, clip: Array) -> Array:
        policy, columns = self.policy, self.columns
        first, frames = columns.first[ids], columns.frames[ids]
        if policy.fps is None:
            last = clips.last_start(frames, policy.frames, policy.stride)
            return first[:, None] + clips.by_stride(self._starts(epoch, ids, clip, last), frames, policy.frames, policy.stride)
        steps = policy.stride / policy.fps * columns.time_base_den[ids] / columns.time_base_num[ids]
        pts = [columns.pts(sample)[begin : begin + count] for sample, begin, count in zip(ids, first, frames, strict=True)]
        last = np.array([clips.last_start_in_time(own, policy.frames, step) for own, step in zip(pts, steps, strict=True)])
        starts = self._starts(epoch, ids, clip, last)
        picked = [clips.by_time(own, start, policy.frames, step) for own, start, step in zip(pts, starts, steps, strict=True)]
        return first[:, None] + np.stack(picked)

    def _starts(self, epoch: int, ids: Array, clip: Array, last: Array) -> Array:
        if self.training:
            return clips.random_start(last, uniforms(self.seed, epoch, Purpose.FRAMES, ids, 1)[:, 0])
        return clips.spaced_start(last, clip, self.policy.clips)


class _EpochRows(Sequence[Rows]):
    """Lazy: an index draws its micro-batch, small ones with their neighbours."""

    def __init__(self, plan: EpochPlan, epoch: int, first: int, ordered: Array) -> None:
        self._plan, self._epoch, self._first, self._ordered = plan, epoch, first, ordered
        self._count = order.micro_batches(
            len(ordered), first, batch_size=plan.batch_size, world_size=plan.world_size, accumulate=plan.accumulate, training=plan.training
        )
        self._drawn: tuple[range, list[Rows]] = range(0), []

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
        which, drawn = self._drawn  # of a thread's own: another one may put its own there
        if index not in which:
            begin = index - index % self._plan.together
            which = range(begin, min(begin + self._plan.together, self._count))
            self._drawn = which, drawn = which, self._draw(which)
        return drawn[index - which.start]

    def _draw(self, which: range) -> list[Rows]:
        """These micro-batches; only the last of an epoch may be short."""
        plan, size = self._plan, self._plan.batch_size
        numbers = {"first": self._first, "batch_size": size, "world_size": plan.world_size, "rank": plan.rank}
        rows = plan.draw(self._epoch, np.concatenate([order.share(self._ordered, i, **numbers) for i in which]), size * len(which))
        if len(which) == 1:
            return [rows]
        assert rows.canvas is None, "a canvas is a batch's: such a plan draws them one by one"
        columns = {column.name: getattr(rows, column.name) for column in fields(rows)}
        arrays = {name: column for name, column in columns.items() if column is not None}
        cuts = (slice(i * size, (i + 1) * size) for i in range(len(which)))
        return [Rows(**{name: column[cut] for name, column in arrays.items()}) for cut in cuts]
