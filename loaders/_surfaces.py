"""Decoded surfaces on the device -> normalised RGB of the output's size, all frames of a clip at once.

What loaders/_planes.py does on the CPU, with its filters: each plane is multiplied by a matrix from the left and by one from the right, and
the few pixels that are left become RGB. A surface is NV12: the luma, [H, W], and below it the chroma, [H / 2, W], with U and V in turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from loaders._planes import Picture, Plane, offsets_and_factors, stored, triangle

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
                bands.append(triangle(taken[at] / part, taken[at + 2] / part, count, seen[at] / part, seen[at + 2] / part, length // part))
        self._spans = [(int(first[0]), int(first[-1]) + weights.shape[1]) for first, weights in bands]
        self._matrices = matrices(bands, self._spans, device, dtype)
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


def matrices(
    bands: list[tuple[Array, Array]], spans: list[tuple[int, int]], device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """`triangle`'s filters as matrices [count, end - begin]; what they are made of goes to the device in one copy."""
    columns = [np.column_stack([first - begin, weights]) for (first, weights), (begin, _) in zip(bands, spans, strict=True)]
    numbers = torch.from_numpy(np.concatenate([column.ravel() for column in columns]).astype(np.float32)).to(device)
    made, used = [], 0
    for column, (begin, end) in zip(columns, spans, strict=True):
        band = numbers[used : used + column.size].view(column.shape)
        used += column.size
        places = band[:, :1].long() + torch.arange(column.shape[1] - 1, device=device)
        made.append(torch.zeros(len(column), end - begin, device=device).scatter_(1, places, band[:, 1:]).to(dtype))
    return tuple(made)
