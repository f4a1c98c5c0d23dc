"""The operations of plan/ops.py on a GPU, as two Triton kernels that do a whole slot. Only loaders/_ops.py
imports it.

Each row does its own operation, in place and in the arithmetic order of loaders/_ops.py; products and sums
are not fused, for torch rounds each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from saturate.plan.ops import GREY, Op

SIZE = 2048
"""Pixels, or numbers of noise, that a program of _in_place has at once."""
PART = 256
"""Pixels of a program of _moved."""
RED, GREEN, BLUE = (tl.constexpr(weight) for weight in GREY)
BRIGHTNESS = tl.constexpr(int(Op.BRIGHTNESS))
CONTRAST = tl.constexpr(int(Op.CONTRAST))
HUE = tl.constexpr(int(Op.HUE))
POSTERIZE = tl.constexpr(int(Op.POSTERIZE))
SOLARIZE = tl.constexpr(int(Op.SOLARIZE))
SOLARIZE_ADD = tl.constexpr(int(Op.SOLARIZE_ADD))
AUTOCONTRAST = tl.constexpr(int(Op.AUTOCONTRAST))
EQUALIZE = tl.constexpr(int(Op.EQUALIZE))
INVERT = tl.constexpr(int(Op.INVERT))
AFFINE = tl.constexpr(int(Op.AFFINE))
ERASE = tl.constexpr(int(Op.ERASE))
GREYSCALE = tl.constexpr(int(Op.GREYSCALE))


@triton.jit
def _whole(level):
    return tl.floor(tl.minimum(tl.maximum(level, 0.0), 255.0))


@triton.jit
def _nearest(value):
    """Round to whole numbers, halves to even ones, what is below 2 ** 22."""
    # from 2 ** 23 on, fp32 has whole numbers alone: this adds 1.5 times as much
    return (value + 12582912.0) - 12582912.0


@triton.jit
def _blended(level, other, factor):
    return _whole(level * factor + other * (1 - factor))


@triton.jit
def _rgb(image, pixel, inside):
    red = tl.load(image + pixel * 3, mask=inside, other=0.0)
    green = tl.load(image + pixel * 3 + 1, mask=inside, other=0.0)
    blue = tl.load(image + pixel * 3 + 2, mask=inside, other=0.0)
    return red, green, blue


@triton.jit
def _grey(red, green, blue):
    # torch adds a scaled tensor by one fused operation
    return tl.floor(tl.fma(blue, BLUE, tl.fma(green, GREEN, red * RED)))


@triton.jit
def _mean_grey(image, pixels, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    total = tl.zeros([SIZE], tl.float32)
    for begin in range(0, pixels, SIZE):
        pixel = begin + lane
        red, green, blue = _rgb(image, pixel, pixel < pixels)
        total += _grey(red, green, blue)
    return tl.math.div_rn(tl.sum(total, 0), pixels.to(tl.float32))


@triton.jit
def _level(level, other, operation, number):
    """Return what becomes of a level. `other`: the grey that it is blended with."""
    if operation == BRIGHTNESS:
        level = _whole(level * number)
    elif operation == POSTERIZE:
        low_bits = 8 - number.to(tl.int32)
        level = ((level.to(tl.int32) >> low_bits) << low_bits).to(tl.float32)
    elif operation == SOLARIZE:
        level = tl.where(level >= number, 255 - level, level)
    elif operation == SOLARIZE_ADD:
        level = tl.where(level < 128, _whole(level + number), level)
    elif operation == INVERT:
        level = 255 - level
    else:  # SATURATION, CONTRAST; GREYSCALE, whose number is 0
        level = _blended(level, other, number)
    return level


@triton.jit
def _of_hue(value, chroma, place):
    """Return a channel's level. `place`: sixths of a turn from where the channel's hue begins."""
    place = place - 6 * tl.floor(tl.math.div_rn(place, 6.0))
    share = tl.minimum(tl.maximum(tl.minimum(place, 4 - place), 0.0), 1.0)
    return _whole((value - chroma * share) * 255.999)


@triton.jit
def _turned(red, green, blue, turns):
    """Turn the hue, as loaders/_ops.py's _saturated_and_turned does."""
    red = tl.math.div_rn(red, 255.0)
    green = tl.math.div_rn(green, 255.0)
    blue = tl.math.div_rn(blue, 255.0)
    value = tl.maximum(tl.maximum(red, green), blue)
    chroma = value - tl.minimum(tl.minimum(red, green), blue)
    some = tl.where(chroma > 0, chroma, 1.0)
    of_red = tl.math.div_rn(green - blue, some)
    of_green = tl.math.div_rn(blue - red, some) + 2
    of_blue = tl.math.div_rn(red - green, some) + 4
    sixths = (
        tl.where(value == red, of_red, tl.where(value == green, of_green, of_blue))
        + 6 * turns
    )
    red = _of_hue(value, chroma, 5 + sixths)
    green = _of_hue(value, chroma, 3 + sixths)
    blue = _of_hue(value, chroma, 1 + sixths)
    return red, green, blue


