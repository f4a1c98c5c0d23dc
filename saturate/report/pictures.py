"""Training images as a person sees them: the pixels that the step got, with the names of their classes.

Must not know: where they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw

from saturate.contracts import Array, Batch
from saturate.system.fonts import legible, line

MOST = 16
"""Images that are shown of a batch, at most."""
SIDE = 384
"""Pixels of the longer side, at most; larger images are shrunk."""
LEAST = 128
"""Pixels that an image with a name below it is enlarged to, at least: room for some fifteen letters."""
ACROSS = 4
"""Images with names in a row: TensorBoard shows the whole sheet 350 pixels wide."""
LETTERS = 14
"""Pixels of their size."""


def augmented(
    batch: Batch, mean: torch.Tensor, std: torch.Tensor, classes: Sequence[str]
) -> Array:
    """Return the first images as uint8 [n, H, W, 3], of clips the frame in the middle.

    Where a sample has one label they are one picture, each image with the name of its class below it.
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
    labels = batch.targets.get("labels")
    # a detector's labels are of boxes (packed, or padded), with several labels an image they are of sets
    several = {"offsets", "wanted", "boxes"} & batch.targets.keys()
    if labels is None or several or not classes:
        return shown
    names = [
        legible(classes[label], label + 1) if label >= 0 else ""
        for label in labels[:MOST].cpu().tolist()
    ]
    times = max(-(-LEAST // min(shown.shape[1:3])), 1)
    enlarged = shown.repeat(times, axis=1).repeat(times, axis=2)
    height, width = enlarged.shape[1] + 22, enlarged.shape[2]
    rows = -(-len(names) // ACROSS)
    sheet = Image.new("RGB", (ACROSS * width, rows * height), "white")
    text = ImageDraw.Draw(sheet)
    for place, (image, name) in enumerate(zip(enlarged, names, strict=True)):
        left, top = place % ACROSS * width, place // ACROSS * height
        sheet.paste(Image.fromarray(image), (left, top))
        cut, own = line(name, width - 4, LETTERS)
        text.text((left + 2, top + height - 21), cut, fill="black", font=own)
    return np.asarray(sheet)[None]
