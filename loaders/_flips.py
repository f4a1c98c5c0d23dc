"""The turns of plan/geometry.py on tensors, `Rows.turns`, many rows at once.

Must not know who decoded them, nor draw a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from contracts import Array, Rows
from plan.geometry import FLIP, MIRROR, TRANSPOSE, upright, whole_turns

ToDevice = Callable[[list[Array]], list[torch.Tensor]]
"""Copies host arrays to the device, which waits for them and lets the host go on."""


def images_shape(shape: Sequence[int], rows: Rows) -> tuple[int, ...]:
    """Return the shape of a batch's images, [B, ..., H, W, 3], of that of its upright pixels."""
    return (*shape[:-3], *rows.padded, shape[-1])


def turned(
    pixels: torch.Tensor,
    rows: Rows,
    to_device: ToDevice,
    into: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the upright pixels [B, ..., H, W, 3], each row turned within its own size.

    Where no row is turned they are returned as they are. `into`: memory of images_shape(...), of the pixels'
    dtype, that a GPU may write the result to. What lies beside an image that is smaller than the canvas means
    nothing.
    """
    rows = replace(rows, turns=whole_turns(rows), exif=None)
    before = upright(rows).padded
    if pixels.shape[-3:-1] != before:
        raise ValueError(
            f"pixels of {tuple(pixels.shape[-3:-1])}, where the upright canvas is {before}"
        )
    if not rows.turns.any():
        return pixels
    if pixels.device.type == "cpu":
        return _turned_by_row(pixels, rows)
    return _turned_together(pixels, rows, to_device, into)


def _turned_together(
    pixels: torch.Tensor,
    rows: Rows,
    to_device: ToDevice,
    into: torch.Tensor | None = None,
) -> torch.Tensor:
    """Turn all rows by a few launches; `rows` have whole turns."""
    bits = {bit: (rows.turns & bit) != 0 for bit in (MIRROR, FLIP, TRANSPOSE)}
    *masks, sizes = to_device([*bits.values(), rows.sizes])
    met = dict(zip(bits, masks, strict=True))
    if bits[TRANSPOSE].any():
        height, width = pixels.shape[-3:-1]
        # the images' canvas may be larger than that of the upright ones
        squares = height == width and rows.padded == (height, width)
        if squares and (rows.sizes == height).all():
            swapped = met[TRANSPOSE].view(-1, *[1] * (pixels.ndim - 1))
            pixels = torch.where(swapped, pixels.transpose(-3, -2), pixels)
        else:
            pixels = _transposed(pixels, rows, to_device)
    axes = [which for which in ((-3, FLIP, 0), (-2, MIRROR, 1)) if bits[which[1]].any()]
    for axis, bit, side in axes:
        lengths = sizes[:, side, None]
        place = torch.arange(pixels.shape[axis], device=pixels.device)
        # axes: [B, places along the axis]
        inside = met[bit][:, None] & (place < lengths)
        source = torch.where(inside, lengths - 1 - place, place)
        shape = [len(rows), *[1] * (pixels.ndim - 1)]
        shape[axis] = len(place)
        index = source.view(shape).expand(pixels.shape)
        last = axis == axes[-1][0]
        pixels = torch.gather(pixels, axis, index, out=into if last else None)
    return pixels


def _turned_by_row(pixels: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Turn one row after the other: on a CPU that takes a tenth of the time of indexing a whole batch."""
    out = torch.empty(images_shape(pixels.shape, rows), dtype=pixels.dtype)
    for row, (turn, size) in enumerate(
        zip(rows.turns.tolist(), rows.sizes, strict=True)
    ):
        height, width = size.tolist()
        tall, wide = (width, height) if turn & TRANSPOSE else (height, width)
        image = pixels[row, ..., :tall, :wide, :]
        if turn & TRANSPOSE:
            image = image.transpose(-3, -2)
        backwards = [axis for axis, bit in ((-3, FLIP), (-2, MIRROR)) if turn & bit]
        upright_ = image.flip(backwards) if backwards else image
        out[row, ..., :height, :width, :] = upright_
    return out


def _transposed(pixels: torch.Tensor, rows: Rows, to_device: ToDevice) -> torch.Tensor:
    """Transpose those rows that are to be, rows of one size together; the others stay as they are."""
    shape = images_shape(pixels.shape, rows)
    out = torch.empty(shape, dtype=pixels.dtype, device=pixels.device)
    kinds = np.column_stack([(rows.turns & TRANSPOSE) != 0, rows.sizes])
    alike, which = np.unique(kinds, axis=0, return_inverse=True)
    members = to_device([np.flatnonzero(which.ravel() == i) for i in range(len(alike))])
    for (transposes, height, width), its in zip(alike.tolist(), members, strict=True):
        tall, wide = (width, height) if transposes else (height, width)
        part = pixels[..., :tall, :wide, :].index_select(0, its)
        part = part.transpose(-3, -2) if transposes else part
        out[..., :height, :width, :].index_copy_(0, its, part)
    return out
