"""Decoded surfaces on the device -> RGB of the output's size, all frames of a clip at once.

What _planes.py does on the CPU, with its filters, in one kernel (_surfaces_kernel.py). A surface is NV12: the
luma, [H, W], and below it the chroma, [H / 2, W], with U and V in turns; the picture is at its top left, and
may be smaller. Where Triton cannot build the kernel, surfaces are copied to the host and resized there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import ModuleType

import numpy as np
import torch

from saturate.contracts import Array
from saturate.loaders.videos._planes import (
    Fitter,
    Picture,
    Plane,
    offsets_and_factors,
    seen_and_taken,
)
from saturate.system.triton_kernels import kernels

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


class Fit:
    """Brings surfaces that are like `picture` to the window of one row of a batch: made once a clip."""

    def __init__(
        self, picture: Picture, region: Array, window: Array, size: tuple[int, int]
    ) -> None:
        """`region`, `window` and `size` are what loaders.videos._planes.Fitter takes."""
        self._picture = picture
        self._region = region
        self._window = window
        self._size = size
        seen, taken = (box.tolist() for box in seen_and_taken(picture, region, window))
        # height and width of the stored picture, which is turned last
        self._stored = size if picture.turns % 2 == 0 else size[::-1]
        luma = picture.planes[0]
        # for y, then x: begin, step and, of the samples that are seen, first and end
        self._axes = list[float]()
        for at, count, length in zip(
            (1, 0), self._stored, (luma.height, luma.width), strict=True
        ):
            step = (taken[at + 2] - taken[at]) / count
            low = max(math.floor(seen[at]), 0)
            high = min(math.ceil(seen[at + 2]), length)
            self._axes += [taken[at], step, low, high]

    def __call__(self, surfaces: torch.Tensor) -> torch.Tensor:
        """Return uint8 [N, height, width, 3] of uint8 [N, H * 3 / 2, W], rounded as on the CPU."""
        kernel = _kernel(surfaces.device) if surfaces.device.type == "cuda" else None
        if kernel is None:
            return self.by_host(surfaces)
        return self.by_kernel(surfaces, kernel)

    def by_kernel(self, surfaces: torch.Tensor, kernel: ModuleType) -> torch.Tensor:
        assert surfaces.is_contiguous()
        count, rows, row = surfaces.shape
        tall, wide = self._stored
        out = torch.empty(
            (count, tall, wide, 3), dtype=torch.uint8, device=surfaces.device
        )
        kernel._fit[count, -(-tall * wide // kernel.BLOCK)](
            surfaces,
            out,
            rows * row,
            row,
            rows * 2 // 3 * row,
            tall,
            wide,
            *self._axes,
            *offsets_and_factors(self._picture),
            SIZE=kernel.BLOCK,
        )
        return out.rot90(self._picture.turns, (1, 2))

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


def build(device: torch.device) -> None:
    """Build the kernel before several threads need it."""
    if device.type == "cuda":
        _kernel(device)


@cache
def _kernel(device: torch.device) -> ModuleType | None:
    """Return loaders.videos._surfaces_kernel; None, with a warning, where Triton cannot build it."""

    def build(kernel: ModuleType) -> None:
        picture = nv12(2, 2, matrix=(0.3, 0.1), full_range=False, turns=0)
        whole = np.array([0, 0, 2, 2])
        pixels = torch.zeros((1, 3, 2), dtype=torch.uint8, device=device)
        Fit(picture, whole, whole, (2, 2)).by_kernel(pixels, kernel)

    return kernels(
        "saturate.loaders.videos._surfaces_kernel",
        build,
        "surfaces are resized on the host",
    )
