"""SSD's matching, a Triton program for a part of an image's default boxes. Only models/_ssd.py imports it,
where there is Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from saturate.models._nms_kernel import corners, iou

BLOCK = 256
"""Default boxes that a program has in registers."""
LAST = tl.constexpr(2**31 - 1)


# batches have as many places as their fullest image has boxes
@triton.jit(do_not_specialize=["places"])
def look(
    defaults,
    boxes,
    present,
    matched,
    best,
    count,
    places,
    threshold,
    BLOCK: tl.constexpr,
):
    """Look for boxes. `defaults` fp32 [count, 4]; `boxes` fp32 [B, places, 4]; `present` uint8 [B, places].

    Writes to `matched` int64 [B, count] the box that overlaps most, `places` below the threshold; and to
    `best` int64 [B, places] the largest overlap of each box, its bits above those of the default box, of
    which the first is the largest number.
    """
    first = tl.program_id(0).to(tl.int64) * places
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < count
    u0, v0, u1, v1 = corners(defaults + lane * 4, inside)
    rank = tl.where(inside, LAST - lane, 0).to(tl.int64)
    most = tl.zeros([BLOCK], tl.float32)
    which = tl.zeros([BLOCK], tl.int32)
    for one in range(places):
        # what is not there costs a look at a byte, however many places there are
        if tl.load(present + first + one) != 0:
            x0, y0, x1, y1 = corners(boxes + (first + one) * 4, True)
            overlap = iou(u0, v0, u1, v1, x0, y0, x1, y1)
            which = tl.where(overlap > most, one, which)
            most = tl.maximum(most, overlap)
            bits = overlap.to(tl.int32, bitcast=True).to(tl.int64)
            key = tl.where(inside, (bits << 32) | rank, 0)
            tl.atomic_max(best + first + one, tl.max(key, 0), sem="relaxed")
    assigned = tl.where(most >= threshold, which, places).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * count + lane
    tl.store(matched + at, assigned, mask=inside)


def match(
    defaults: torch.Tensor, boxes: torch.Tensor, present: torch.Tensor, threshold: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (the box that each default box overlaps most int64 [B, A], N below the threshold; the default
    box that each box overlaps most int64 [B, N], 0 for what is not there), in a time that follows the boxes
    that are there. Bit for bit those of torch's operators."""
    images, places = present.shape
    count = len(defaults)
    matched = torch.empty(images, count, dtype=torch.int64, device=boxes.device)
    best = torch.zeros_like(present, dtype=torch.int64)
    with torch.cuda.device_of(boxes):
        look[(images, triton.cdiv(count, BLOCK))](
            defaults.float().contiguous(),
            boxes.float().contiguous(),
            present.contiguous().view(torch.uint8),  # bool lies in memory alike
            matched,
            best,
            count,
            places,
            threshold,
            BLOCK=BLOCK,
            # with a * b + c rounded once, overlaps that are equal would differ
            enable_fp_fusion=False,
        )
    return matched, torch.where(present, LAST.value - (best & LAST.value), 0)
