"""Where a point of an image lies in the output of its row, and back: one exact affine map a row. Knows no annotation.

A point (x, y) is in pixels from the top left corner of the image, so that a pixel's centre is at a half. An output is as large as
`Rows.sizes` says and lies at the top left of the batch's canvas: its coordinates are those of the canvas.
"""

from __future__ import annotations

import numpy as np

from contracts import Array, Rows


def places(rows: Rows) -> Array:
    """int64 [B, 4], x0 y0 x1 y1 of what the windows fill in the outputs: all of them, where the plan says nothing else."""
    if rows.places is not None:
        return rows.places
    return np.concatenate([np.zeros_like(rows.sizes), rows.sizes[:, ::-1]], axis=1)


def affine(rows: Rows) -> tuple[Array, Array]:
    """(scale, shift), float64 [B, 2] of x and y: output = image * scale + shift. A flipped row has a negative scale of x."""
    place = places(rows)
    scale = (place[:, 2:] - place[:, :2]) / (rows.windows[:, 2:] - rows.windows[:, :2])
    start = place[:, :2].astype(np.float64)
    start[:, 0] = np.where(rows.flips, place[:, 2], place[:, 0])
    scale[:, 0] = np.where(rows.flips, -scale[:, 0], scale[:, 0])
    return scale, start - (rows.regions[:, :2] + rows.windows[:, :2]) * scale


def to_output(rows: Rows, which: Array, points: Array) -> Array:
    """float64 [M, ..., 2], the points of images in output pixels. `which` [M]: the row that each one is of. Nothing is clipped."""
    scale, shift = (_along(part[which], points) for part in affine(rows))
    return points * scale + shift


def to_image(rows: Rows, which: Array, points: Array) -> Array:
    """The same the other way: points of outputs in stored pixels of the image."""
    scale, shift = (_along(part[which], points) for part in affine(rows))
    return (points - shift) / scale


def _along(numbers: Array, points: Array) -> Array:
    # axes: [M, 2] -> [M, 1, ..., 1, 2]
    return numbers.reshape(len(numbers), *[1] * (points.ndim - 2), 2)


def boxes_to_output(rows: Rows, which: Array, boxes: Array) -> Array:
    """float64 [M, 4], boxes x0 y0 x1 y1 of images in output pixels, x0 <= x1 under a flip too. Nothing is clipped."""
    return _ordered(to_output(rows, which, boxes.reshape(-1, 2, 2)))


def boxes_to_image(rows: Rows, which: Array, boxes: Array) -> Array:
    """The same the other way: what a detector found, in stored pixels of the image."""
    return _ordered(to_image(rows, which, boxes.reshape(-1, 2, 2)))


def _ordered(corners: Array) -> Array:
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def clipped(boxes: Array, heights: Array, widths: Array) -> Array:
    """The boxes, cut at the edges of images of heights x widths [M]; one that lies outside has no area left."""
    limit = np.stack([widths, heights, widths, heights], axis=1)
    return np.clip(boxes, 0, limit)
