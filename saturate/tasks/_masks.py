"""Masks inside their boxes -> COCO's run lengths of whole images, and back. Must not know batches or scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torchvision.models.detection.roi_heads import paste_masks_in_image

from saturate.contracts import Array

LEAST = 0.5  # probability of a pixel that is inside


def encoded(
    masks: torch.Tensor, boxes: Array, height: int, width: int
) -> list[dict[str, Any]]:
    """Return the compressed run lengths of N masks in an image height x width.

    `masks` are probabilities [N, 1, M, M] on the CPU, inside their boxes x0 y0 x1 y1 [N, 4].
    """
    from pycocotools import mask as coder

    corners = torch.from_numpy(boxes).float()
    codes = []
    # one at a time: a hundred whole images may be gigabytes
    for mask, corner in zip(masks.float(), corners, strict=True):
        pasted = paste_masks_in_image(mask[None], corner[None], (height, width))
        inside = pasted[0, 0] > LEAST
        pixels = np.asfortranarray(inside.numpy().view(np.uint8))
        code = coder.encode(pixels)
        codes.append({"size": code["size"], "counts": code["counts"].decode()})
    return codes


def decoded(segmentation: Any, height: int, width: int) -> Array:
    """Return uint8 [H, W], 1 inside, of COCO's polygons, or run lengths that are compressed or not."""
    from pycocotools import mask as coder

    if isinstance(segmentation, list):
        segmentation = coder.merge(coder.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        segmentation = coder.frPyObjects(segmentation, height, width)
    pixels: Array = coder.decode(segmentation)
    return pixels
