"""Planes of a decoded frame -> RGB of the output's size: resize each plane, then turn so few pixels into RGB.

A 1080p frame has 30 times the pixels of the 224 x 224 that a network sees: what is done at the output's size
is almost free. The filter is the antialiased triangle of loaders.images.decoders.resize_window.
Compiled once, before worker processes are forked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from saturate.contracts import Array

MATRICES = {
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
    10: (0.2627, 0.0593),
}
"""Kr and Kb by the number that ITU-T H.273 gives to a stream's matrix coefficients."""
BT601 = (0.299, 0.114)
"""Kr and Kb of other numbers, and of streams that do not say: what swscale takes for any size."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane of samples, or several interleaved ones: flat, rows begin `stride` elements apart."""

    data: Array  # uint8 or uint16 [elements]
    stride: int
    height: int
    width: int
    channels: int = 1


@dataclass(frozen=True, slots=True)
class Picture:
    """A stored frame: Y, U, V planes of any subsampling, one plane of grey, or one of interleaved RGB."""

    planes: tuple[Plane, ...]
    bits: int = 8
    matrix: tuple[float, float] = BT601
    full_range: bool = False
    turns: int = 0  # quarter turns counter-clockwise from the stored picture to the displayed one

    @property
    def shape(self) -> tuple[int, int]:
        """Return displayed height and width."""
        height, width = self.planes[0].height, self.planes[0].width
        return (width, height) if self.turns % 2 else (height, width)

    @property
    def layout(self) -> tuple[tuple[int, int, int], ...]:
        """Return height, width and channels of each plane: what a Fitter is made for."""
        return tuple(
            (plane.height, plane.width, plane.channels) for plane in self.planes
        )


def rgb(pixels: Array) -> Picture:
    """Return the picture of uint8 [H, W, 3], contiguous, already displayed."""
    height, width, channels = pixels.shape
    return Picture(
        (Plane(pixels.reshape(-1), width * channels, height, width, channels),)
    )


class Fitter:
    """Fills outputs from the window of pictures of one layout: filters are made once a clip."""

    def __init__(
        self, picture: Picture, region: Array, window: Array, size: tuple[int, int]
    ) -> None:
        """Make the filters of one view.

        `region`: int [4], displayed pixels. `window`: float [4], in it. `size`: height, width to fill.
        """
        turns = picture.turns % 4
        seen, taken = seen_and_taken(picture, region, window)
        height, width = size if turns % 2 == 0 else size[::-1]
        self._turns = turns
        self._filters = dict[tuple[int, int], tuple[Array, ...]]()
        first = picture.planes[0]
        for plane in picture.planes:
            shape = plane.height, plane.width
            if shape not in self._filters:
                # for x, then y
                filters = list[Array]()
                for at, count, length, whole in (
                    (0, width, plane.width, first.width),
                    (1, height, plane.height, first.height),
                ):
                    scale = length / whole
                    begin, end = taken[at] * scale, taken[at + 2] * scale
                    low, high = seen[at] * scale, seen[at + 2] * scale
                    filters += triangle(begin, end, count, low, high, length)
                self._filters[shape] = tuple(filters)
        self._levels = [
            np.empty((height, width, plane.channels), np.float32)
            for plane in picture.planes
        ]
        self._pixels = np.empty((height, width, 3), np.uint8)

    def fill(self, out: Array, picture: Picture) -> None:
        """Fill `out`, uint8 [height, width, 3], from a picture of the layout that this was made for."""
        for levels, plane in zip(self._levels, picture.planes, strict=True):
            resample(
                plane.data,
                plane.stride,
                plane.channels,
                *self._filters[plane.height, plane.width],
                levels,
            )
        colour(
            self._levels[0],
            self._levels[1 % len(self._levels)],
            self._levels[-1],
            *offsets_and_factors(picture),
            self._pixels,
        )
        np.copyto(out, np.rot90(self._pixels, self._turns))


def pixels_of(picture: Picture) -> Array:
    """Return a whole picture as it is displayed, uint8 [H, W, 3]."""
    height, width = picture.shape
    out = np.empty((height, width, 3), np.uint8)
    everything = np.array([0, 0, width, height])
    Fitter(picture, everything, everything, (height, width)).fill(out, picture)
    return out


def seen_and_taken(
    picture: Picture, region: Array, window: Array
) -> tuple[Array, Array]:
    """Return what a region shows of the stored picture, and what a window in it does, as boxes x0 y0 x1 y1."""
    corner = np.tile(np.asarray(region[:2], np.float64), 2)
    seen = stored(np.asarray(region, np.float64), picture.shape, picture.turns % 4)
    inside = np.asarray(window, np.float64) + corner
    return seen, stored(inside, picture.shape, picture.turns % 4)


def stored(box: Array, shape: tuple[int, int], turns: int) -> Array:
    """Return the box of a stored picture that a box x0 y0 x1 y1 of the displayed one, of `shape`, shows.

    The displayed picture is the stored one turned as np.rot90 does.
    """
    height, width = shape
    x0, y0, x1, y1 = box
    return np.array(
        {
            0: (x0, y0, x1, y1),
            1: (height - y1, x0, height - y0, x1),
            2: (width - x1, height - y1, width - x0, height - y0),
        }.get(turns, (y0, width - x1, y1, width - x0))
    )


