"""Which frames and which window a clip has: pure functions of sizes, frame counts, times and uniforms, mostly for a whole batch at a time.

Frames are counted within the segment, in display order. A clip that is longer than its segment repeats the last frame, as SlowFast
does (slowfast/datasets/decoder.py: temporal_sampling clamps); torchvision's VideoClips leaves such videos out instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dataset import windows

Array = np.ndarray[Any, Any]

UNIFORMS = 3  # of a random window: shorter side, left, top


def last_start(frames: Array, count: int, stride: int) -> Array:
    """int64 [B], the last frame at which `count` frames, `stride` apart, can begin; 0 where they never fit."""
    return np.maximum(frames - ((count - 1) * stride + 1), 0)


def last_start_in_time(pts: Array, count: int, step: float) -> int:
    """The same where the frames are `step` ticks apart, to half a tick. `pts`: int64 [F], increasing."""
    return max(int(np.searchsorted(pts, pts[-1] - (count - 1) * step + 0.5, side="right")) - 1, 0)


def random_start(last: Array, draws: Array) -> Array:
    """int64 [B], each start from 0 to `last` with the same probability. `draws`: float64 [B] in [0, 1)."""
    return np.floor(draws * (last + 1)).astype(np.int64)


def spaced_start(last: Array, clip: Array, clips: int) -> Array:
    """int64 [B], the start of clip number `clip` of `clips`: evenly apart, the first at 0, the last at `last`; a single one in the middle.

    SlowFast's spacing with DATA.USE_OFFSET_SAMPLING (get_start_end_idx there), which without it never reaches the end.
    """
    return last // 2 if clips == 1 else clip * last // (clips - 1)


def by_stride(start: Array, frames: Array, count: int, stride: int) -> Array:
    """int64 [B, count], the frames start, start + stride, ... of segments that have `frames` frames."""
    return np.minimum(start[:, None] + np.arange(count) * stride, frames[:, None] - 1)


def by_time(pts: Array, start: int, count: int, step: float) -> Array:
    """int64 [count], the frames of one segment nearest to pts[start], pts[start] + step, ... ticks; the earlier of two that are as near."""
    wanted = pts[start] + np.arange(count) * step
    after = np.searchsorted(pts, wanted).clip(max=len(pts) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(wanted - pts[before] <= np.abs(pts[after] - wanted), before, after)


def random_window(heights: Array, widths: Array, draws: Array, *, shorter: tuple[int, int], crop: int) -> tuple[Array, Array]:
    """(regions, windows): resize to a random shorter side, cut out a random square of `crop` pixels.

    The side is uniform between the two of `shorter` and rounded, as SlowFast trains on Kinetics (transform.random_short_side_scale_jitter
    without inverse_uniform_sampling: DATA.INV_UNIFORM_SAMPLE is set for Charades and SSv2 alone). `draws`: float64 [B, UNIFORMS].
    """
    low, high = shorter
    new_h, new_w = windows.resized(heights, widths, np.rint(low + draws[:, 0] * (high - low)).astype(np.int64))
    left, top = np.floor(draws[:, 1] * (new_w - crop + 1)), np.floor(draws[:, 2] * (new_h - crop + 1))
    return windows.preimage(heights, widths, new_h, new_w, left, top, crop)


def fixed_window(heights: Array, widths: Array, place: Array, *, resize: int, crop: int) -> tuple[Array, Array]:
    """(regions, windows): resize to a shorter side, cut out the square at `place` of the longer side: 0 its begin, 1 middle, 2 end.

    SlowFast's transform.uniform_crop: left to right, or top to bottom where the height is larger; the other side is centred.
    """
    new_h, new_w = windows.resized(heights, widths, resize)
    free_h, free_w = new_h - crop, new_w - crop
    upright = heights > widths
    along, across = np.where(upright, free_h, free_w), np.where(upright, free_w, free_h)
    along = np.choose(place, [np.zeros_like(along), -(-along // 2), along])
    across = -(-across // 2)
    return windows.preimage(heights, widths, new_h, new_w, np.where(upright, across, along), np.where(upright, along, across), crop)
