"""Training images as a person sees them: the pixels that the step got, shrunk where they are large, with the
boxes that it learns.

Must not know: where they are shown, what a class is called.
"""

from __future__ import annotations

import colorsys

import numpy as np
import torch

from contracts import Array, Batch

MOST = 16
"""Images that are shown of a batch, at most."""
SIDE = 384
"""Pixels of the longer side, at most; larger images are shrunk."""
GOLDEN = 0.618034
"""Step of the hue, in 0..1, from one class to the next."""


def augmented(batch: Batch, mean: torch.Tensor, std: torch.Tensor) -> Array:
    """Return the first images as uint8 [n, H, W, 3], of clips the frame in the middle.

    Boxes are drawn where the batch's host arrays have some.
    """
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
    if {"boxes", "labels", "offsets"} <= batch.host.keys():
        offsets = batch.host["offsets"]
        for index, picture in enumerate(shown):
            for row in range(offsets[index], offsets[index + 1]):
                box = batch.host["boxes"][row] * scale
                _outline(picture, box, int(batch.host["labels"][row]))
    return shown


def _outline(picture: Array, box: Array, label: int) -> None:
    """Draw a line of one pixel along the inside of `box`, x0 y0 x1 y1, in the colour of the class."""
    height, width = picture.shape[:2]
    x0, y0 = np.clip(box[:2].astype(int), 0, (width - 1, height - 1))
    # the last row and column inside, and never before the first
    last = np.ceil(box[2:]).astype(int) - 1
    x1, y1 = np.clip(last, (x0, y0), (width - 1, height - 1))
    colour = colorsys.hsv_to_rgb(label * GOLDEN % 1, 0.7, 1.0)
    pixel = [round(255 * channel) for channel in colour]
    picture[[y0, y1], x0 : x1 + 1] = pixel
    picture[y0 : y1 + 1, [x0, x1]] = pixel
