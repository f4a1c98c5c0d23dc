"""Operations on pixels as numbers, `Rows.ops`: which there are, and what each is given. Knows no device.

`Rows.ops` [B, N, 1 + P] has N slots that act in order, after the resize and before the turn. The first number
of a slot says which operation it is (Op), 0 for none; the rest are its numbers; unused ones are 0.
loaders/_ops.py does them on tensors. Levels are 0..255.

The rule of rounding: an operation takes and gives whole levels. What is blended or looked up is rounded
down, what is resampled or blurred to the nearest, as torchvision.transforms.v2 does for uint8. Results differ
from torchvision's by at most one level, except those of AFFINE by the nearest pixel at exact half pixels. DISTORT
and ERASE do not round. ERASE's noise is a hash of its two keys (24 bits each) and of the place of the pixel, so
that it is the same whoever makes it; frames of a clip have the same. Statistics of an image, such as its mean, are
taken per frame.

DISTORT is the photometric distortion of SSD: as Liu et al. train SSD (2016; caffe's distort_image), a
pixel's new colour depends on that pixel alone, and each part comes with probability 1/2. Its numbers, in the
order in which they act:

    0 brightness      added to R, G and B, -32/255 to 32/255              none: 0
    1 contrast        R, G and B times 0.5 to 1.5                         none: 1
    2 contrast first  1: before saturation and hue, 0: after them
    3 saturation      of HSV, times 0.5 to 1.5                            none: 1
    4 hue             of HSV, in turns, -0.05 (-18 degrees) to 0.05       none: 0
    5 permutation     of the channels, index into PERMUTATIONS            none: 0

Its values are RGB in 0..1; intermediate values may leave 0..1, and only the result is clipped.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import permutations

import numpy as np

from saturate.contracts import Array
from saturate.plan.draws import Purpose, uniforms


class Op(IntEnum):
    """An operation, as the first number of a slot names it; `takes` is how many numbers follow."""

    takes: int

    def __new__(cls, code: int, takes: int) -> Op:
        op = int.__new__(cls, code)
        op._value_ = code
        op.takes = takes
        return op

    DISTORT = 1, 6  # of SSD, see above
    BRIGHTNESS = 2, 1  # factor: level x factor
    SATURATION = 3, 1  # factor: grey + factor x (level - grey), pixel by pixel
    # factor: mean + factor x (level - mean), the mean of the image's grey
    CONTRAST = 4, 1
    # factor: soft + factor x (level - soft); soft: of 3 x 3, the centre 5 of 13
    SHARPNESS = 5, 1
    HUE = 6, 1  # turns, of HSV
    GREYSCALE = 7, 0  # 0.2989 R + 0.587 G + 0.114 B
    POSTERIZE = 8, 1  # bits: keeps that many high bits
    SOLARIZE = 9, 1  # threshold: 255 - level from it on
    SOLARIZE_ADD = 10, 1  # added to levels below 128
    AUTOCONTRAST = 11, 0  # a channel's lowest level to 0, its highest to 255
    EQUALIZE = 12, 0  # a channel's histogram made flat, as Pillow does
    INVERT = 13, 0  # 255 - level
    # a b c d e f, smooth, R G B: the pixel (x, y), counted from the centre, shows (a x + b y + c,
    # d x + e y + f), between four pixels (smooth 1) or the nearest (0); R G B where that is outside
    AFFINE = 14, 10
    BLUR = 15, 1  # sigma: by a Gaussian of BLUR_SIDE x BLUR_SIDE pixels
    # x0 y0 x1 y1, R G B, three deviations, key, key: the rectangle becomes R G B and normal noise; it may
    # leave 0..255, and is the last operation
    ERASE = 17, 12


WIDTH = 1 + max(op.takes for op in Op)
"""Numbers of a slot that has room for any operation."""
BLUR_SIDE = 13
"""Pixels of the side of BLUR's kernel: three deviations of 2, the largest that recipes take."""
GREY = (0.2989, 0.587, 0.114)
"""Weights of R, G and B in grey."""
KEY_BITS = 24
"""Bits of a key of noise: whole numbers that float32 holds."""
PERMUTATIONS = tuple(permutations(range(3)))
"""Channel c of the result is channel PERMUTATIONS[index][c]."""

# DISTORT's numbers in their order: those that do nothing, the lowest, the highest
_NONE = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
_LOW = (-32 / 255, 0.5, 0.0, 0.5, -0.05, 0.0)
# where they are whole, one beyond the last
_HIGH = (32 / 255, 1.5, 2.0, 1.5, 0.05, float(len(PERMUTATIONS)))
CONTRAST_FIRST, PERMUTATION = 2, 5


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
    slots = [part for part in parts if part is not None]
    if not slots:
        return None
    widest = max(part.shape[2] for part in slots)
    padded = [
        np.pad(part, ((0, 0), (0, 0), (0, widest - part.shape[2]))) for part in slots
    ]
    return np.concatenate(padded, axis=1)


def distortions(seed: int, epoch: int, ids: Array) -> Array:
    """Return float32 [B, 6], the numbers of Op.DISTORT for samples `ids`."""
    count = Op.DISTORT.takes
    draws = uniforms(seed, epoch, Purpose.COLOUR, ids, 2 * count)
    # axes: [B, count]
    numbers = _LOW + draws[:, :count] * (np.array(_HIGH) - _LOW)
    whole = [CONTRAST_FIRST, PERMUTATION]
    numbers[:, whole] = np.floor(numbers[:, whole])
    applied = draws[:, count:] < 0.5
    applied[:, CONTRAST_FIRST] = True
    return np.where(applied, numbers, _NONE).astype(np.float32)
