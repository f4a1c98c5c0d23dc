"""Which frames and which window a clip has: pure functions of sizes, frame counts, times and uniforms.

Most take a whole batch. Frames are counted within the segment, in display order. A clip that is longer than
its segment repeats the last frame, as SlowFast does (slowfast/datasets/decoder.py: temporal_sampling clamps);
torchvision's VideoClips leaves such videos out instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from saturate.contracts import Array, BatchSpec, ClipColumns, UserError
from saturate.plan import windows
from saturate.plan.augment import UNTOUCHED, Augment, turns
from saturate.plan.draws import Purpose, uniforms
from saturate.plan.epoch import EpochPlan

UNIFORMS = 3  # numbers that a random window is drawn by: shorter side, left, top


def last_start(frames: Array, count: int, stride: int) -> Array:
    """Return int64 [B]: the last frame where `count` frames, `stride` apart, can begin; 0 if none fit."""
    return np.maximum(frames - ((count - 1) * stride + 1), 0)


def last_start_in_time(pts: Array, count: int, step: float) -> int:
    """Return int64 [B] as `last_start` does, for frames `step` ticks apart, to half a tick.

    `pts`: int64 [F], increasing.
    """
    return max(
        int(np.searchsorted(pts, pts[-1] - (count - 1) * step + 0.5, side="right")) - 1,
        0,
    )


def random_start(last: Array, draws: Array) -> Array:
    """Return int64 [B], starts from 0 to `last`, each as probable. `draws`: float64 [B] in [0, 1)."""
    return np.floor(draws * (last + 1)).astype(np.int64)


def spaced_start(last: Array, clip: Array, clips: int) -> Array:
    """Return int64 [B], the start of clip `clip` of `clips`, which lie evenly from 0 to `last`.

    A single clip starts in the middle. This is SlowFast's spacing with DATA.USE_OFFSET_SAMPLING
    (get_start_end_idx there), which without it never reaches the end.
    """
    return last // 2 if clips == 1 else clip * last // (clips - 1)


def by_stride(start: Array, frames: Array, count: int, stride: int) -> Array:
    """Return int64 [B, count], the frames start, start + stride, ... of segments of `frames` frames."""
    return np.minimum(start[:, None] + np.arange(count) * stride, frames[:, None] - 1)


def by_time(pts: Array, start: int, count: int, step: float) -> Array:
    """Return int64 [count], the frames of a segment nearest to pts[start], pts[start] + step, ... ticks.

    Of two that are as near it is the earlier.
    """
    wanted = pts[start] + np.arange(count) * step
    after = np.searchsorted(pts, wanted).clip(max=len(pts) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(wanted - pts[before] <= np.abs(pts[after] - wanted), before, after)


def random_window(
    heights: Array, widths: Array, draws: Array, *, shorter: tuple[int, int], crop: int
) -> tuple[Array, Array]:
    """Return (regions, windows): a random shorter side, then a random square of `crop` pixels.

    The side is uniform between the two of `shorter` and rounded, as SlowFast trains on Kinetics
    (transform.random_short_side_scale_jitter without inverse_uniform_sampling: DATA.INV_UNIFORM_SAMPLE is set
    for Charades and SSv2 alone). `draws`: float64 [B, UNIFORMS].
    """
    low, high = shorter
    new_h, new_w = windows.resized(
        heights, widths, np.rint(low + draws[:, 0] * (high - low)).astype(np.int64)
    )
    left, top = (
        np.floor(draws[:, 1] * (new_w - crop + 1)),
        np.floor(draws[:, 2] * (new_h - crop + 1)),
    )
    return windows.preimage(heights, widths, new_h, new_w, left, top, crop)


def fixed_window(
    heights: Array, widths: Array, place: Array, *, resize: int, crop: int
) -> tuple[Array, Array]:
    """Return (regions, windows): resize to a shorter side, then cut a square out of the longer side.

    `place` says where: 0 at its begin, 1 in the middle, 2 at its end. This is SlowFast's
    transform.uniform_crop: left to right, or top to bottom where the height is larger; the other side is
    centred.
    """
    new_h, new_w = windows.resized(heights, widths, resize)
    upright = heights > widths
    # half of what is left, rounded up, times the place
    left = -(-(new_w - crop) * np.where(upright, 1, place) // 2)
    top = -(-(new_h - crop) * np.where(upright, place, 1) // 2)
    return windows.preimage(heights, widths, new_h, new_w, left, top, crop)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPolicy:
    """How clips are taken from videos: random ones to train on, evenly spaced ones to validate."""

    frames: int  # of a clip
    image_size: int
    stride: int = 1  # from one frame to the next: frames of the video, or of `fps`
    # frames a second to sample at: the nearest in time; None = every video at its own rate
    fps: float | None = None
    # training: the side to which a video is scaled before the random crop, pixels
    shorter: tuple[int, int] = (256, 320)
    flip: float = 0.0  # training: probability, one draw a clip
    vflip: float = 0.0
    augment: Augment = UNTOUCHED  # training: one draw a clip
    clips: int = 1  # validation: of a video
    crops: int = 1  # validation: of a clip, 1 in the middle or 3 along the longer side
    # validation: shorter side before the crops, pixels; SlowFast takes `image_size` for 3 crops
    resize: int = 256

    def __post_init__(self) -> None:
        for flag, side in (
            ("--short-side", self.shorter[0]),
            ("--short-side", self.shorter[1]),
            ("--val-resize", self.resize),
        ):
            if side < self.image_size:
                raise UserError(
                    f"{flag} {side} is smaller than --image-size {self.image_size}; "
                    "the crop would leave the video"
                )
        if self.crops not in (1, 3):
            raise UserError(
                f"--val-crops {self.crops}: 1 (the middle) or 3 (along the longer side)"
            )


@dataclass(frozen=True, slots=True)
class ClipPlan(EpochPlan):
    """contracts.Plan for clips of videos.

    Training: one random clip of each video. Validation: policy.clips x policy.crops views of each video, one
    after the other, with the video's id.
    """

    columns: ClipColumns
    policy: ClipPolicy

    def batch_spec(self) -> BatchSpec:
        return replace(
            EpochPlan.batch_spec(self),
            frames=self.policy.frames,
            ops=self.training and self.policy.augment.operates,
            same_frames=1 if self.training else self.policy.crops,
        )

    @property
    def views(self) -> int:
        if self.training:
            return self.max_repeats
        return self.policy.clips * self.policy.crops

    @property
    def segments(self) -> tuple[Array, Array]:
        return self.columns.first, self.columns.frames

    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        policy = self.policy
        heights, widths = self._stored(ids)
        clip, crop = np.divmod(views, policy.crops)
        drawn = self.rng_counters(ids, views)
        sizes = np.full((len(ids), 2), policy.image_size, np.int64)
        ops = None
        if self.training:
            draws = uniforms(self.seed, epoch, Purpose.WINDOW, drawn, UNIFORMS)
            regions, inner = random_window(
                heights, widths, draws, shorter=policy.shorter, crop=policy.image_size
            )
            turned = turns(
                self.seed, epoch, drawn, flip=policy.flip, upside_down=policy.vflip
            )
            ops = policy.augment.draw(self.seed, epoch, drawn, sizes)
        else:
            place = crop if policy.crops == 3 else np.ones_like(crop)
            regions, inner = fixed_window(
                heights, widths, place, resize=policy.resize, crop=policy.image_size
            )
            turned = np.zeros(len(ids), np.uint8)
        return {
            "regions": regions,
            "windows": inner,
            "sizes": sizes,
            "turns": turned,
            "frames": self._frames(epoch, ids, drawn, clip),
            "ops": ops,
        }

    def _frames(self, epoch: int, ids: Array, drawn: Array, clip: Array) -> Array:
        policy = self.policy
        columns = self.columns
        first = columns.first[ids]
        frames = columns.frames[ids]
        count = policy.frames
        if policy.fps is None:
            last = last_start(frames, count, policy.stride)
            starts = self._starts(epoch, drawn, clip, last)
            return first[:, None] + by_stride(starts, frames, count, policy.stride)
        # in this order: another one would round otherwise
        steps = policy.stride / policy.fps * columns.time_base_den[ids]
        steps = steps / columns.time_base_num[ids]
        pts = [
            columns.pts(sample)[begin : begin + length]
            for sample, begin, length in zip(ids, first, frames, strict=True)
        ]
        timed = list(zip(pts, steps, strict=True))
        last = np.array(
            [last_start_in_time(times, count, step) for times, step in timed]
        )
        starts = self._starts(epoch, drawn, clip, last)
        picked = [
            by_time(times, start, count, step)
            for (times, step), start in zip(timed, starts, strict=True)
        ]
        return first[:, None] + np.stack(picked)

    def _starts(self, epoch: int, drawn: Array, clip: Array, last: Array) -> Array:
        if self.training:
            draws = uniforms(self.seed, epoch, Purpose.FRAMES, drawn, 1)[:, 0]
            return random_start(last, draws)
        return spaced_start(last, clip, self.policy.clips)
