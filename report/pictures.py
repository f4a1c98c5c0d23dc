"""Training images as a person sees them: the pixels that the step got.

Must not know: where they are shown.
"""

from __future__ import annotations

import torch

from contracts import Array, Batch

MOST = 16
"""Images that are shown of a batch, at most."""
SIDE = 384
"""Pixels of the longer side, at most; larger images are shrunk."""


def augmented(batch: Batch, mean: torch.Tensor, std: torch.Tensor) -> Array:
    """Return the first images as uint8 [n, H, W, 3], of clips the frame in the middle."""
    images = batch.images[:MOST].float()
    if images.ndim == 5:  # clips: N C T H W
        images = images[:, :, images.shape[2] // 2]
    height, width = images.shape[2:]
    scale = min(1.0, SIDE / max(height, width))
    if scale < 1:
        size = max(1, round(height * scale)), max(1, round(width * scale))
        images = torch.nn.functional.interpolate(images, size, mode="area")
    pixels = images.permute(0, 2, 3, 1).cpu() * std + mean
    shown: Array = (pixels.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return shown
