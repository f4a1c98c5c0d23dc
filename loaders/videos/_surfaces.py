"""Decoded surfaces on the device -> RGB of the output's size, all frames of a clip at once.

What _planes.py does on the CPU, with its filters, in one kernel (_surfaces_kernel.py). A surface is NV12: the
luma, [H, W], and below it the chroma, [H / 2, W], with U and V in turns; the picture is at its top left, and
may be smaller. Where Triton cannot build the kernel, surfaces are copied to the host and resized there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from contracts import Array
from loaders._triton import kernels
from loaders.videos._planes import Fitter, Picture, Plane, offsets_and_factors, stored

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


class Fit:
    """Brings surfaces that are like `picture` to the window of one row of a batch: made once a clip."""

    def __init__(
        self, picture: Picture, region: Array, window: Array, size: tuple[int, int]
    ) -> None:
        """`region`, `window` and `size` are what loaders.videos._planes.Fitter takes."""
        self._picture = picture
        self._region = region
        self._window = window
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
        if kernel is None:
            return self.by_host(surfaces)
        return self.by_kernel(surfaces, kernel)

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

    def by_host(self, surfaces: torch.Tensor) -> torch.Tensor:
        fitter = Fitter(self._picture, self._region, self._window, self._size)
        out = np.empty((len(surfaces), *self._size, 3), np.uint8)
        for pixels, surface in zip(out, surfaces.cpu().numpy(), strict=True):
            fitter.fill(pixels, _with_samples(self._picture, surface))
        return torch.from_numpy(out).to(surfaces.device)


def _with_samples(picture: Picture, surface: Array) -> Picture:
    """Return the picture with the samples of a surface, uint8 [H * 3 / 2, W]."""
    rows = surface.shape[0] * 2 // 3
    # U and V in turns -> each by itself
    samples = surface[:rows], surface[rows:, ::2], surface[rows:, 1::2]
    planes = tuple(
        replace(plane, data=each.reshape(-1), stride=each.shape[1])
        for plane, each in zip(picture.planes, samples, strict=True)
    )
    return replace(picture, planes=planes)


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


def build(device: torch.device) -> None:
    """Build the kernel before several threads need it."""
    if device.type == "cuda":
        _kernel(device)


@cache
def _kernel(device: torch.device) -> Any:
    """Return loaders.videos._surfaces_kernel; None, with a warning, where Triton cannot build it."""

    def build(kernel: Any) -> None:
        picture = nv12(2, 2, matrix=(0.3, 0.1), full_range=False, turns=0)
        whole = np.array([0, 0, 2, 2])
        pixels = torch.zeros((1, 3, 2), dtype=torch.uint8, device=device)
        Fit(picture, whole, whole, (2, 2)).by_kernel(pixels, kernel)

    return kernels(
        "loaders.videos._surfaces_kernel", build, "surfaces are resized on the host"
    )
