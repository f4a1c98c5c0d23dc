"""Which images of a batch a detector has computed with finite numbers. What is no number it drops in silence:
a score of NaN is above no threshold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

OF_IMAGES = ("rpn.head", "head")
"""Modules whose outputs, in whatever they are nested, are [B, ...]."""
OF_BOXES = ("roi_heads.box_predictor",)
"""Modules whose outputs are [N, ...], with the boxes of an image behind those of the image before."""
POOL = "roi_heads.box_roi_pool"
"""Module that is given the boxes: (features, boxes of each image, sizes)."""


class FiniteImages:
    """Looks at what the heads of a torchvision detector say in evaluation, without waiting for the device."""

    def __init__(self, stock: nn.Module) -> None:
        self._seen: list[torch.Tensor] = []  # bool [B], of each output
        self._counts: list[int] = []  # boxes of each image
        modules = dict(stock.named_modules())
        for name in OF_IMAGES:
            if name in modules:
                modules[name].register_forward_hook(self._of_images)
        if POOL in modules:
            modules[POOL].register_forward_pre_hook(self._boxes)
        for name in OF_BOXES:
            if name in modules:
                modules[name].register_forward_hook(self._of_boxes)

    def take(self, images: int, device: torch.device) -> torch.Tensor:
        """Return which of the `images` since the last call were finite, bool [images]."""
        found = torch.ones(images, dtype=torch.bool, device=device)
        for seen in self._seen:
            found &= seen
        self._seen.clear()
        return found

    def _of_images(self, module: nn.Module, _: Any, outputs: Any) -> None:
        if not module.training:
            self._seen += [_rows(one) for one in tensors(outputs)]

    def _boxes(self, module: nn.Module, inputs: Any) -> None:
        self._counts = [len(boxes) for boxes in inputs[1]]

    def _of_boxes(self, module: nn.Module, _: Any, outputs: Any) -> None:
        if not module.training:
            for one in tensors(outputs):
                images = [rows.all() for rows in _rows(one).split(self._counts)]
                self._seen.append(torch.stack(images))


def tensors(outputs: Any) -> list[torch.Tensor]:
    """List the floating-point tensors in whatever they are nested in."""
    if isinstance(outputs, torch.Tensor):
        return [outputs] if outputs.is_floating_point() else []
    values = outputs.values() if isinstance(outputs, dict) else outputs
    return [one for value in values for one in tensors(value)]


def _rows(values: torch.Tensor) -> torch.Tensor:
    """Return which rows of [N, ...] are finite, bool [N]."""
    return torch.isfinite(values).flatten(1).all(dim=1)
