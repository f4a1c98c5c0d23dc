"""Non-maximum suppression of groups of boxes, a Triton program a group. Only models/_nms.py imports it, where
there is Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def suppress(boxes, alive, kept, count, threshold, BLOCK: tl.constexpr):
    """Suppress boxes. `boxes` fp32 [G, count, 4], best first; `alive` and `kept` uint8 [G, count]. A program
    has the boxes of its group in registers."""
    group = tl.program_id(0).to(tl.int64) * count
    lane = tl.arange(0, BLOCK)
    inside = lane < count
    corner = boxes + (group + lane) * 4
    x0 = tl.load(corner, mask=inside, other=0.0)
    y0 = tl.load(corner + 1, mask=inside, other=0.0)
    x1 = tl.load(corner + 2, mask=inside, other=0.0)
    y1 = tl.load(corner + 3, mask=inside, other=0.0)
    area = (x1 - x0) * (y1 - y0)
    left = tl.load(alive + group + lane, mask=inside, other=0).to(tl.int32)
    for one in range(count):
        # whether this one is left is known now: all better ones had their turn
        stays = tl.sum(tl.where(lane == one, left, 0), 0)
        own = boxes + (group + one) * 4
        u0 = tl.load(own)
        v0 = tl.load(own + 1)
        u1 = tl.load(own + 2)
        v1 = tl.load(own + 3)
        width = tl.maximum(tl.minimum(x1, u1) - tl.maximum(x0, u0), 0.0)
        height = tl.maximum(tl.minimum(y1, v1) - tl.maximum(y0, v0), 0.0)
        both = width * height
        # rounded as torchvision's division is, or a box at the threshold would go here and stay there
        overlap = tl.math.div_rn(both, (u1 - u0) * (v1 - v0) + area - both)
        left = tl.where((stays > 0) & (lane > one) & (overlap > threshold), 0, left)
    tl.store(kept + group + lane, left.to(tl.uint8), mask=inside)


def survivors(
    boxes: torch.Tensor, alive: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Return which boxes survive, as models._nms.survivors does, in one launch: 80 groups of 2,000 boxes take
    80 multiprocessors."""
    groups, count = alive.shape
    kept = torch.empty_like(alive, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(boxes):
        block = triton.next_power_of_2(count)
        warps = min(8, max(1, block // 128))
        # bool and uint8 lie in memory alike
        there = alive.contiguous().view(torch.uint8)
        result = kept.view(torch.uint8)
        suppress[(groups,)](
            boxes.float().contiguous(),
            there,
            result,
            count,
            threshold,
            BLOCK=block,
            num_warps=warps,
        )
    return kept
