"""Training images as a person sees them: the pixels that the step got, shrunk where they are large, with the boxes that it learns.

Must not know: where they are shown, what a class is called.
"""

from __future__ import annotations

import colorsys

import numpy as np
import torch

from contracts import Array, Batch

MOST = 16  # images
SIDE = 384  # pixels: larger ones are shrunk
GOLDEN = 0.618034  # steps of the hue from one class to the next


def augmented(batch: Batch, mean: torch.Tensor, std: torch.Tensor) -> Array:
    """uint8 [n, H, W, 3], the first images, of clips the frame in the middle; boxes where the batch's host arrays have some."""
    images = batch.images[:MOST].float()
    images = images if images.ndim == 4 else images[:, :, images.shape[2] // 2]
    height, width = images.shape[2:]
    scale = min(1.0, SIDE / max(height, width))
    if scale < 1:
        size = max(1, round(height * scale)), max(1, round(width * scale))
        images = torch.nn.functional.interpolate(images, size, mode="area")
    pixels = images.permute(0, 2, 3, 1).cpu() * std + mean
    shown: Array = (pixels.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    if {"boxes", "labels", "offsets"} <= batch.host.keys():
        offsets = batch.host["offsets"]
        for place, picture in enumerate(shown):
            own = slice(offsets[place], offsets[place + 1])
            for box, label in zip(batch.host["boxes"][own] * scale, batch.host["labels"][own], strict=True):
                _outline(picture, box, int(label))
    return shown


def _outline(picture: Array, box: Array, label: int) -> None:
    """A line of one pixel along the inside of x0 y0 x1 y1, in the colour of the class."""
    height, width = picture.shape[:2]
    x0, y0 = (min(max(int(value), 0), most - 1) for value, most in zip(box[:2], (width, height), strict=True))
    x1, y1 = (
        min(max(int(np.ceil(value)) - 1, least), most - 1) for value, least, most in zip(box[2:], (x0, y0), (width, height), strict=True)
    )
    colour = [round(255 * part) for part in colorsys.hsv_to_rgb(label * GOLDEN % 1, 0.7, 1.0)]
    picture[[y0, y1], x0 : x1 + 1] = colour
    picture[y0 : y1 + 1, [x0, x1]] = colour
