"""SSD's matching, a Triton program for a part of an image's default boxes. Only models/_ssd.py imports it,
where there is Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 256
"""Default boxes that a program has in registers."""


# batches have as many places as their fullest image has boxes
@triton.jit(do_not_specialize=["places"])
def look(
    defaults, boxes, there, matched, best, count, places, threshold, BLOCK: tl.constexpr
):
    """Look for boxes. `defaults` fp32 [count, 4]; `boxes` fp32 [B, places, 4]; `there` uint8 [B, places].

    Writes to `matched` int64 [B, count] the box that overlaps most, `places` below the threshold; and to
    `best` int64 [B, places] the largest overlap of each box, its bits above those of the default box, of
    which the first is the largest number.
    """
    first = tl.program_id(0).to(tl.int64) * places
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < count
    corner = defaults + lane * 4
    u0 = tl.load(corner, mask=inside, other=0.0)
    v0 = tl.load(corner + 1, mask=inside, other=0.0)
    u1 = tl.load(corner + 2, mask=inside, other=1.0)
    v1 = tl.load(corner + 3, mask=inside, other=1.0)
    area = (u1 - u0) * (v1 - v0)
    rank = tl.where(inside, 0x7FFFFFFF - lane, 0).to(tl.int64)
    most = tl.zeros([BLOCK], tl.float32)
    which = tl.zeros([BLOCK], tl.int32)
    for one in range(places):
        # what is not there costs a look at a byte, however many places there are
        if tl.load(there + first + one) != 0:
            own = boxes + (first + one) * 4
            x0 = tl.load(own)
            y0 = tl.load(own + 1)
            x1 = tl.load(own + 2)
            y1 = tl.load(own + 3)
            width = tl.maximum(tl.minimum(x1, u1) - tl.maximum(x0, u0), 0.0)
            height = tl.maximum(tl.minimum(y1, v1) - tl.maximum(y0, v0), 0.0)
            both = width * height
            overlap = tl.math.div_rn(both, (x1 - x0) * (y1 - y0) + area - both)
            which = tl.where(overlap > most, one, which)
            most = tl.maximum(most, overlap)
            bits = overlap.to(tl.int32, bitcast=True).to(tl.int64)
            key = tl.where(inside, (bits << 32) | rank, 0)
            tl.atomic_max(best + first + one, tl.max(key, 0), sem="relaxed")
    found = tl.where(most >= threshold, which, places).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * count + lane
    tl.store(matched + at, found, mask=inside)


def match(
    defaults: torch.Tensor, boxes: torch.Tensor, there: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Return what models._ssd.match does, bit for bit, in a time that follows the boxes that are there."""
    images, places = there.shape
    count = len(defaults)
    matched = torch.empty(images, count, dtype=torch.int64, device=boxes.device)
    best = torch.zeros(images, places, dtype=torch.int64, device=boxes.device)
    with torch.cuda.device_of(boxes):
        look[(images, triton.cdiv(count, BLOCK))](
            defaults.float().contiguous(),
            boxes.float().contiguous(),
            there.contiguous().view(torch.uint8),  # bool lies in memory alike
            matched,
            best,
            count,
            places,
            threshold,
            BLOCK=BLOCK,
            # with a * b + c rounded once, overlaps that are equal would differ
            enable_fp_fusion=False,
        )
    number = torch.arange(places, device=boxes.device).where(there, -1)
    default = (0x7FFFFFFF - (best & 0x7FFFFFFF)).where(there, 0)
    forced = torch.full_like(matched, -1)
    forced.scatter_reduce_(1, default, number, "amax")
    return torch.where(forced >= 0, forced, matched)
