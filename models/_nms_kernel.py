"""Non-maximum suppression of groups of boxes, a Triton program a group. Only models/_nms.py imports it, where
there is Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def corners(at, inside):
    """Return x0, y0, x1 and y1 of the boxes fp32 [..., 4] that `at` points to, 0 where not `inside`."""
    x0 = tl.load(at, mask=inside, other=0.0)
    y0 = tl.load(at + 1, mask=inside, other=0.0)
    x1 = tl.load(at + 2, mask=inside, other=0.0)
    y1 = tl.load(at + 3, mask=inside, other=0.0)
    return x0, y0, x1, y1


@triton.jit
def iou(x0, y0, x1, y1, u0, v0, u1, v1):
    """Return the IoU of boxes x0 y0 x1 y1 with boxes u0 v0 u1 v1."""
    width = tl.maximum(tl.minimum(x1, u1) - tl.maximum(x0, u0), 0.0)
    height = tl.maximum(tl.minimum(y1, v1) - tl.maximum(y0, v0), 0.0)
    both = width * height
    # rounded as torchvision's division is, or a box at the threshold would go here and stay there
    return tl.math.div_rn(both, (u1 - u0) * (v1 - v0) + (x1 - x0) * (y1 - y0) - both)


@triton.jit
def suppress(boxes, alive, surviving, count, threshold, BLOCK: tl.constexpr):
    """Suppress boxes. `boxes` fp32 [G, count, 4], best first; `alive` and `surviving` uint8 [G, count]. A program
    has the boxes of its group in registers."""
    group = tl.program_id(0).to(tl.int64) * count
    lane = tl.arange(0, BLOCK)
    inside = lane < count
    x0, y0, x1, y1 = corners(boxes + (group + lane) * 4, inside)
    left = tl.load(alive + group + lane, mask=inside, other=0).to(tl.int32)
    for one in range(count):
        # whether this one is left is known now: all better ones had their turn
        stays = tl.sum(tl.where(lane == one, left, 0), 0)
        u0, v0, u1, v1 = corners(boxes + (group + one) * 4, True)
        overlap = iou(x0, y0, x1, y1, u0, v0, u1, v1)
        left = tl.where((stays > 0) & (lane > one) & (overlap > threshold), 0, left)
    tl.store(surviving + group + lane, left.to(tl.uint8), mask=inside)


def survivors(
    boxes: torch.Tensor, alive: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Return which boxes survive, as models._nms.survivors does, in one launch: 80 groups of 2,000 boxes take
    80 multiprocessors."""
    groups, count = alive.shape
    surviving = torch.empty_like(alive, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(boxes):
        block = triton.next_power_of_2(count)
        warps = min(8, max(1, block // 128))
        # bool and uint8 lie in memory alike
        alive_bytes = alive.contiguous().view(torch.uint8)
        result = surviving.view(torch.uint8)
        suppress[(groups,)](
            boxes.float().contiguous(),
            alive_bytes,
            result,
            count,
            threshold,
            BLOCK=block,
            num_warps=warps,
        )
    return surviving