@triton.jit
def _by_pixel(image, pixels, operation, number, SIZE: tl.constexpr):
    """Do an operation that looks at one pixel alone, and at the mean of all."""
    mean = 0.0
    if operation == CONTRAST:
        # no thread has it, and writes, before all have read
        mean = _mean_grey(image, pixels, SIZE)
    lane = tl.arange(0, SIZE)
    for begin in range(0, pixels, SIZE):
        pixel = begin + lane
        inside = pixel < pixels
        red, green, blue = _rgb(image, pixel, inside)
        if operation == HUE:
            red, green, blue = _turned(red, green, blue, number)
        else:
            other = tl.where(operation == CONTRAST, mean, _grey(red, green, blue))
            red = _level(red, other, operation, number)
            green = _level(green, other, operation, number)
            blue = _level(blue, other, operation, number)
        tl.store(image + pixel * 3, red, mask=inside)
        tl.store(image + pixel * 3 + 1, green, mask=inside)
        tl.store(image + pixel * 3 + 2, blue, mask=inside)


@triton.jit
def _bin(level):
    return tl.minimum(tl.maximum(_nearest(level), 0.0), 255.0).to(tl.int32)


@triton.jit
def _by_histogram(image, pixels, operation, SIZE: tl.constexpr):
    """Do AUTOCONTRAST or EQUALIZE: a channel's levels are looked up in a table made of its histogram."""
    lane = tl.arange(0, SIZE)
    bins = tl.arange(0, 256)
    for channel in range(3):
        plane = image + channel
        counts = tl.zeros([256], tl.int32)
        for begin in range(0, pixels, SIZE):
            pixel = begin + lane
            inside = pixel < pixels
            level = tl.load(plane + pixel * 3, mask=inside, other=0.0)
            counts += tl.histogram(_bin(level), 256, mask=inside)
        highest = tl.max(tl.where(counts > 0, bins, 0), 0)
        if operation == EQUALIZE:
            # Pillow leaves the highest level out of the step
            step = (pixels - tl.sum(tl.where(bins == highest, counts, 0), 0)) // 255
            below = tl.cumsum(counts, 0) - counts
            even = tl.minimum((below + step // 2) // tl.maximum(step, 1), 255)
            table = tl.where(step > 0, even, bins).to(tl.float32)
        else:
            lowest = tl.min(tl.where(counts > 0, bins, 255), 0)
            span = (highest - lowest).to(tl.float32)
            stretch = tl.math.div_rn(tl.maximum(span, 1.0), 255.0)
            stretched = _whole(tl.math.div_rn((bins - lowest).to(tl.float32), stretch))
            table = tl.where(span > 0, stretched, bins.to(tl.float32))
        for begin in range(0, pixels, SIZE):
            pixel = begin + lane
            inside = pixel < pixels
            level = tl.load(plane + pixel * 3, mask=inside, other=0.0)
            tl.store(plane + pixel * 3, tl.gather(table, _bin(level), 0), mask=inside)


@triton.jit
def _hash(word):
    """Mix uint32 words by Wellons' "lowbias32"."""
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def _normal(place, first, second):
    word = _hash(_hash(place.to(tl.uint32) + first) ^ second)
    radius = ((word >> 8) + 1).to(tl.float32) * (1 / 16777216)
    turn = (_hash(word ^ 0x5BD1E995) >> 8).to(tl.float32) * (1 / 16777216)
    return tl.sqrt_rn(tl.log(radius) * -2) * tl.cos(turn * 6.283185307179586)


@triton.jit
def _erase(image, given, height, width, SIZE: tl.constexpr):
    x0 = tl.maximum(tl.ceil(tl.load(given + 1)).to(tl.int32), 0)
    y0 = tl.maximum(tl.ceil(tl.load(given + 2)).to(tl.int32), 0)
    x1 = tl.minimum(tl.ceil(tl.load(given + 3)).to(tl.int32), width)
    y1 = tl.minimum(tl.ceil(tl.load(given + 4)).to(tl.int32), height)
    first = tl.load(given + 11).to(tl.int32).to(tl.uint32)
    second = tl.load(given + 12).to(tl.int32).to(tl.uint32)
    across = tl.maximum(x1 - x0, 0) * 3
    count = tl.maximum(y1 - y0, 0) * across
    for begin in range(0, count, SIZE):
        at = begin + tl.arange(0, SIZE)
        place = ((y0 + at // across) * width + x0) * 3 + at % across
        colour = tl.load(given + 5 + at % 3)
        level = colour + tl.load(given + 8 + at % 3) * _normal(place, first, second)
        tl.store(image + place, level, mask=at < count)


GIVEN = ["row_step", "slot_begin", "frames", "height", "width"]


@triton.jit(do_not_specialize=GIVEN)
def _in_place(
    levels, numbers, rows, row_step, slot_begin, frames, height, width, SIZE: tl.constexpr
):  # fmt: skip
    """Do the operations of a slot that need no second image, a program an image.

    `levels` fp32 [B, frames, height, width, 3]; `numbers`: rows are `row_step` apart, the slot begins at
    `slot_begin`; `rows` int64 [R], grid [R x frames].
    """
    which = tl.program_id(0)
    row = tl.load(rows + which // frames)
    given = numbers + row * row_step + slot_begin
    image = levels + (row * frames + which % frames) * (height * width * 3)
    operation = tl.load(given).to(tl.int32)
    if operation == ERASE:
        _erase(image, given, height, width, SIZE)
    elif (operation == AUTOCONTRAST) | (operation == EQUALIZE):
        _by_histogram(image, height * width, operation, SIZE)
    else:
        # a slot may end behind an operation that takes no number: what follows is another row's
        takes_number = (operation != GREYSCALE) & (operation != INVERT)
        number = tl.load(given + 1, mask=takes_number, other=0.0)
        _by_pixel(image, height * width, operation, number, SIZE)


@triton.jit
def _between(plane, y, x, share, height, width, inside, fill):
    """Return what lies between the pixels x and x + 1 of row y; `fill` is outside of the image."""
    inside = inside & (y >= 0) & (y < height)
    pixel = plane + (y * width + x) * 3
    left = tl.load(pixel, mask=inside & (x >= 0) & (x < width), other=fill)
    right = tl.load(pixel + 3, mask=inside & (x >= -1) & (x < width - 1), other=fill)
    return left * (1 - share) + right * share


@triton.jit(do_not_specialize=GIVEN)
def _moved(
    source, levels, numbers, rows, row_step, slot_begin, frames, height, width, SIZE: tl.constexpr
):  # fmt: skip
    """Do the operations of a slot that look at other pixels, a program some pixels of an image.

    `source` fp32 [R, frames, height, width, 3], what the rows were; else as _in_place, grid [R x frames,
    parts of an image].
    """
    which = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + which // frames)
    given = numbers + row * row_step + slot_begin
    pixel = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = pixel < height * width
    y = pixel // width
    x = pixel % width
    old = source + which * (height * width * 3)
    new = levels + (row * frames + which % frames) * (height * width * 3) + pixel * 3
    if tl.load(given).to(tl.int32) == AFFINE:
        x_middle = (width - 1) * 0.5
        y_middle = (height - 1) * 0.5
        x_apart = x - x_middle
        y_apart = y - y_middle
        x_at = tl.load(given + 1) * x_apart + tl.load(given + 2) * y_apart
        x_at = x_at + tl.load(given + 3) + x_middle
        y_at = tl.load(given + 4) * x_apart + tl.load(given + 5) * y_apart
        y_at = y_at + tl.load(given + 6) + y_middle
        # the nearest pixel is what is between four at its very place
        smooth = tl.load(given + 7) > 0
        x_at = tl.where(smooth, x_at, _nearest(x_at))
        y_at = tl.where(smooth, y_at, _nearest(y_at))
        left = tl.floor(x_at).to(tl.int32)
        top = tl.floor(y_at).to(tl.int32)
        right_share = x_at - left
        low_share = y_at - top
        for channel in tl.static_range(3):
            fill = tl.load(given + 8 + channel)
            plane = old + channel
            upper = _between(plane, top, left, right_share, height, width, inside, fill)
            lower = _between(
                plane, top + 1, left, right_share, height, width, inside, fill
            )
            level = upper * (1 - low_share) + lower * low_share
            tl.store(new + channel, _nearest(level), mask=inside)
    else:  # SHARPNESS
        factor = tl.load(given + 1)
        inner = inside & (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)
        for channel in tl.static_range(3):
            centre = tl.load(old + channel + pixel * 3, mask=inside, other=0.0)
            total = 4 * centre
            for i in tl.static_range(-1, 2):
                for j in tl.static_range(-1, 2):
                    total += tl.load(
                        old + channel + (pixel + i * width + j) * 3,
                        mask=inner,
                        other=0.0,
                    )
            soft = _nearest(tl.math.div_rn(total, 13.0))
            tl.store(new + channel, _blended(centre, soft, factor), mask=inner)


def in_place(
    levels: torch.Tensor, numbers: torch.Tensor, slot: int, rows: torch.Tensor
) -> None:
    """Do the slot in these rows, whose operations look at a pixel alone or at sums over the image."""
    frames = levels.shape[1:-3].numel()
    with torch.cuda.device_of(levels):
        _in_place[(len(rows) * frames,)](
            levels, numbers, rows, numbers.stride(0), slot * numbers.stride(1), frames, *levels.shape[-3:-1],
            SIZE=SIZE, num_warps=16, enable_fp_fusion=False,
        )  # fmt: skip


def moved(
    levels: torch.Tensor, numbers: torch.Tensor, slot: int, rows: torch.Tensor
) -> None:
    """Do the slot in these rows, whose operations look at other pixels: of a copy of the rows."""
    frames = levels.shape[1:-3].numel()
    height, width = levels.shape[-3:-1]
    with torch.cuda.device_of(levels):
        _moved[len(rows) * frames, triton.cdiv(height * width, PART)](
            levels.index_select(0, rows), levels, numbers, rows,
            numbers.stride(0), slot * numbers.stride(1), frames, height, width,
            SIZE=PART, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


WAYS = {
    (
        Op.BRIGHTNESS,
        Op.SATURATION,
        Op.CONTRAST,
        Op.HUE,
        Op.GREYSCALE,
        Op.POSTERIZE,
        Op.SOLARIZE,
        Op.SOLARIZE_ADD,
        Op.AUTOCONTRAST,
        Op.EQUALIZE,
        Op.INVERT,
        Op.ERASE,
    ): in_place,
    (Op.SHARPNESS, Op.AFFINE): moved,
}
"""Operations -> what does them in all their rows of a slot at once."""
