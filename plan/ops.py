"""Operations on pixels as numbers, `Rows.ops`: which there are, and what they do to a pixel. Knows no device.

`Rows.ops` [B, N, 1 + P] has N slots that act in order, after the resize. The first number of a slot says
which operation it is, 0 for none; the rest are its numbers, 0 behind those that it takes. loaders/_ops.py
does them on tensors. The operations:

1 DISTORT, the photometric distortion of SSD: as Liu et al. train SSD (2016; caffe's distort_image), a pixel's
new colour depends on that pixel alone, and each part comes with probability 1/2. Its numbers, in the order in
which they act:

    0 brightness      added to R, G and B, -32/255 to 32/255              none: 0
    1 contrast        R, G and B times 0.5 to 1.5                         none: 1
    2 contrast first  1: before saturation and hue, 0: after them
    3 saturation      of HSV, times 0.5 to 1.5                            none: 1
    4 hue             of HSV, in turns, -0.05 (-18 degrees) to 0.05       none: 0
    5 permutation     of the channels, index into PERMUTATIONS            none: 0

Values are RGB in 0..1; in between they may leave it, and only the result is clipped.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from contracts import Array
from plan.draws import Purpose, uniforms

DISTORT = 1
BRIGHTNESS, CONTRAST, CONTRAST_FIRST, SATURATION, HUE, PERMUTATION = range(6)
NUMBERS = {DISTORT: 6}
"""Operation -> how many numbers it takes. Operations are counted from 1 on."""
PERMUTATIONS = tuple(permutations(range(3)))
"""Channel c of the result is channel PERMUTATIONS[index][c]."""

_NONE = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
_LOW = (-32 / 255, 0.5, 0.0, 0.5, -0.05, 0.0)
_HIGH = (32 / 255, 1.5, 2.0, 1.5, 0.05, float(len(PERMUTATIONS)))  # of whole numbers: one beyond the last


def alone(operation: int, numbers: Array) -> Array:
    """Return float32 [B, 1, 1 + P], `Rows.ops` of rows that all have this operation and no other.

    `numbers`: float32 [B, P].
    """
    which = np.full((len(numbers), 1), operation, np.float32)
    return np.concatenate([which, numbers], axis=1)[:, None]


def distortions(seed: int, epoch: int, ids: Array) -> Array:
    """Return float32 [B, 6], the numbers of DISTORT for samples `ids`."""
    count = NUMBERS[DISTORT]
    draws = uniforms(seed, epoch, Purpose.COLOUR, ids, 2 * count)
    # axes: [B, count]
    numbers = _LOW + draws[:, :count] * (np.array(_HIGH) - _LOW)
    for whole in (CONTRAST_FIRST, PERMUTATION):
        numbers[:, whole] = np.floor(numbers[:, whole])
    applied = draws[:, count:] < 0.5
    applied[:, CONTRAST_FIRST] = True
    return np.where(applied, numbers, _NONE).astype(np.float32)


def distort(pixels: Array, numbers: Array) -> Array:
    """Return the distorted pixels, of the same type.

    `pixels`: floating RGB in 0..1 [..., 3]; `numbers`: [..., 6], [6] for one image. The axes before the last
    are broadcast against each other: a batch [B, H, W, 3] takes numbers[:, None, None].
    """
    brightness, contrast, first, saturation, hue, permutation = np.moveaxis(
        numbers[..., None].astype(pixels.dtype), -2, 0
    )
    out = pixels + brightness
    out = out * np.where(first > 0, contrast, 1)
    out = _saturated_and_turned(out, saturation, hue)
    out = out * np.where(first > 0, 1, contrast)
    order = np.array(PERMUTATIONS)[permutation[..., 0].astype(np.int64)]
    out = np.take_along_axis(out, np.broadcast_to(order, out.shape), axis=-1)
    return np.clip(out, 0, 1).astype(pixels.dtype)


def _saturated_and_turned(pixels: Array, saturation: Array, hue: Array) -> Array:
    """Do HSV and back in one: V stays, the chroma (V - the smallest channel) is scaled, the hue turned.

    Well defined for any numbers.
    """
    value = pixels.max(axis=-1, keepdims=True)
    chroma = value - pixels.min(axis=-1, keepdims=True)
    red, green, blue = np.moveaxis(pixels[..., None], -2, 0)
    some = np.where(chroma > 0, chroma, 1)
    # the hue in sixths of a turn: 0 red, 2 green, 4 blue
    sixths = np.where(
        value == red,
        (green - blue) / some,
        np.where(value == green, 2 + (blue - red) / some, 4 + (red - green) / some),
    )
    place = np.mod(np.array([5, 3, 1], pixels.dtype) + sixths + 6 * hue, 6)
    return value - saturation * chroma * np.clip(np.minimum(place, 4 - place), 0, 1)
