"""Decoded surfaces on the device -> RGB of the output's size, all frames of a clip at once.

What _planes.py does on the CPU, with its filters. A surface is NV12: the luma, [H, W], and below it the
chroma, [H / 2, W], with U and V in turns; the picture is at its top left, and may be smaller. One kernel does
it (_surfaces_kernel.py); where Triton cannot build it, each plane is multiplied by a matrix from the left and
by one from the right, and the few pixels that are left become RGB.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from contracts import Array
from loaders._triton import kernels
from loaders.videos._planes import Picture, Plane, offsets_and_factors, stored

NOTHING = np.empty(0, np.uint8)


def nv12(
    height: int,
    width: int,
    *,
    matrix: tuple[float, float],
    full_range: bool,
    turns: int,
) -> Picture:
    """Return the picture of these sides, both even, that a surface shows; without its samples."""
    chroma = Plane(NOTHING, width // 2, height // 2, width // 2)
    return Picture(
        (Plane(NOTHING, width, height, width), chroma, chroma),
        matrix=matrix,
        full_range=full_range,
        turns=turns,
    )


class Axis(NamedTuple):
    """How a side of a plane becomes `samples`: a step each from `begin` on, of what lies in [low, high)."""

    begin: float
    step: float
    samples: int
    low: int
    high: int

    def of_chroma(self) -> Axis:
        return Axis(
            self.begin / 2,
            self.step / 2,
            self.samples,
            self.low // 2,
            -(-self.high // 2),
        )


class Fit:
    """Brings surfaces that are like `picture` to the window of one row of a batch: made once a clip."""

    def __init__(
        self, picture: Picture, region: Array, window: Array, size: tuple[int, int]
    ) -> None:
        """`region`, `window` and `size` are what loaders.videos._planes.Fitter takes."""
        turns = picture.turns % 4
        corner = np.tile(np.asarray(region[:2], np.float64), 2)
        seen = stored(np.asarray(region, np.float64), picture.shape, turns).tolist()
        taken = stored(
            np.asarray(window, np.float64) + corner, picture.shape, turns
        ).tolist()
        height, width = size if turns % 2 == 0 else size[::-1]
        luma = picture.planes[0]
        self._turns = turns
        self._size = size
        self._y, self._x = (
            Axis(
                taken[at],
                (taken[at + 2] - taken[at]) / count,
                count,
                max(math.floor(seen[at]), 0),
                min(math.ceil(seen[at + 2]), length),
            )
            for at, count, length in ((1, height, luma.height), (0, width, luma.width))
        )
        self._colours = offsets_and_factors(picture)

    def __call__(self, surfaces: torch.Tensor) -> torch.Tensor:
        """Return uint8 [N, height, width, 3] of uint8 [N, H * 3 / 2, W], rounded as on the CPU."""
        kernel = _kernel(surfaces.device) if surfaces.device.type == "cuda" else None
        return (
            self.by_matrices(surfaces)
            if kernel is None
            else self.by_kernel(surfaces, kernel)
        )

    def by_kernel(self, surfaces: torch.Tensor, kernel: Any) -> torch.Tensor:
        assert surfaces.is_contiguous()
        count, rows, row = surfaces.shape
        tall, wide = self._size
        out = torch.empty(
            (count, tall, wide, 3), dtype=torch.uint8, device=surfaces.device
        )
        y, x = self._y, self._x
        origin, down, across = places(y.samples, x.samples, self._turns)
        kernel._fit[count, -(-tall * wide // kernel.BLOCK)](
            surfaces, out, rows * row, row, rows * 2 // 3 * row,
            y.samples, x.samples, tall * wide * 3, 3 * origin, 3 * down, 3 * across,
            y.begin, y.step, y.low, y.high, x.begin, x.step, x.low, x.high,
            *self._colours, SIZE=kernel.BLOCK,
        )  # fmt: skip
        return out

    def by_matrices(self, surfaces: torch.Tensor) -> torch.Tensor:
        # whole numbers of 8 bits are exact in fp16, and its weights err by less than a tenth of a grey level
        dtype = torch.float16 if surfaces.device.type == "cuda" else torch.float32
        axes = self._y, self._x, self._y.of_chroma(), self._x.of_chroma()
        (down, across, u_down, u_across), spans = zip(
            *(band(axis, surfaces.device, dtype) for axis in axes), strict=True
        )
        (top, bottom), (left, right), (u_top, u_bottom), (u_left, u_right) = spans
        dark, gain, middle, rv, gu, gv, bu = self._colours
        luma = surfaces[:, top:bottom, left:right].to(dtype)
        levels = ((down @ luma @ across.T).float() - dark) * gain
        begin = surfaces.shape[1] * 2 // 3
        chroma = surfaces[
            :, begin + u_top : begin + u_bottom, 2 * u_left : 2 * u_right
        ].to(dtype)
        # [N, height, 2 * columns] -> [N, height, 2, columns]: U and V apart
        apart = (u_down @ chroma).unflatten(2, (-1, 2)).transpose(2, 3)
        u, v = ((apart @ u_across.T).float() - middle).unbind(2)
        rgb = torch.stack(
            [levels + rv * v, levels + gu * u + gv * v, levels + bu * u], dim=-1
        )
        return (
            rgb.add_(0.5)
            .floor_()
            .clamp_(0, 255)
            .to(torch.uint8)
            .rot90(self._turns, (1, 2))
        )


def places(height: int, width: int, turns: int) -> tuple[int, int, int]:
    """Return (origin, down, across): stored (y, x) is shown as number origin + y * down + x * across."""
    # stored (y, x) -> displayed row and column, each as (constant, of y, of x); loaders/videos/_planes.py
    # turns as np.rot90 does
    row, column = {
        0: ((0, 1, 0), (0, 0, 1)),
        1: ((width - 1, 0, -1), (0, 1, 0)),
        2: ((height - 1, -1, 0), (width - 1, 0, -1)),
        3: ((0, 0, 1), (height - 1, -1, 0)),
    }[turns]
    wide = height if turns % 2 else width
    origin, down, across = (r * wide + c for r, c in zip(row, column, strict=True))
    return origin, down, across


def band(
    axis: Axis, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return (matrix [count, last - first], (first, last)): _planes.triangle on samples [first, last).

    It is made on the device: a thread has the interpreter's lock for a fraction of what the same takes in
    NumPy, and nothing is copied to the device.
    """
    begin, step, count, low, high = axis
    support = max(step, 1.0)
    centre = begin + 0.5 * step
    first = max(math.floor(centre - support), low)
    last = max(min(math.ceil(centre + (count - 1) * step + support), high), first + 1)
    numbers = _numbers(device)
    apart = (
        numbers[: last - first]
        - (numbers[:count] * step).add_(centre - first - 0.5)[:, None]
    )
    weights = apart.abs_().mul_(-1 / support).add_(1).clamp_(min=0)
    return weights.div_(weights.sum(dim=1, keepdim=True).clamp_(min=1e-6)).to(dtype), (
        first,
        last,
    )


@cache
def _numbers(device: torch.device) -> torch.Tensor:
    """Return float32, 0 to more than any side has."""
    return torch.arange(1 << 14, dtype=torch.float32, device=device)


def build(device: torch.device) -> None:
    """Build the kernel, or what matrices are made from, before several threads need it."""
    if device.type == "cuda" and _kernel(device) is None:
        _numbers(device)
        torch.cuda.synchronize(device)  # they use it on streams of their own


@cache
def _kernel(device: torch.device) -> Any:
    """Return loaders.videos._surfaces_kernel; None, with a warning, where Triton cannot build it."""

    def build(kernel: Any) -> None:
        picture = nv12(2, 2, matrix=(0.3, 0.1), full_range=False, turns=0)
        whole = np.array([0, 0, 2, 2])
        pixels = torch.zeros((1, 3, 2), dtype=torch.uint8, device=device)
        Fit(picture, whole, whole, (2, 2)).by_kernel(pixels, kernel)

    return kernels(
        "loaders.videos._surfaces_kernel", build, "surfaces are resized in more steps"
    )
