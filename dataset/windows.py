"""Regions, windows and flips as numbers, for a whole batch at a time. Pure functions of image sizes and uniforms.

A region is what is decoded (x0 y0 x1 y1, whole pixels of the stored image). A window is the part of the region that fills
the output (x0 y0 x1 y1 in region coordinates, may be fractional).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TRIES = 10
UNIFORMS = 2 * TRIES + 2  # (area, ratio) a try, then the corner


def random_resized(
    heights: Array, widths: Array, draws: Array, *, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> Array:
    """int64 [B, 4], regions with the distribution of torchvision.transforms.RandomResizedCrop.get_params.

    `draws` is float64 [B, UNIFORMS] in [0, 1). Ten tries; a sample for which none fits gets the largest central crop whose
    aspect ratio is allowed (the paper: Szegedy et al., Going Deeper with Convolutions, 2014).
    """
    height, width = heights.astype(np.float64), widths.astype(np.float64)
    area_draw, ratio_draw = draws[:, 0 : 2 * TRIES : 2], draws[:, 1 : 2 * TRIES : 2]
    # axes: [B, TRIES]
    area = (height * width)[:, None] * (scale[0] + area_draw * (scale[1] - scale[0]))
    aspect = np.exp(np.log(ratio[0]) + ratio_draw * (np.log(ratio[1]) - np.log(ratio[0])))
    crop_w, crop_h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (crop_w > 0) & (crop_w <= width[:, None]) & (crop_h > 0) & (crop_h <= height[:, None])
    chosen = fits.argmax(axis=1)
    each = np.arange(len(heights))
    w, h = crop_w[each, chosen], crop_h[each, chosen]
    left = np.floor(draws[:, -2] * (width - w + 1))
    top = np.floor(draws[:, -1] * (height - h + 1))

    shape = width / height
    none = ~fits.any(axis=1)
    fallback_w = np.where(shape > ratio[1], np.maximum(np.rint(height * ratio[1]), 1), width)
    fallback_h = np.where(shape < ratio[0], np.maximum(np.rint(width / ratio[0]), 1), height)
    w, h = np.where(none, fallback_w, w), np.where(none, fallback_h, h)
    left = np.where(none, (width - w) // 2, left)
    top = np.where(none, (height - h) // 2, top)
    return np.stack([left, top, left + w, top + h], axis=1).astype(np.int64)


def whole(heights: Array, widths: Array) -> Array:
    """int64 [B, 4], the whole image."""
    zero = np.zeros_like(heights)
    return np.stack([zero, zero, widths, heights], axis=1).astype(np.int64)


def filling(regions: Array) -> Array:
    """float64 [B, 4], the window that is the whole region."""
    size = regions[:, 2:] - regions[:, :2]
    return np.concatenate([np.zeros_like(size), size], axis=1).astype(np.float64)


def resize_then_center(heights: Array, widths: Array, *, resize: int, crop: int) -> tuple[Array, Array]:
    """(regions, windows): the exact preimage of Resize(resize) then CenterCrop(crop), as torchvision rounds them.

    `crop` must not exceed `resize`. The region is the window widened by the support of the antialiased triangle filter, so
    that resizing the window of the region equals cropping the resized image.
    """
    short, long = np.minimum(heights, widths), np.maximum(heights, widths)
    other = (resize * long / short).astype(np.int64)  # int(), as torchvision does
    new_h = np.where(heights <= widths, resize, other)
    new_w = np.where(widths <= heights, resize, other)
    top, left = np.rint((new_h - crop) / 2.0), np.rint((new_w - crop) / 2.0)
    step_y, step_x = heights / new_h, widths / new_w  # source pixels an output pixel
    full = np.stack([left * step_x, top * step_y, (left + crop) * step_x, (top + crop) * step_y], axis=1)
    reach = np.stack([np.maximum(step_x, 1.0), np.maximum(step_y, 1.0)] * 2, axis=1) + 1.0
    limit = np.stack([widths, heights], axis=1)
    low = np.clip(np.floor(full[:, :2] - reach[:, :2]), 0, limit - 1)
    high = np.clip(np.ceil(full[:, 2:] + reach[:, 2:]), 1, limit)
    regions = np.concatenate([low, high], axis=1).astype(np.int64)
    return regions, full - np.concatenate([low, low], axis=1)
