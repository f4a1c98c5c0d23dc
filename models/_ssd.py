"""SSD from its head's outputs to losses and detections, for a batch at once.

torchvision loops over images, and in validation over classes too: the host launches small kernels and waits
for their results, which takes longer than the convolutions do on a fast GPU. Here training waits for nothing,
so that no step may depend on a value on the device: what has another number of entries for each image is kept
as a mask, or packed by counts that the host knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD

from saturate.models._nms import has_kernels, survivors

Targets = Sequence[dict[str, torch.Tensor]] | dict[str, torch.Tensor]
"""A dict an image; or one of "boxes" [B, N, 4] and "labels" [B, N] of all, 0 where an image has no box."""
CHUNK_BYTES = 64 * 2**20
"""Bytes that a tensor over default boxes x boxes, or x classes, may take; a few of them live at a time. It
holds 1,921 boxes of SSD300, and 128 images of COCO have half as many."""


def run(
    stock: SSD, images: ImageList, targets: Targets | None
) -> dict[str, torch.Tensor] | list[dict[str, torch.Tensor]]:
    """Return what torchvision's SSD `stock` would: losses in training, else detections. Boxes without area
    are not looked for."""
    features = list(stock.backbone(images.tensors).values())
    outputs = stock.head(features)
    defaults = stock.anchor_generator(images, features)[0]  # all images have the same
    if stock.training:
        if targets is None:
            raise ValueError(
                "training needs targets, got None; give a dict an image, or call eval() before"
            )
        return losses(stock, outputs, defaults, targets)
    return detections(stock, outputs, defaults, images.image_sizes)


# --- training -----------------------------------------------------------------------------------------------


def losses(
    stock: SSD,
    outputs: dict[str, torch.Tensor],
    defaults: torch.Tensor,
    targets: Targets,
) -> dict[str, torch.Tensor]:
    """Return torchvision's two losses, scalars, from "bbox_regression" [B, A, 4] and "cls_logits" [B, A, K].

    `defaults` [A, 4] and each target's "boxes" [N, 4] are x0 y0 x1 y1 in pixels; "labels" int64 [N] are 1 to
    K - 1. An image without boxes adds nothing: the background is looked at in proportion to its boxes.
    """
    regression = outputs["bbox_regression"]
    logits = outputs["cls_logits"]
    if not isinstance(targets, dict):
        targets = {
            name: pad_sequence([one[name] for one in targets], batch_first=True)
            for name in ("boxes", "labels")
        }
    places = targets["labels"].shape[1]
    matched = match(
        defaults,
        targets["boxes"],
        targets["labels"] > 0,
        stock.proposal_matcher.high_threshold,
    )
    foreground = matched < places
    total = foreground.sum().clamp(min=1)
    # one more place an image, of the background: what is matched to no box is matched to it, and a batch
    # without boxes is no special case
    background = defaults[:1].expand(len(logits), 1, 4)
    boxes = torch.cat([targets["boxes"], background], 1)
    labels = functional.pad(targets["labels"], (0, 1))

    offsets = functional.smooth_l1_loss(
        regression,
        encode(
            boxes.gather(1, matched[..., None].expand(-1, -1, 4)),
            defaults,
            stock.box_coder.weights,
        ),
        reduction="none",
    )
    # cross_entropy looks for the classes in axis 1: [B x A, K]
    entropy = functional.cross_entropy(
        logits.flatten(0, 1), labels.gather(1, matched).flatten(), reduction="none"
    ).view_as(matched)
    hard = hardest(entropy.detach(), foreground, stock.neg_to_pos_ratio)
    return {
        "bbox_regression": torch.where(foreground[..., None], offsets, 0.0).sum()
        / total,
        "classification": (
            torch.where(foreground, entropy, 0.0).sum()
            + torch.where(hard, entropy, 0.0).sum()
        )
        / total,
    }


def match(
    defaults: torch.Tensor, boxes: torch.Tensor, present: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Return, int64 [B, A], for each default box the place of what it is to find among the `boxes` [B, N, 4]
    of its image, of which those that are `present`, bool [B, N], count; N for nothing.

    A default box finds the box it overlaps most, from an IoU of `threshold` on; and whatever it overlaps, it
    finds the box that overlaps no other more. Of equal IoUs the first counts; but of several boxes whose best
    default box is the same, the last one gets it, as torchvision's assignment in order has it on a CPU. On a CUDA
    device a kernel looks at the boxes that are there alone.
    """
    places = present.shape[1]
    if has_kernels(boxes.device):
        from saturate.models import _match_kernel  # with Triton

        matched, best = _match_kernel.match(defaults, boxes, present, threshold)
    else:
        # without area, and so below any threshold
        boxes = boxes.masked_fill(~present[..., None], 0.0)
        best = torch.zeros_like(present, dtype=torch.int64)
        matched = best.new_full((len(boxes), len(defaults)), places)
        at_once = max(1, CHUNK_BYTES // (4 * len(defaults) * max(1, places)))
        for first in range(0, len(boxes) if places else 0, at_once):
            chunk = slice(first, first + at_once)
            # axes: images of this chunk, N, A
            overlap = iou(boxes[chunk], defaults)
            most, which = overlap.max(1)
            matched[chunk] = torch.where(most >= threshold, which, places)
            best[chunk] = overlap.max(2).indices
    # the best default box of each box, whatever its overlap: else a small box would be found by none
    number = torch.arange(places, device=boxes.device).where(present, -1)
    forced = torch.full_like(matched, -1).scatter_reduce_(1, best, number, "amax")
    return torch.where(forced >= 0, forced, matched)


def chunks(counts: Sequence[int], most: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first image, last + 1, first box, last + 1) of neighbours that have `most` boxes together, or of
    one that has more alone."""
    first = start = stop = 0
    for place, count in enumerate(counts):
        if stop > start and stop + count - start > most:
            yield first, place, start, stop
            first = place
            start = stop
        stop += count
    if stop > start:
        yield first, len(counts), start, stop


def on_device(values: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return int64 on the device, copied from page-locked memory: else the host would wait for the device."""
    tensor = torch.tensor(values, dtype=torch.int64)
    return (
        tensor.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else tensor
    )


def iou(boxes: torch.Tensor, defaults: torch.Tensor) -> torch.Tensor:
    """Return the IoU [..., T, A] of [..., T, 4] and [..., A, 4], to the last bit as torchvision computes it,
    but without its tensors of corners [T, A, 2]."""
    x0, y0, x1, y1 = boxes[..., None].unbind(-2)  # [..., T, 1] each
    u0, v0, u1, v1 = defaults[..., None, :, :].unbind(-1)  # [..., 1, A] each
    width = (torch.minimum(x1, u1) - torch.maximum(x0, u0)).clamp_(min=0)
    height = (torch.minimum(y1, v1) - torch.maximum(y0, v0)).clamp_(min=0)
    inside = width.mul_(height)
    return inside / ((x1 - x0) * (y1 - y0) + (u1 - u0) * (v1 - v0) - inside)


def encode(
    boxes: torch.Tensor, defaults: torch.Tensor, weights: Sequence[float]
) -> torch.Tensor:
    """Return, [..., A, 4], how far `boxes` [..., A, 4] are from `defaults` [A, 4], in the latter's sizes and
    in logarithms, times `weights`."""
    size = boxes[..., 2:] - boxes[..., :2]
    own = defaults[:, 2:] - defaults[:, :2]
    middle = boxes[..., :2] + 0.5 * size
    centre = defaults[:, :2] + 0.5 * own
    x, y = ((middle - centre) / own).unbind(-1)
    width, height = (size / own).log().unbind(-1)
    return torch.stack(
        [
            weight * one
            for weight, one in zip(weights, (x, y, width, height), strict=True)
        ],
        -1,
    )


def hardest(
    entropy: torch.Tensor, foreground: torch.Tensor, ratio: float
) -> torch.Tensor:
    """Choose, bool [B, A], those of the background with the largest `entropy`, in each image `ratio` times as
    many as are in `foreground`.

    Where the background has fewer, foreground is added to it and counts twice, as in torchvision.
    """
    order = entropy.masked_fill(foreground, -torch.inf).sort(1, descending=True).indices
    wanted = torch.arange(order.shape[1], device=order.device) < ratio * foreground.sum(
        1, keepdim=True
    )
    return torch.zeros_like(foreground).scatter_(1, order, wanted)


# --- validation ---------------------------------------------------------------------------------------------


def detections(
    stock: SSD,
    outputs: dict[str, torch.Tensor],
    defaults: torch.Tensor,
    sizes: Sequence[tuple[int, int]],
) -> list[dict[str, torch.Tensor]]:
    """Return torchvision's detections, a dict an image: boxes [N, 4] within `sizes` (height, width), labels,
    and scores, sorted.

    Between equal scores of a class either default box may come first, as torch.topk has it.
    """
    regression = outputs["bbox_regression"]
    scores = functional.softmax(outputs["cls_logits"], -1)
    at_once = max(1, CHUNK_BYTES // (4 * scores[0].numel()))
    results = []
    for first in range(0, len(sizes), at_once):
        chunk = slice(first, first + at_once)
        # axes: images, classes but the background, candidates
        best, places = (
            scores[chunk, :, 1:]
            .transpose(1, 2)
            .topk(min(stock.topk_candidates, len(defaults)))
        )
        image = torch.arange(len(places), device=places.device)[:, None, None]
        deltas = regression[chunk][image, places]
        own = defaults[places]
        boxes = stock.box_coder.decode_single(
            deltas.flatten(0, 2), own.flatten(0, 2)
        ).view_as(own)
        limits = on_device(
            [
                size
                for height, width in sizes[chunk]
                for size in (width, height, width, height)
            ],
            boxes.device,
        )
        boxes = torch.minimum(boxes.clamp(min=0), limits.view(-1, 1, 1, 4))
        surviving = survivors(
            boxes.flatten(0, 1),
            (best > stock.score_thresh).flatten(0, 1),
            stock.nms_thresh,
        ).view_as(best)
        # axes: images, classes x candidates; what was suppressed comes last
        ranked = (
            best.masked_fill(~surviving, -1)
            .flatten(1)
            .sort(dim=1, descending=True, stable=True)
        )
        for row, count in enumerate(
            surviving.sum((1, 2)).clamp(max=stock.detections_per_img).tolist()
        ):
            which = ranked.indices[row, :count]
            score = ranked.values[row, :count]
            results.append(
                {
                    "boxes": boxes[row].flatten(0, 1)[which],
                    "scores": score,
                    "labels": which // best.shape[2] + 1,
                }
            )
    return results
