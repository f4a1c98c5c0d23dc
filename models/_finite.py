"""Which images of a batch a detector has computed with finite numbers. What is no number it drops in silence:
a score of NaN is above no threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import nn

OF_IMAGES = ("rpn.head", "head")
"""Modules whose outputs, in whatever they are nested, are [B, ...]."""
OF_BOXES = "roi_heads.box_predictor"
"""Module whose outputs are [N, ...], with the boxes of an image behind those of the image before."""
POOL = "roi_heads.box_roi_pool"
"""Module that is given the boxes: (features, boxes of each image, sizes)."""


Outputs: TypeAlias = torch.Tensor | Mapping[str, "Outputs"] | Sequence["Outputs"]
"""Tensors, in whatever they are nested."""


class FiniteImages:
    """Looks at what the heads of a torchvision detector say in evaluation, without waiting for the device."""

    def __init__(self, stock: nn.Module) -> None:
        self._seen: list[torch.Tensor] = []  # bool [B], of each output
        self._counts: list[int] = []  # boxes of each image
        hooks = dict.fromkeys(OF_IMAGES, self._of_images) | {OF_BOXES: self._of_boxes}
        for name, module in stock.named_modules():
            if name in hooks:
                module.register_forward_hook(hooks[name])
            if name == POOL:
                module.register_forward_pre_hook(self._boxes)

    def take(self, images: int, device: torch.device) -> torch.Tensor:
        """Return which of the `images` since the last call were finite, bool [images]."""
        finite = torch.ones(images, dtype=torch.bool, device=device)
        for seen in self._seen:
            finite &= seen
        self._seen.clear()
        return finite

    def _of_images(self, module: nn.Module, _: object, outputs: Outputs) -> None:
        if not module.training:
            self._seen += finite_rows(outputs)

    def _boxes(
        self, module: nn.Module, inputs: tuple[object, Sequence[torch.Tensor]]
    ) -> None:
        self._counts = [len(boxes) for boxes in inputs[1]]

    def _of_boxes(self, module: nn.Module, _: object, outputs: Outputs) -> None:
        if not module.training:
            for rows in finite_rows(outputs):
                images = [own.all() for own in rows.split(self._counts)]
                self._seen.append(torch.stack(images))


def finite_rows(outputs: Outputs) -> list[torch.Tensor]:
    """Return which rows are finite, bool [N], of each floating-point tensor."""
    if isinstance(outputs, torch.Tensor):
        finite = torch.isfinite(outputs).flatten(1).all(dim=1)
        return [finite] if outputs.is_floating_point() else []
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [rows for value in values for rows in finite_rows(value)]
