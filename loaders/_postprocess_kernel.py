"""Turns and normalises a batch of levels in one launch, in Triton. Only loaders/_postprocess.py
imports it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from saturate.plan import geometry

SIZE = 1024
"""Numbers that a program writes."""
LOST = geometry.TURNS
"""Stands in place of a row's turn where the row is to be black."""
_LOST = tl.constexpr(LOST)
MIRROR = tl.constexpr(geometry.MIRROR)
FLIP = tl.constexpr(geometry.FLIP)
TRANSPOSE = tl.constexpr(geometry.TRANSPOSE)


@triton.jit(do_not_specialize=["frames", "height", "width", "parts"])
def _finished(
    levels, table, turns, images, frames, height, width, parts, SIZE: tl.constexpr
):
    """Write the part program_id(0) % parts of an image: each number is the level's that the turn puts there.

    `levels` uint8 and `images` [B, frames, height, width, 3], grid [B x frames x parts]; `turns` uint8 [B],
    or LOST; `table` [256, 3], what becomes of a level. Images that are transposed are square.
    """
    program = tl.program_id(0)
    image = (program // parts).to(tl.int64)
    turn = tl.load(turns + image // frames).to(tl.int32)
    at = (program % parts) * SIZE + tl.arange(0, SIZE)
    count = height * width * 3
    inside = at < count
    shown = at < tl.where(turn < _LOST, count, 0)
    channel = at % 3
    y = at // 3 // width
    x = at // 3 % width
    # backwards: the turn transposes first, and mirrors last
    x = tl.where((turn & MIRROR) > 0, width - 1 - x, x)
    y = tl.where((turn & FLIP) > 0, height - 1 - y, y)
    pixel = tl.where((turn & TRANSPOSE) > 0, x * width + y, y * width + x)
    begin = image * count
    level = tl.load(levels + begin + pixel * 3 + channel, mask=shown, other=0).to(
        tl.int32
    )
    number = tl.load(table + level * 3 + channel, mask=shown, other=0.0)
    tl.store(images + begin + at, number, mask=inside)


def finished(
    levels: torch.Tensor, table: torch.Tensor, turns: torch.Tensor, images: torch.Tensor
) -> None:
    """Write `images` [B, ..., H, W, 3], contiguous as the `levels`, uint8, that they are made of.

    `turns`: uint8 [B], a turn of plan/geometry.py, or LOST: that row is 0. `table`: [256, 3], of the images'
    dtype: what a level of each channel becomes, so that it is torch's to the bit.
    """
    height, width = images.shape[-3:-1]
    frames = images.shape[1:-3].numel()
    parts = triton.cdiv(height * width * 3, SIZE)
    with torch.cuda.device_of(levels):
        _finished[(len(images) * frames * parts,)](
            levels, table, turns, images, frames, height, width, parts,
            SIZE=SIZE, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
