"""A classifier with its preprocessing inside, as operators that every exporter has. Knows no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Framing:
    """How a validation frames and normalises an image: plan.images.ImagePolicy and contracts.Pixels."""

    window: Literal["center", "stretch"]
    resize: int  # of `center`: length of the shorter side before the crop, pixels
    image_size: int  # side of what the network gets, pixels
    mean: tuple[float, float, float]  # of RGB in [0, 1]
    std: tuple[float, float, float]
    interpolation: str  # a name of FILTERS
    exif: str  # stored or shown: whether the caller turns images as EXIF says


def _triangle(offsets: torch.Tensor) -> torch.Tensor:
    return torch.clamp(1 - offsets.abs(), min=0.0)


def _cubic(offsets: torch.Tensor) -> torch.Tensor:
    """Return Keys' kernel with a = -1/2, which Pillow has."""
    far = offsets.abs()
    near = (1.5 * far - 2.5) * far * far + 1
    outer = ((-0.5 * far + 2.5) * far - 4) * far + 2
    return torch.where(
        far < 1, near, torch.where(far < 2, outer, torch.zeros_like(far))
    )


FILTERS = {"bilinear": _triangle, "bicubic": _cubic}
"""--interpolation -> its kernel, of distances in pixels of whichever image has larger ones."""


class Preprocessed(nn.Module):
    """uint8 [B, H, W, 3], RGB of any height and width -> the network's logits, fp32 [B, C].

    Pixels are resized by the filters of Pillow: two products with matrices that are made of the size. Levels
    are rounded after each, as Pillow does; it may take the rows first, which may be another grey level.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, network: nn.Module, framing: Framing) -> None:
        super().__init__()
        self.network = network
        self.framing = framing
        # axes: [channels, height, width]
        self.register_buffer("mean", torch.tensor(framing.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(framing.std).view(3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, fp32 [B, C]."""
        levels = images.permute(0, 3, 1, 2).float()
        rows, columns = self._windows(levels)
        across = self._filter(levels.shape[3], *columns, like=levels)
        down = self._filter(levels.shape[2], *rows, like=levels)
        levels = torch.round(levels @ across.T).clamp(0, 255)
        levels = torch.round(down @ levels).clamp(0, 255)
        logits: torch.Tensor = self.network((levels / 255 - self.mean) / self.std)
        return logits.float()

    def _windows(
        self, levels: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        """Return begin and end, in stored pixels, of what fills the output: of rows, and of columns."""
        # as tensors: sizes are known when the exported network runs
        height = _length(levels.shape[2], levels)
        width = _length(levels.shape[3], levels)
        if self.framing.window == "stretch":
            return (height * 0, height), (width * 0, width)
        shorter = torch.minimum(height, width)
        windows = []
        for length in (height, width):
            resized = torch.floor(self.framing.resize * length / shorter)
            begin = torch.round((resized - self.framing.image_size) / 2)
            step = length / resized
            windows.append((begin * step, (begin + self.framing.image_size) * step))
        return windows[0], windows[1]

    def _filter(
        self, length: int, begin: torch.Tensor, end: torch.Tensor, *, like: torch.Tensor
    ) -> torch.Tensor:
        """Return fp32 [S, length], the weight of each stored pixel in each pixel of the output."""
        size = self.framing.image_size
        scale = (end - begin) / size
        support = torch.clamp(scale, min=1.0)
        centres = begin + (torch.arange(size, device=like.device) + 0.5) * scale
        offsets = torch.arange(length, device=like.device) + 0.5
        kernel = FILTERS[self.framing.interpolation]
        weights = kernel((offsets[None, :] - centres[:, None]) / support)
        return weights / weights.sum(dim=1, keepdim=True)


def _length(length: int, like: torch.Tensor) -> torch.Tensor:
    """Return a length as fp32 [1]."""
    return torch.arange(length, device=like.device)[-1:] + 1.0