def triangle(
    begin: float, end: float, count: int, low: float, high: float, length: int
) -> tuple[Array, Array]:
    """Return weights that bring [begin, end) to `count` samples; none lies outside [low, high).

    They are (int64 [count] first sample, float32 [count, taps]). Pillow's BILINEAR: a triangle whose support
    is the step, at least one sample, with weights that sum to 1.
    """
    bottom, top = max(int(np.floor(low)), 0), min(int(np.ceil(high)), length)
    step = (end - begin) / count
    support = max(step, 1.0)
    centres = begin + (np.arange(count) + 0.5) * step
    taps = min(int(np.ceil(support)) * 2 + 1, top - bottom)
    first = np.clip(
        np.floor(centres - support + 0.5).astype(np.int64), bottom, top - taps
    )
    # axes: [count, taps]
    weights = np.maximum(
        1 - np.abs(first[:, None] + np.arange(taps) + 0.5 - centres[:, None]) / support,
        0,
    )
    total = weights.sum(axis=1, keepdims=True)
    return first, (weights / np.where(total > 0, total, 1)).astype(np.float32)


def offsets_and_factors(
    picture: Picture,
) -> tuple[float, float, float, float, float, float, float]:
    """Return the seven numbers that make levels 0..255 of a picture's samples.

    They are luma offset, luma factor, chroma offset, red of V, green of U, green of V and blue of U.
    """
    unit = 2.0 ** (picture.bits - 8)
    if len(picture.planes) == 1:  # RGB; and grey, whose range swscale takes for full
        return 0.0, 1.0 / unit, 0.0, 0.0, 0.0, 0.0, 0.0
    largest = 2.0**picture.bits - 1
    luma = (
        (0.0, 255 / largest) if picture.full_range else (16 * unit, 255 / (219 * unit))
    )
    chroma = 255 / largest if picture.full_range else 255 / (224 * unit)
    red, blue = picture.matrix
    green = 1 - red - blue
    to_red, to_blue = 2 * (1 - red) * chroma, 2 * (1 - blue) * chroma
    return (
        *luma,
        128 * unit,
        to_red,
        -to_blue * blue / green,
        -to_red * red / green,
        to_blue,
    )


@numba.njit(nogil=True, fastmath=True)
def resample(
    data: Array,
    stride: int,
    channels: int,
    x_first: Array,
    x_weights: Array,
    y_first: Array,
    y_weights: Array,
    out: Array,
) -> None:
    """Resize rows first: they lie one behind the other, so that the wide pass runs in vectors."""
    begin = x_first[0] * channels
    length = (x_first[-1] + x_weights.shape[1]) * channels - begin
    line = np.empty(length, np.float32)
    for y in range(out.shape[0]):
        line[:] = 0
        for tap in range(y_weights.shape[1]):
            weight = y_weights[y, tap]
            if weight != 0:
                place = (y_first[y] + tap) * stride + begin
                # an index that may be negative would keep the loop from vectors
                row = data[place : place + length]
                for x in range(length):
                    line[x] += weight * np.float32(row[x])
        for x in range(out.shape[1]):
            samples = line[x_first[x] * channels - begin :]
            for channel in range(channels):
                total = np.float32(0)
                for tap in range(x_weights.shape[1]):
                    total += x_weights[x, tap] * samples[tap * channels + channel]
                out[y, x, channel] = total


@numba.njit(nogil=True, fastmath=True)
def colour(
    first: Array,
    second: Array,
    third: Array,
    dark: float,
    gain: float,
    middle: float,
    rv: float,
    gu: float,
    gv: float,
    bu: float,
    out: Array,
) -> None:
    """Levels of Y, U, V, of grey, or of RGB in one array -> uint8 RGB, rounded to the nearest."""
    last = first.shape[2] - 1
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            u, v = second[y, x, 0] - middle, third[y, x, 0] - middle
            red = (first[y, x, 0] - dark) * gain + rv * v
            green = (first[y, x, min(1, last)] - dark) * gain + gu * u + gv * v
            blue = (first[y, x, last] - dark) * gain + bu * u
            out[y, x, 0] = np.uint8(min(max(red + 0.5, 0), 255))
            out[y, x, 1] = np.uint8(min(max(green + 0.5, 0), 255))
            out[y, x, 2] = np.uint8(min(max(blue + 0.5, 0), 255))


def compile_kernels() -> None:
    """Compile the kernels before workers are forked, which then have them: about a second, once a process."""
    for dtype in (np.uint8, np.uint16):
        plane = Plane(np.zeros(64, dtype), 8, 8, 8)
        picture = Picture((plane, plane, plane))
        Fitter(picture, np.array([0, 0, 8, 8]), np.array([0.0, 0, 8, 8]), (4, 4)).fill(
            np.empty((4, 4, 3), np.uint8), picture
        )
