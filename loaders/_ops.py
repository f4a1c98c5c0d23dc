"""The operations of plan/ops.py on tensors, many rows at once.

Must not know who decoded them, nor draw a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from contracts import Array, Rows
from plan.geometry import FLIP, MIRROR, TRANSPOSE, upright, whole_turns
from plan.ops import DISTORT, NUMBERS, PERMUTATIONS

ToDevice = Callable[[list[Array]], list[torch.Tensor]]
"""Copies host arrays to the device, which waits for them and lets the host go on."""
Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(pixels float32 [B, ..., 3] RGB in 0..1, numbers float32 [B, P]) -> pixels of the same shape."""


def operated(levels: torch.Tensor, ops: Array, to_device: ToDevice) -> torch.Tensor:
    """Return float32 levels [B, ..., 3], grey levels in 0..255, after the operations of each row, `Rows.ops`.

    `levels`: uint8 or float32, which stays as it is. Rows without an operation keep their levels bit for bit:
    which rows meet which operation is known on the host, and only those are touched.
    """
    busy = np.flatnonzero((ops[:, :, 0] != 0).any(axis=1))
    out = levels.to(torch.float32, copy=True)
    members = {
        (slot, operation): np.flatnonzero(ops[busy, slot, 0] == operation)
        for slot in range(ops.shape[1])
        for operation in OPERATIONS
    }
    members = {key: its for key, its in members.items() if len(its)}
    if not members:
        return out
    index, numbers, *places = to_device([busy, ops[busy, :, 1:], *members.values()])
    pixels = out.index_select(0, index) / 255
    for (slot, operation), its in zip(members, places, strict=True):
        given = numbers[:, slot, : NUMBERS[operation]].index_select(0, its)
        pixels.index_copy_(0, its, OPERATIONS[operation](pixels.index_select(0, its), given))
    return out.index_copy_(0, index, 255 * pixels)


def images_shape(shape: Sequence[int], rows: Rows) -> tuple[int, ...]:
    """Return the shape of a batch's images, [B, ..., H, W, 3], of that of its upright pixels."""
    return (*shape[:-3], *rows.padded, shape[-1])


def turned(
    pixels: torch.Tensor, rows: Rows, to_device: ToDevice, into: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the upright pixels [B, ..., H, W, 3], each row turned within its own size.

    Where no row is turned they are returned as they are. `into`: memory of images_shape(...), of the pixels'
    dtype, that a GPU may write the result to. What lies beside an image that is smaller than the canvas means
    nothing.
    """
    rows = replace(rows, turns=whole_turns(rows), exif=None)
    before = upright(rows).padded
    if pixels.shape[-3:-1] != before:
        raise ValueError(f"pixels of {tuple(pixels.shape[-3:-1])}, where the upright canvas is {before}")
    if not rows.turns.any():
        return pixels
    if pixels.device.type == "cpu":
        return _turned_by_row(pixels, rows)
    if (rows.turns & TRANSPOSE).any():
        pixels = _transposed(pixels, rows, to_device)
    backwards = [which for which in ((-3, FLIP, 0), (-2, MIRROR, 1)) if (rows.turns & which[1]).any()]
    for axis, bit, side in backwards:
        met, lengths = to_device([(rows.turns & bit) != 0, rows.sizes[:, side]])
        place = torch.arange(pixels.shape[axis], device=pixels.device)
        # axes: [B, places along the axis]
        inside = met[:, None] & (place < lengths[:, None])
        source = torch.where(inside, lengths[:, None] - 1 - place, place)
        shape = [len(rows), *[1] * (pixels.ndim - 1)]
        shape[axis] = len(place)
        is_last = axis == backwards[-1][0]
        index = source.view(shape).expand(pixels.shape)
        pixels = torch.gather(pixels, axis, index, out=into if is_last else None)
    return pixels


def _turned_by_row(pixels: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Turn one row after the other: on a CPU that takes a tenth of the time of indexing a whole batch."""
    out = torch.empty(images_shape(pixels.shape, rows), dtype=pixels.dtype)
    for row, (turn, (height, width)) in enumerate(zip(rows.turns.tolist(), rows.sizes.tolist(), strict=True)):
        tall, wide = (width, height) if turn & TRANSPOSE else (height, width)
        image = pixels[row, ..., :tall, :wide, :]
        if turn & TRANSPOSE:
            image = image.transpose(-3, -2)
        backwards = [axis for axis, bit in ((-3, FLIP), (-2, MIRROR)) if turn & bit]
        out[row, ..., :height, :width, :] = image.flip(backwards) if backwards else image
    return out


def _transposed(pixels: torch.Tensor, rows: Rows, to_device: ToDevice) -> torch.Tensor:
    """Transpose those rows that are to be, rows of one size together; the others stay as they are."""
    out = torch.empty(images_shape(pixels.shape, rows), dtype=pixels.dtype, device=pixels.device)
    kinds = np.column_stack([(rows.turns & TRANSPOSE) != 0, rows.sizes])
    alike, which = np.unique(kinds, axis=0, return_inverse=True)
    members = [np.flatnonzero(which.reshape(-1) == group) for group in range(len(alike))]
    for (transposes, height, width), its in zip(alike.tolist(), to_device(members), strict=True):
        tall, wide = (width, height) if transposes else (height, width)
        part = pixels[..., :tall, :wide, :].index_select(0, its)
        out[..., :height, :width, :].index_copy_(0, its, part.transpose(-3, -2) if transposes else part)
    return out


def distort(pixels: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return float32 [B, ..., 3], RGB in 0..1, distorted by the numbers, float32 [B, 6], of each image.

    It does what plan.ops.distort says, in the same order; without a branch or a wait for the device.
    """
    # axes: [6, B, ..., 1]
    of_image = numbers.T.reshape(numbers.shape[1], len(pixels), *[1] * (pixels.ndim - 1))
    brightness, contrast, first, saturation, hue, permutation = of_image
    out = (pixels + brightness).mul_(torch.where(first > 0, contrast, 1.0))
    out = _saturated_and_turned(out, saturation, hue).mul_(torch.where(first > 0, 1.0, contrast))
    order = _constants(pixels.device)[0][permutation.long().flatten()].reshape(
        len(pixels), *[1] * (pixels.ndim - 2), 3
    )
    return out.gather(-1, order.expand_as(out)).clamp_(0, 1)


def _saturated_and_turned(pixels: torch.Tensor, saturation: torch.Tensor, hue: torch.Tensor) -> torch.Tensor:
    """Do HSV and back in one: V stays, the chroma is scaled, the hue is turned."""
    value = pixels.amax(-1, keepdim=True)
    chroma = value - pixels.amin(-1, keepdim=True)
    red, green, blue = pixels.split(1, -1)
    some = torch.where(chroma > 0, chroma, 1.0)
    # the hue in sixths of a turn: 0 red, 2 green, 4 blue
    of_red = (green - blue) / some
    of_green = (blue - red) / some + 2
    of_blue = (red - green) / some + 4
    sixths = torch.where(value == red, of_red, torch.where(value == green, of_green, of_blue))
    place = torch.remainder(_constants(pixels.device)[1] + (sixths + 6 * hue), 6)
    return value - saturation * chroma * torch.minimum(place, 4 - place).clamp_(0, 1)


@cache
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the permutations, and where each channel's hue begins.

    Made once: such a copy makes the host wait for the device.
    """
    return torch.tensor(PERMUTATIONS, device=device), torch.tensor([5.0, 3.0, 1.0], device=device)


OPERATIONS: dict[int, Operation] = {DISTORT: distort}
"""Operation -> what it does: a row for each of plan.ops.NUMBERS."""
