"""Anchors of detectors, made once for each shape of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchvision.models.detection.image_list import ImageList

CANVASES = 32
"""Shapes of batches whose anchors are kept: 4 MiB each at 800 x 1333."""


class Anchors(nn.Module):
    """torchvision's anchors, always in fp32, made once for each shape of a batch and shared by its images."""

    def __init__(self, generator: nn.Module) -> None:
        super().__init__()
        self.generator = generator
        self._made: dict[Any, torch.Tensor] = {}

    def forward(
        self, images: ImageList, features: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        key = (
            images.tensors.shape[-2:],
            *(one.shape[-2:] for one in features),
            images.tensors.device,
        )
        if key not in self._made:
            if len(self._made) >= CANVASES:
                self._made.clear()
            # they may be made in a validation, and training cannot use an inference tensor
            with torch.inference_mode(False):
                alike = [
                    torch.empty(one.shape[-2:], device=one.device) for one in features
                ]
                first = ImageList(images.tensors[:1], images.image_sizes[:1])
                self._made[key] = self.generator(first, alike)[0]
        return [self._made[key]] * len(images.image_sizes)
