"""Regions, windows and places as numbers, a whole batch at a time: pure functions of sizes and uniforms.

A region is what is decoded (x0 y0 x1 y1, whole pixels of the stored image). A window is the part of the
region that fills the output (x0 y0 x1 y1 in region coordinates, may be fractional).
"""

from __future__ import annotations

import numpy as np

from saturate.contracts import Array

SUPPORT = {"bilinear": 1, "bicubic": 2, "bilinear-no-antialias": 1, "nearest": 1}
"""Interpolation -> how far it reaches, in pixels of the output, or of the image, where its pixels are larger."""
TRIES = 10
UNIFORMS = 2 * TRIES + 2  # two a try (area, aspect), and two for the corner
JITTER = (0.1, 2.0)
"""Smallest and largest factor of large-scale jitter."""
ZOOM = (1.0, 4.0)
"""Smallest and largest side of the field that an image is put into (`zoomed_out`), in sides of the image."""


def random_resized(
    heights: Array,
    widths: Array,
    draws: Array,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Array:
    """Return int64 [B, 4], regions drawn as torchvision.transforms.RandomResizedCrop.get_params draws them.

    `draws` is float64 [B, UNIFORMS] in [0, 1). Each sample has TRIES; where none fits, it gets the largest
    central crop whose aspect ratio is allowed. The default areas and ratios are those of Szegedy et al.,
    Going Deeper with Convolutions, 2014.
    """
    height, width = heights.astype(np.float64), widths.astype(np.float64)
    area_draw, ratio_draw = draws[:, : 2 * TRIES : 2], draws[:, 1 : 2 * TRIES : 2]
    # axes: [B, TRIES]
    area = (height * width)[:, None] * (scale[0] + area_draw * (scale[1] - scale[0]))
    # uniform in the logarithm, so that a crop is as often wide as tall
    low, high = np.log(ratio)
    aspect = np.exp(low + ratio_draw * (high - low))
    crop_w, crop_h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (crop_w > 0) & (crop_w <= width[:, None])
    fits &= (crop_h > 0) & (crop_h <= height[:, None])
    # the first that fits; 0 where none does, which `none` replaces below
    each, chosen = np.arange(len(heights)), fits.argmax(axis=1)
    w, h = crop_w[each, chosen], crop_h[each, chosen]
    left = np.floor(draws[:, -2] * (width - w + 1))
    top = np.floor(draws[:, -1] * (height - h + 1))

    none = ~fits.any(axis=1)
    # where none fits: the whole image, cut to the nearest ratio allowed
    limit_w, limit_h = np.rint(height * ratio[1]), np.rint(width / ratio[0])
    too_wide, too_tall = width / height > ratio[1], width / height < ratio[0]
    limited_w = np.where(too_wide, np.maximum(limit_w, 1), width)
    limited_h = np.where(too_tall, np.maximum(limit_h, 1), height)
    w, h = np.where(none, limited_w, w), np.where(none, limited_h, h)
    left = np.where(none, (width - w) // 2, left)
    top = np.where(none, (height - h) // 2, top)
    return np.stack([left, top, left + w, top + h], axis=1).astype(np.int64)


def whole(heights: Array, widths: Array) -> Array:
    """Return int64 [B, 4], the whole image."""
    zero = np.zeros_like(heights)
    return np.stack([zero, zero, widths, heights], axis=1).astype(np.int64)


def filling(regions: Array) -> Array:
    """Return float64 [B, 4], the window that is the whole region."""
    size = regions[:, 2:] - regions[:, :2]
    return np.concatenate([np.zeros_like(size), size], axis=1).astype(np.float64)


def resize_then_center(
    heights: Array, widths: Array, *, resize: int, crop: int, support: int = 1
) -> tuple[Array, Array]:
    """Return (regions, windows): the exact preimage of Resize(resize), then CenterCrop(crop).

    They are rounded as torchvision does. `crop` must not exceed `resize`; `support` is the filter's.
    """
    new_h, new_w = resized(heights, widths, resize)
    left = np.rint((new_w - crop) / 2.0)
    top = np.rint((new_h - crop) / 2.0)
    return preimage(heights, widths, new_h, new_w, left, top, crop, support)


def resized(heights: Array, widths: Array, shorter: int | Array) -> tuple[Array, Array]:
    """Return int64 [B] each, height and width after Resize to a shorter side.

    `shorter`: one number of pixels, or one for each sample [B]. Both are rounded as torchvision and SlowFast
    do.
    """
    longer = shorter * np.maximum(heights, widths) / np.minimum(heights, widths)
    other = longer.astype(np.int64)  # rounds down, as torchvision's int() does
    new_h = np.where(heights <= widths, shorter, other)
    return new_h, np.where(widths <= heights, shorter, other)


def preimage(
    heights: Array,
    widths: Array,
    new_h: Array,
    new_w: Array,
    left: Array,
    top: Array,
    crop: int,
    support: int = 1,
) -> tuple[Array, Array]:
    """Return (regions, windows) of the square crop at (left, top) of images resized to new_h x new_w."""
    crops = np.stack([left, top, left + crop, top + crop], axis=1)
    return crop_of_resized(heights, widths, new_h, new_w, crops, support=support)


def crop_of_resized(
    heights: Array,
    widths: Array,
    new_h: Array,
    new_w: Array,
    crops: Array,
    *,
    support: int = 1,
) -> tuple[Array, Array]:
    """Return (regions, windows) of `crops` [B, 4], x0 y0 x1 y1, of images resized to new_h x new_w.

    The region is the window widened by the `support` of the antialiased filter, so that resizing the window
    of the region equals cropping the resized image.
    """
    step_y, step_x = heights / new_h, widths / new_w  # source pixels an output pixel
    steps = np.stack([step_x, step_y] * 2, axis=1)
    full = crops * steps
    # the filter reaches `support` pixels to either side, of the output or of the image, whichever are
    # larger; one pixel of the image more is to spare
    reach = support * np.maximum(steps, 1.0) + 1.0
    limit = np.stack([widths, heights], axis=1)
    low = np.clip(np.floor(full[:, :2] - reach[:, :2]), 0, limit - 1)
    high = np.clip(np.ceil(full[:, 2:] + reach[:, 2:]), 1, limit)
    regions = np.concatenate([low, high], axis=1).astype(np.int64)
    return regions, full - np.concatenate([low, low], axis=1)


def fitted(
    heights: Array, widths: Array, shorter: int | Array, longer: int
) -> tuple[Array, Array]:
    """Return int64 [B] each, height and width once the shorter side is `shorter` pixels.

    The shorter side is less where the longer side would pass `longer`. Both are rounded down as torchvision's
    detectors do (GeneralizedRCNNTransform).
    """
    scale = np.minimum(
        shorter / np.minimum(heights, widths), longer / np.maximum(heights, widths)
    )
    return _scaled(heights, scale), _scaled(widths, scale)


def _scaled(sides: Array, scale: Array) -> Array:
    # rounds down, as torchvision's int() does
    return np.maximum((sides * scale).astype(np.int64), 1)


def jittered(
    heights: Array, widths: Array, draws: Array, *, size: int
) -> tuple[Array, Array, Array]:
    """Return (regions, windows, places): large-scale jitter (Ghiasi et al. 2021) to size x size.

    The image is scaled to fit the output, times a factor uniform in JITTER; what is too large is cut at a
    random place, what is too small lies at the top left. This is the same as ScaleJitter
    of torchvision and FixedSizeCrop of its references/detection; the latter has one draw for left and top.
    `draws`: float64 [B, 2], of the scale and the place.
    """
    factor = np.minimum(size / heights, size / widths) * (
        JITTER[0] + draws[:, 0] * (JITTER[1] - JITTER[0])
    )
    new_h, new_w = _scaled(heights, factor), _scaled(widths, factor)
    top, left = (
        np.floor(np.maximum(new - size, 0) * draws[:, 1]).astype(np.int64)
        for new in (new_h, new_w)
    )
    shown_size = np.stack([np.minimum(new_w, size), np.minimum(new_h, size)], axis=1)
    corner = np.stack([left, top], axis=1)
    crops = np.concatenate([corner, corner + shown_size], axis=1)
    regions, windows = crop_of_resized(heights, widths, new_h, new_w, crops)
    places = np.concatenate([np.zeros_like(shown_size), shown_size], axis=1)
    return regions, windows, places


def zoomed_out(
    heights: Array, widths: Array, draws: Array, *, probability: float
) -> tuple[Array, Array]:
    """Return (images, fields): where torchvision's RandomZoomOut puts each image, and in how large a field.

    `images` int64 [B, 4] are x0 y0 x1 y1 in the field, `fields` [B, 2] its width and height. Where nothing is
    drawn the field is the image. `draws`, float64 [B, 4]: whether, how far, and the corner's x and y.
    """
    factor = np.where(
        draws[:, 0] < probability, ZOOM[0] + draws[:, 1] * (ZOOM[1] - ZOOM[0]), 1.0
    )
    # axes: [B, 2], x and y
    image = np.stack([widths, heights], axis=1)
    field = (image * factor[:, None]).astype(np.int64)
    corner = ((field - image) * draws[:, 2:4]).astype(np.int64)
    return np.concatenate([corner, corner + image], axis=1), field


def placed(images: Array, crops: Array, size: int) -> tuple[Array, Array, Array]:
    """Return (regions, windows, places) of `crops` resized to size x size.

    `images`, `crops`: int64 [B, 4], x0 y0 x1 y1 in the same field. The place is made of the whole output
    pixels that lie inside the image, the window is exactly what they show. An image of which less than a
    pixel is left gets one. The region is the part of the image that is in the crop, so that nothing beyond it
    is seen.
    """
    corner, extent = crops[:, :2], crops[:, 2:] - crops[:, :2]
    low, high = (
        np.maximum(corner, images[:, :2]),
        np.minimum(crops[:, 2:], images[:, 2:]),
    )
    # axes: [B, 2], x and y; in whole numbers, since a side that is rounded down by 1e-16 would lose a pixel
    first = -((corner - low) * size // extent)  # up
    last = (high - corner) * size // extent  # down
    thin = last <= first
    first = np.where(thin, (low - corner) * size // extent, first)
    last = np.where(thin, first + 1, last)
    # the window: from pixels of the output back to those of the field, counted from the region's corner
    begin = np.where(thin, 0, corner + first * extent / size - low)
    end = np.where(thin, high - low, corner + last * extent / size - low)
    windows = np.clip(np.concatenate([begin, end], axis=1), 0, np.tile(high - low, 2))
    regions = np.concatenate([low - images[:, :2], high - images[:, :2]], axis=1)
    return regions, windows, np.concatenate([first, last], axis=1)
