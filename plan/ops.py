"""Operations on pixels as numbers, `Rows.ops`: which there are, and what they do to a pixel. Knows no device.

`Rows.ops` [B, N, 1 + P] has N slots that act in order, after the resize and before the turn. The first number
of a slot says which operation it is (Op), 0 for none; the rest are its numbers, 0 behind those that it takes.
loaders/_ops.py does them on tensors. Levels are 0..255. The operations, with their numbers:

    DISTORT       six, see below            of SSD
    BRIGHTNESS    factor                    level x factor
    SATURATION    factor                    grey + factor x (level - grey), pixel by pixel
    CONTRAST      factor                    mean + factor x (level - mean), the mean of the image's grey
    SHARPNESS     factor                    soft + factor x (level - soft); soft: of 3 x 3, the centre 5 of 13
    HUE           turns                     of HSV
    GREYSCALE     -                         0.2989 R + 0.587 G + 0.114 B
    POSTERIZE     bits                      keeps that many high bits
    SOLARIZE      threshold                 255 - level from it on
    SOLARIZE_ADD  added                     to levels below 128
    AUTOCONTRAST  -                         a channel's lowest level to 0, its highest to 255
    EQUALIZE      -                         a channel's histogram made flat, as Pillow does
    INVERT        -                         255 - level
    AFFINE        a b c d e f, smooth,      the pixel (x, y), counted from the centre, shows
                  R G B                     (a x + b y + c, d x + e y + f), between four pixels (smooth 1) or
                                            the nearest (0); R G B where that is outside of the image
    BLUR          sigma                     by a Gaussian of BLUR_SIDE x BLUR_SIDE pixels
    NOISE         deviation, key, key       adds normal noise
    ERASE         x0 y0 x1 y1, R G B,       a rectangle becomes R G B and normal noise of three deviations;
                  deviations, key, key      it may leave 0..255, and is the last operation

The rule of rounding: an operation takes and gives whole levels. What is blended or looked up is rounded
down, what is resampled or blurred to the nearest, as torchvision.transforms.v2 does for uint8, and within a
level of what it gives (AFFINE, nearest: but for pixels that are half-way). DISTORT, NOISE and ERASE do not
round. Noise is a hash of its two keys (24 bits each) and of the place of the pixel, so that it is the same
whoever makes it; frames of a clip have the same. All that is measured of an image is measured of a frame.

DISTORT is the photometric distortion of SSD: as Liu et al. train SSD (2016; caffe's distort_image), a
pixel's new colour depends on that pixel alone, and each part comes with probability 1/2. Its numbers, in the
order in which they act:

    0 brightness      added to R, G and B, -32/255 to 32/255              none: 0
    1 contrast        R, G and B times 0.5 to 1.5                         none: 1
    2 contrast first  1: before saturation and hue, 0: after them
    3 saturation      of HSV, times 0.5 to 1.5                            none: 1
    4 hue             of HSV, in turns, -0.05 (-18 degrees) to 0.05       none: 0
    5 permutation     of the channels, index into PERMUTATIONS            none: 0

Its values are RGB in 0..1; in between they may leave it, and only the result is clipped.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import permutations

import numpy as np

from contracts import Array
from plan.draws import Purpose, uniforms


class Op(IntEnum):
    """An operation, as the first number of a slot names it."""

    DISTORT = 1
    BRIGHTNESS = 2
    SATURATION = 3
    CONTRAST = 4
    SHARPNESS = 5
    HUE = 6
    GREYSCALE = 7
    POSTERIZE = 8
    SOLARIZE = 9
    SOLARIZE_ADD = 10
    AUTOCONTRAST = 11
    EQUALIZE = 12
    INVERT = 13
    AFFINE = 14
    BLUR = 15
    NOISE = 16
    ERASE = 17


NUMBERS: dict[int, int] = {
    **dict.fromkeys(Op, 1),
    **dict.fromkeys((Op.GREYSCALE, Op.AUTOCONTRAST, Op.EQUALIZE, Op.INVERT), 0),
    Op.DISTORT: 6,
    Op.AFFINE: 10,
    Op.NOISE: 3,
    Op.ERASE: 12,
}
"""Operation -> how many numbers it takes."""
WIDTH = 1 + max(NUMBERS.values())
"""Numbers of a slot that has room for any operation."""
BLUR_SIDE = 13
"""Pixels of the side of BLUR's kernel: three deviations of 2, the largest that recipes take."""
KEY_BITS = 24
"""Bits of a key of noise: whole numbers that float32 holds."""
BRIGHTNESS, CONTRAST, CONTRAST_FIRST, SATURATION, HUE, PERMUTATION = range(NUMBERS[Op.DISTORT])
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


def slot(operation: int, chosen: Array, *numbers: Array | float) -> Array:
    """Return float32 [B, 1, WIDTH]: a slot with this operation in the chosen rows, bool [B], else with none.

    `numbers`: those that it takes, one of each, or [B].
    """
    out = np.zeros((len(chosen), 1, WIDTH), np.float32)
    for place, values in enumerate((float(operation), *numbers)):
        out[:, 0, place] = np.where(chosen, values, 0.0)
    return out


def joined(*parts: Array | None) -> Array | None:
    """Return `Rows.ops` with the slots of all parts, one behind the other; None where there are none."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    widest = max(part.shape[2] for part in there)
    room = (np.pad(part, ((0, 0), (0, 0), (0, widest - part.shape[2]))) for part in there)
    return np.concatenate(list(room), axis=1)


def distortions(seed: int, epoch: int, ids: Array) -> Array:
    """Return float32 [B, 6], the numbers of Op.DISTORT for samples `ids`."""
    count = NUMBERS[Op.DISTORT]
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
