"""Affine maps of images as numbers: rotation, shear, translation, and what several of them are together.

A map is float64 [B, 6], a b c d e f: the pixel (x, y) of the output, in pixels from the centre of the image,
shows (a x + b y + c, d x + e y + f) of the input. Signs and fixed points are torchvision's.
"""

from __future__ import annotations

import numpy as np

from saturate.contracts import Array
from saturate.plan.ops import Op


def _stacked(*numbers: Array | int) -> Array:
    return np.stack(np.broadcast_arrays(*numbers), axis=1).astype(np.float64)


def rotation(degrees: Array) -> Array:
    """Return float64 [B, 6], counter-clockwise rotations about the centre."""
    angle = np.radians(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return _stacked(cos, -sin, 0, sin, cos, 0)


def shear_x(slope: Array, height: int) -> Array:
    """Return float64 [B, 6]: each row moves to the left by slope x its distance from the top edge."""
    return _stacked(1, slope, slope * height / 2, 0, 1, 0)


def shear_y(slope: Array, width: int) -> Array:
    """Return float64 [B, 6]: each column moves up by slope x its distance from the left edge."""
    return _stacked(1, 0, 0, slope, 1, slope * width / 2)


def translation(right: Array, down: Array) -> Array:
    """Return float64 [B, 6]: the image moves by so many pixels."""
    return _stacked(1, 0, -right, 0, 1, -down)


def product(first: Array, then: Array) -> Array:
    """Return float64 [B, 6]: the map that does `first`, and after it `then`."""
    return (_square(first) @ _square(then))[:, :2].reshape(-1, 6)


def composed(ops: Array) -> Array:
    """Return `Rows.ops` in which AFFINE operations that follow one another are one, at the last one's slot.

    An empty slot between them separates nothing, any other operation does. What one of them moves out of
    the image and the next one back is then not lost.
    """
    ops = ops.copy()
    each = np.arange(len(ops))
    before = np.zeros(len(ops), np.int64)  # the last slot with an operation, so far
    for slot in range(1, ops.shape[1]):
        both = each[
            (ops[:, slot, 0] == Op.AFFINE) & (ops[each, before, 0] == Op.AFFINE)
        ]
        ops[both, slot, 1:7] = product(
            ops[both, before[both], 1:7], ops[both, slot, 1:7]
        )
        ops[both, before[both]] = 0
        before = np.where(ops[:, slot, 0] > 0, slot, before)
    return ops


def _square(map_: Array) -> Array:
    """Return float64 [B, 3, 3]."""
    last = np.tile(np.array([0.0, 0.0, 1.0]), (len(map_), 1, 1))
    return np.concatenate([map_.astype(np.float64).reshape(-1, 2, 3), last], axis=1)
