"""Decoded surfaces on the device -> normalised RGB of the output's size, all frames of a clip at once.

What loaders/_planes.py does on the CPU, with its filters: each plane is multiplied by a matrix from the left and by one from the right, and
the few pixels that are left become RGB. A surface is NV12: the luma, [H, W], and below it the chroma, [H / 2, W], with U and V in turns.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch

from loaders._planes import Picture, Plane, offsets_and_factors, stored

Array = np.ndarray[Any, Any]

NOTHING = np.empty(0, np.uint8)


def nv12(height: int, width: int, *, matrix: tuple[float, float], full_range: bool, turns: int) -> Picture:
    """What a surface of these stored sides, both even, shows; without its samples."""
    chroma = Plane(NOTHING, width // 2, height // 2, width // 2)
    return Picture((Plane(NOTHING, width, height, width), chroma, chroma), matrix=matrix, full_range=full_range, turns=turns)


class Fit:
    """Brings surfaces that are like `picture` to the window of one row of a batch: made once a clip."""

    def __init__(self, picture: Picture, region: Array, window: Array, size: tuple[int, int], flip: bool, device: torch.device) -> None:
        """`region`, `window`, `size` and `flip` as loaders._planes.Fitter takes them."""
        turns = picture.turns % 4
        corner = np.tile(np.asarray(region[:2], np.float64), 2)
        seen = stored(np.asarray(region, np.float64), picture.shape, turns)
        taken = stored(np.asarray(window, np.float64) + corner, picture.shape, turns)
        height, width = size if turns % 2 == 0 else size[::-1]
        luma = picture.planes[0]
        self._turns, self._flip, self._height = turns, flip, luma.height
        # whole numbers of 8 bits are exact in fp16, and its weights err by less than a tenth of a grey level
        dtype = torch.float16 if device.type == "cuda" else torch.float32
        bands = []
        for part in (1, 2):
            for at, count, length in ((1, height, luma.height), (0, width, luma.width)):
                begin, end, low, high = (float(edge) / part for edge in (taken[at], taken[at + 2], seen[at], seen[at + 2]))
                bands.append(band(begin, end, count, low, high, length // part, device=device, dtype=dtype))
        self._matrices, self._spans = zip(*bands, strict=True)
        dark, gain, middle, rv, gu, gv, bu = offsets_and_factors(picture)
        self._luma, self._middle, self._to_rgb = (gain, -dark * gain), middle, ((0.0, rv), (gu, gv), (bu, 0.0))

    def __call__(self, surfaces: torch.Tensor) -> torch.Tensor:
        """uint8 [N, H * 3 / 2, W] -> float32 [N, height, width, 3], grey levels rounded to whole ones as on the CPU."""
        (top, bottom), (left, right), (u_top, u_bottom), (u_left, u_right) = self._spans
        down, across, u_down, u_across = self._matrices
        luma = surfaces[:, top:bottom, left:right].to(down.dtype)
        levels = (down @ luma @ across.T).float() * self._luma[0] + self._luma[1]
        chroma = surfaces[:, self._height + u_top : self._height + u_bottom, 2 * u_left : 2 * u_right].to(down.dtype)
        # [N, height, 2 * columns] -> [N, height, 2, columns]: U and V apart
        apart = (u_down @ chroma).unflatten(2, (-1, 2)).transpose(2, 3)
        u, v = ((apart @ u_across.T).float() - self._middle).unbind(2)
        rgb = torch.stack([levels + by_u * u + by_v * v for by_u, by_v in self._to_rgb], dim=-1)
        rgb = rgb.add_(0.5).floor_().clamp_(0, 255)
        if self._turns:
            rgb = rgb.rot90(self._turns, (1, 2))
        return rgb.flip(2) if self._flip else rgb


def band(
    begin: float, end: float, count: int, low: float, high: float, length: int, *, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, tuple[int, int]]:
    """(matrix [count, last - first], (first, last)): loaders._planes.triangle's filter on the samples [first, last), made on the device.

    A thread has the interpreter's lock for a fraction of what the same takes in NumPy, and nothing is copied to the device.
    """
    step = (end - begin) / count
    support = max(step, 1.0)
    centre = begin + 0.5 * step
    first = max(math.floor(centre - support), math.floor(low), 0)
    last = min(math.ceil(centre + (count - 1) * step + support), math.ceil(high), length)
    last = max(last, first + 1)
    places = _numbers(device)
    apart = places[: last - first] - (places[:count] * step).add_(centre - first - 0.5)[:, None]
    weights = apart.abs_().mul_(-1 / support).add_(1).clamp_(min=0)
    return weights.div_(weights.sum(dim=1, keepdim=True).clamp_(min=1e-6)).to(dtype), (first, last)


@cache
def _numbers(device: torch.device) -> torch.Tensor:
    """float32, 0 to more than any side has."""
    return torch.arange(1 << 14, dtype=torch.float32, device=device)
