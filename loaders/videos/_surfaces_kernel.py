"""NV12 surfaces -> RGB of the output's size, in Triton. Only loaders/videos/_surfaces.py imports it."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 128
"""Pixels of a program."""


@triton.jit
def _weight(at, centre, support, high):
    """Return the weight of sample `at` for what is centred there: loaders/videos/_planes.py's triangle."""
    return tl.where(
        at < high, tl.maximum(1 - tl.abs(at + 0.5 - centre) / support, 0.0), 0.0
    )


@triton.jit
def _resampled(
    samples,
    row,
    apart,
    y,
    x,
    inside,
    y_begin,
    y_step,
    y_low,
    y_high,
    x_begin,
    x_step,
    x_low,
    x_high,
):
    """Return a plane at the output's pixels (y, x), by the triangle in both directions.

    Its samples are `apart` elements apart.
    """
    y_support, x_support = tl.maximum(y_step, 1.0), tl.maximum(x_step, 1.0)
    y_centre, x_centre = y_begin + (y + 0.5) * y_step, x_begin + (x + 0.5) * x_step
    y_first = tl.maximum(tl.floor(y_centre - y_support).to(tl.int32), y_low)
    x_first = tl.maximum(tl.floor(x_centre - x_support).to(tl.int32), x_low)
    total = tl.zeros_like(y_centre)
    weights = tl.zeros_like(y_centre)
    for i in range((2 * y_support).to(tl.int32) + 2):
        at_y = y_first + i
        y_weight = _weight(at_y, y_centre, y_support, y_high)
        for j in range((2 * x_support).to(tl.int32) + 2):
            at_x = x_first + j
            weight = y_weight * _weight(at_x, x_centre, x_support, x_high)
            total += weight * tl.load(
                samples + at_y * row + at_x * apart, mask=inside & (weight > 0), other=0
            ).to(tl.float32)
            weights += weight
    return total / tl.maximum(weights, 1e-6)


@triton.jit
def _level(value):
    return tl.minimum(tl.maximum(tl.floor(value + 0.5), 0.0), 255.0).to(tl.uint8)


GIVEN = ["surface", "row", "chroma", "height", "width"]
GIVEN += ["y_begin", "y_step", "y_low", "y_high", "x_begin", "x_step", "x_low"]
GIVEN += ["x_high"]


@triton.jit(do_not_specialize=GIVEN)
def _fit(
    surfaces,
    out,
    surface,
    row,
    chroma,
    height,
    width,
    y_begin,
    y_step,
    y_low,
    y_high,
    x_begin,
    x_step,
    x_low,
    x_high,
    dark,
    gain,
    middle,
    rv,
    gu,
    gv,
    bu,
    SIZE: tl.constexpr,
):
    """Write the pixels program_id(1) of frame program_id(0).

    `surface`, `row`: elements from one to the next; `chroma`: where it begins.
    """
    frame = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = pixel < height * width
    y, x = pixel // width, pixel % width
    luma = surfaces + frame * surface
    level = _resampled(
        luma,
        row,
        1,
        y,
        x,
        inside,
        y_begin,
        y_step,
        y_low,
        y_high,
        x_begin,
        x_step,
        x_low,
        x_high,
    )
    level = (level - dark) * gain
    # the samples of chroma lie two by two
    y_begin, y_step, y_low, y_high = (
        y_begin / 2,
        y_step / 2,
        y_low // 2,
        (y_high + 1) // 2,
    )
    x_begin, x_step, x_low, x_high = (
        x_begin / 2,
        x_step / 2,
        x_low // 2,
        (x_high + 1) // 2,
    )
    blue = luma + chroma
    red = blue + 1
    u = _resampled(
        blue,
        row,
        2,
        y,
        x,
        inside,
        y_begin,
        y_step,
        y_low,
        y_high,
        x_begin,
        x_step,
        x_low,
        x_high,
    )
    v = _resampled(
        red,
        row,
        2,
        y,
        x,
        inside,
        y_begin,
        y_step,
        y_low,
        y_high,
        x_begin,
        x_step,
        x_low,
        x_high,
    )
    u = u - middle
    v = v - middle
    target = out + (frame * height * width + pixel) * 3
    tl.store(target, _level(level + rv * v), mask=inside)
    tl.store(target + 1, _level(level + gu * u + gv * v), mask=inside)
    tl.store(target + 2, _level(level + bu * u), mask=inside)
