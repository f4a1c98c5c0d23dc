"""Training of torchvision's R-CNN family, from its modules to losses, for a batch at once.

torchvision loops over images and levels, and asks the device for a count at nearly every step. Here places
are fixed in number and masks say which of them are filled, so the host never waits for Faster R-CNN. Where
only what is really there may go through a head (batch norm in it, masks, keypoints), the device is asked once
for the counts of all images. What is drawn at random is drawn otherwise than torchvision does, with the same
numbers and the same probabilities.

No box may be without area: nothing here looks for one. plan.targets.packed gives none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torchvision.models.detection._utils import (
    BalancedPositiveNegativeSampler,
    BoxCoder,
    Matcher,
)
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import (
    RoIHeads,
    keypointrcnn_loss,
    maskrcnn_loss,
)
from torchvision.models.detection.rpn import (
    RegionProposalNetwork,
    concat_box_prediction_layers,
)
from torchvision.ops import MultiScaleRoIAlign, roi_align

from saturate.models._nms import survivors
from saturate.models._ssd import chunks, encode, iou, on_device

Targets = Sequence[dict[str, torch.Tensor]]
Losses = dict[str, torch.Tensor]
CHUNK_BYTES = 256 * 2**20
"""Bytes that an fp32 tensor over boxes x anchors may take; five of them live at a time. It holds 250 boxes at
800 x 1333, and 16 images of COCO have 120."""
NOWHERE = -1e6
"""A coordinate so far outside that RoI align gives 0 without a look at the features."""


class Truth(NamedTuple):
    """The T boxes of B images, and one more that stands for none."""

    boxes: torch.Tensor
    """fp32 [T + 1, 4], x0 y0 x1 y1 in pixels; the last one is no image's."""
    labels: torch.Tensor
    """int64 [T + 1], 1 and more; the last is 0, the background."""
    counts: list[int]
    """Boxes of each image."""
    owner: torch.Tensor
    """int64 [T], the image of each."""
    places: torch.Tensor
    """int64 [B, G], where the boxes of an image are; T in what is left over. At least one column."""
    limits: torch.Tensor
    """fp32 [B, 1, 4]: width, height, width, height of an image without its padding."""

    @classmethod
    def pack(cls, targets: Targets, sizes: Sequence[tuple[int, int]]) -> Truth:
        """Pack the targets of images whose `sizes` are heights and widths, by one copy to the device that
        nothing waits for."""
        counts = [len(target["boxes"]) for target in targets]
        total = sum(counts)
        most = max(1, *counts)
        owner = []
        places = []
        limits = []
        start = 0
        for image, (count, (height, width)) in enumerate(
            zip(counts, sizes, strict=True)
        ):
            owner += [image] * count
            places += [*range(start, start + count), *[total] * (most - count)]
            limits += [width, height, width, height]
            start += count
        boxes = targets[0]["boxes"]
        numbers = on_device([*owner, *places, *limits], boxes.device).split(
            [total, len(places), len(limits)]
        )
        # with area, so that nothing made of it is nan
        none = torch.arange(4, device=boxes.device, dtype=boxes.dtype)[None]
        return cls(
            torch.cat([*(target["boxes"] for target in targets), none]),
            torch.cat(
                [
                    *(target["labels"] for target in targets),
                    targets[0]["labels"].new_zeros(1),
                ]
            ),
            counts,
            numbers[0],
            numbers[1].view(len(counts), most),
            numbers[2].view(len(counts), 1, 4).to(boxes.dtype),
        )


class Drawn(NamedTuple):
    """S regions of each image to learn from. Those of objects come first, then the background's, then places
    that are left over."""

    boxes: torch.Tensor
    """fp32 [B, S, 4]."""
    labels: torch.Tensor
    """int64 [B, S]: a class, 0 the background, -1 left over."""
    which: torch.Tensor
    """int64 [B, S], the box among those of its image that it overlaps most."""


def losses(
    stock: GeneralizedRCNN, images: ImageList, targets: Targets | None
) -> Losses:
    """Return the losses of torchvision's GeneralizedRCNN `stock` in training, by its names for them;
    scalars."""
    if targets is None:
        raise ValueError(
            "training needs targets, got None; give a dict an image, or call eval() before"
        )
    truth = Truth.pack(targets, images.image_sizes)
    features = stock.backbone(images.tensors)
    features = {"0": features} if isinstance(features, torch.Tensor) else features
    maps = list(features.values())
    rpn = stock.rpn
    head = rpn.head(maps)
    anchors = rpn.anchor_generator(images, maps)[0]  # all images have the same
    per_level = [one[0].numel() for one in head[0]]
    # torchvision has all images in one axis: [B x A, 1] and [B x A, 4]
    logits, deltas = concat_box_prediction_layers(*head)
    logits = logits.view(len(targets), -1)
    deltas = deltas.view(len(targets), -1, 4)
    with torch.no_grad():
        boxes, real = proposals(rpn, logits, deltas, anchors, per_level, truth.limits)
        drawn = draw_regions(stock.roi_heads, boxes, real, truth)
    of_regions = region_losses(
        stock.roi_heads, features, drawn, truth, targets, images.image_sizes
    )
    return {**of_regions, **anchor_losses(rpn, logits, deltas, anchors, truth)}


# --- what to find, and where to look for it -----------------------------------------------------------------


def match_anchors(
    anchors: torch.Tensor, truth: Truth, matcher: Matcher
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (place in truth.boxes int64 [B, A], 1 object, 0 background, -1 neither int64 [B, A]), as
    torchvision's `matcher` finds them.

    An anchor finds the box it overlaps most, the first of equal ones; from matcher.high_threshold on, or
    where it is among those that overlap some box most.
    """
    images = len(truth.counts)
    nothing = len(truth.owner)
    # axes: B, A; filled chunk by chunk, since an overlap of all boxes with all anchors takes too much memory
    most = anchors.new_zeros(images, len(anchors))
    matched = torch.full_like(most, nothing, dtype=torch.int64)
    best = torch.zeros_like(most, dtype=torch.int32)
    for _, _, start, stop in chunks(truth.counts, CHUNK_BYTES // (4 * len(anchors))):
        # axes: T of this chunk's boxes, A
        overlap = iou(truth.boxes[start:stop], anchors)
        image = truth.owner[start:stop]
        rows = image[:, None].expand_as(overlap)
        most.scatter_reduce_(0, rows, overlap, "amax")
        number = torch.arange(start, stop, device=anchors.device)[:, None]
        matched.scatter_reduce_(
            0, rows, torch.where(overlap == most[image], number, nothing), "amin"
        )
        if matcher.allow_low_quality_matches:
            best.scatter_reduce_(
                0, rows, (overlap == overlap.amax(1, keepdim=True)).int(), "amax"
            )
    is_match = (most >= matcher.high_threshold) | (best > 0)
    return matched, torch.where(
        is_match, 1, torch.where(most < matcher.low_threshold, 0, -1)
    )


def keys(like: torch.Tensor) -> torch.Tensor:
    """Return random keys, uniform in [0, 1): the largest are drawn; of equal ones, of which there are few,
    the places decide."""
    return torch.rand(like.shape, device=like.device)


def draw(
    labels: torch.Tensor, sampler: BalancedPositiveNegativeSampler
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (places int64 [B, S], which of them are filled bool [B, S]), drawn from `labels` [B, N]: above 0
    objects, 0 background, -1 never drawn.

    As many as torchvision's `sampler` takes, each subset of that size as likely as any other; those of
    objects come first, what is not filled last. S is the sampler's batch_size_per_image, or N if that is
    less.
    """
    wanted = min(sampler.batch_size_per_image, labels.shape[1])
    objects = min(
        int(sampler.batch_size_per_image * sampler.positive_fraction), labels.shape[1]
    )
    random = keys(labels)
    first = random.masked_fill(labels <= 0, -1).topk(objects, 1)
    chosen = torch.zeros_like(labels, dtype=torch.bool).scatter_(
        1, first.indices, first.values >= 0
    )
    # 2 is above any key: objects that were chosen come first, then the background, and -1, which is never
    # drawn, last
    drawn = random.masked_fill(labels != 0, -1).masked_fill(chosen, 2).topk(wanted, 1)
    return drawn.indices, drawn.values >= 0


def decode(
    deltas: torch.Tensor, anchors: torch.Tensor, coder: BoxCoder
) -> torch.Tensor:
    """Return the boxes [..., 4] that are `deltas` [..., 4] away from `anchors` [..., 4].

    The numbers are those of torchvision's BoxCoder.decode_single, which waits for the device.
    """
    size = anchors[..., 2:] - anchors[..., :2]
    middle = anchors[..., :2] + 0.5 * size
    across, down, wider, higher = coder.weights
    shift = (
        torch.stack([deltas[..., 0] / across, deltas[..., 1] / down], -1) * size
        + middle
    )
    growth = torch.stack([deltas[..., 2] / wider, deltas[..., 3] / higher], -1).clamp(
        max=coder.bbox_xform_clip
    )
    half = 0.5 * (growth.exp() * size)
    return torch.cat([shift - half, shift + half], -1)


def proposals(
    rpn: RegionProposalNetwork,
    logits: torch.Tensor,
    deltas: torch.Tensor,
    anchors: torch.Tensor,
    per_level: Sequence[int],
    limits: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (boxes [B, P, 4], which of them are there bool [B, P]), best first: torchvision's of `logits`
    [B, A] and `deltas` [B, A, 4].

    Suppression compares the boxes of a level where they are. torchvision moves each level aside before, which
    rounds them.
    """
    most = min(rpn.pre_nms_top_n(), max(per_level))
    scores = []
    places = []
    start = 0
    for level, count in zip(logits.split(list(per_level), 1), per_level, strict=True):
        top = level.topk(min(most, count), 1)
        # a level of fewer anchors is filled up, so that all levels are one tensor, and one launch suppresses
        # in them
        empty = (0, most - top.values.shape[1])
        scores.append(functional.pad(top.values, empty, value=-torch.inf))
        places.append(functional.pad(top.indices + start, empty))
        start += count
    # axes: [images, levels x most]
    place = torch.cat(places, 1)
    score = torch.cat(scores, 1)
    boxes = decode(
        deltas.gather(1, place[..., None].expand(-1, -1, 4)),
        anchors[place],
        rpn.box_coder,
    )
    boxes = torch.minimum(boxes.clamp(min=0), limits)
    probability = score.sigmoid()
    alive = (
        ((boxes[..., 2:] - boxes[..., :2]) >= rpn.min_size).all(-1)
        & (probability >= rpn.score_thresh)
        & (score > -torch.inf)
    )
    # axes: [images x levels, most]
    surviving = survivors(
        boxes.view(-1, most, 4), alive.view(-1, most), rpn.nms_thresh
    ).view_as(alive)
    # behind all others, and not left out: to count what is left would be a wait for the device
    ranked = probability.masked_fill(~surviving, -1).sort(
        dim=1, descending=True, stable=True
    )
    best = ranked.indices[:, : rpn.post_nms_top_n()]
    return boxes.gather(1, best[..., None].expand(-1, -1, 4)), ranked.values[
        :, : rpn.post_nms_top_n()
    ] >= 0


def draw_regions(
    heads: RoIHeads, boxes: torch.Tensor, real: torch.Tensor, truth: Truth
) -> Drawn:
    """Draw the regions to train on, as heads.fg_bg_sampler would: of the proposals `boxes` [B, P, 4] that are
    `real` [B, P], and the true boxes."""
    own = truth.boxes[truth.places]
    is_box = truth.places < len(truth.owner)
    boxes = torch.cat([boxes, own], 1)
    real = torch.cat([real, is_box], 1)
    # axes: B, G, P + G
    overlap, which = iou(own, boxes).masked_fill(~is_box[..., None], -1).max(1)
    matcher = heads.proposal_matcher
    labels = truth.labels[truth.places.gather(1, which)]
    labels = torch.where(
        overlap >= matcher.high_threshold,
        labels,
        torch.where(overlap < matcher.low_threshold, 0, -1),
    )
    places, filled = draw(labels.masked_fill(~real, -1), heads.fg_bg_sampler)
    labels = labels.gather(1, places).masked_fill(~filled, -1)
    return Drawn(
        boxes.gather(1, places[..., None].expand(-1, -1, 4)),
        labels,
        which.gather(1, places),
    )


# --- losses -------------------------------------------------------------------------------------------------


def anchor_losses(
    rpn: RegionProposalNetwork,
    logits: torch.Tensor,
    deltas: torch.Tensor,
    anchors: torch.Tensor,
    truth: Truth,
) -> Losses:
    """Return the losses of the region proposal network, from its `logits` [B, A] and `deltas` [B, A, 4]."""
    with torch.no_grad():
        matched, labels = match_anchors(anchors, truth, rpn.proposal_matcher)
        places, filled = draw(labels, rpn.fg_bg_sampler)
        is_object = labels.gather(1, places) > 0
        positive = (filled & is_object)[..., None]
        wanted = encode(
            truth.boxes[matched.gather(1, places)].view(-1, 4),
            anchors[places].view(-1, 4),
            rpn.box_coder.weights,
        )
    count = filled.sum()
    # of every place, and masked below: only the device knows how many are filled
    entropy = functional.binary_cross_entropy_with_logits(
        logits.gather(1, places), is_object.to(logits.dtype), reduction="none"
    )
    near = deltas.gather(1, places[..., None].expand(-1, -1, 4))
    offsets = functional.smooth_l1_loss(
        near, wanted.view_as(near), beta=1 / 9, reduction="none"
    )
    return {
        "loss_objectness": torch.where(filled, entropy, 0.0).sum() / count,
        "loss_rpn_box_reg": torch.where(positive, offsets, 0.0).sum() / count,
    }


def region_losses(
    heads: RoIHeads,
    features: dict[str, torch.Tensor],
    drawn: Drawn,
    truth: Truth,
    targets: Targets,
    sizes: list[tuple[int, int]],
) -> Losses:
    """Return the losses of the box head, and of the mask and the keypoint head where there is one."""
    images, places = drawn.labels.shape
    image = torch.arange(images, device=drawn.labels.device)[:, None].expand(
        images, places
    )
    flat = [
        drawn.boxes.view(-1, 4),
        image.reshape(-1),
        drawn.labels.view(-1),
        drawn.which.view(-1),
    ]
    objects: list[int] = []
    more = heads.has_mask() or heads.has_keypoint()
    if more or _has_batch_norm(heads.box_head) or _waits_cost_nothing(image.device):
        # the only wait of the host
        filled, objects = torch.stack(
            [(drawn.labels >= 0).sum(1), (drawn.labels > 0).sum(1)]
        ).tolist()
        rows = _firsts(filled, places, image.device)
        boxes, image, labels, which = (one[rows] for one in flat)
    else:
        boxes, image, labels, which = flat
    head_losses = box_losses(
        heads,
        pooled(heads.box_roi_pool, features, boxes, image, labels >= 0, sizes),
        boxes,
        image,
        labels,
        which,
        truth,
    )
    if more:
        rows = _firsts(objects, places, image.device)
        boxes, image, labels, which = (one[rows] for one in flat)
        # what torchvision's own losses are given: a tensor an image
        boxes_of = boxes.split(objects)
        which_of = which.split(objects)
    if heads.has_mask():
        features_at = pooled(
            heads.mask_roi_pool, features, boxes, image, labels > 0, sizes
        )
        masks = [one["masks"] for one in targets]
        kinds = [one["labels"] for one in targets]
        head_losses["loss_mask"] = maskrcnn_loss(
            heads.mask_predictor(heads.mask_head(features_at)),
            boxes_of,
            masks,
            kinds,
            which_of,
        )
    if heads.has_keypoint():
        features_at = pooled(
            heads.keypoint_roi_pool, features, boxes, image, labels > 0, sizes
        )
        points = [one["keypoints"] for one in targets]
        head_losses["loss_keypoint"] = keypointrcnn_loss(
            heads.keypoint_predictor(heads.keypoint_head(features_at)),
            boxes_of,
            points,
            which_of,
        )
    return head_losses


def box_losses(
    heads: RoIHeads,
    features: torch.Tensor,
    boxes: torch.Tensor,
    image: torch.Tensor,
    labels: torch.Tensor,
    which: torch.Tensor,
    truth: Truth,
) -> Losses:
    """Return the losses of the box head from the `features` [R, C, h, w] of regions `boxes` [R, 4]. `image`,
    `labels` and `which` are int64 [R]: the image of each region, and the rest as in Drawn."""
    logits, regression = heads.box_predictor(heads.box_head(features))
    positive = (labels > 0)[:, None]
    wanted = encode(
        truth.boxes[truth.places[image, which]], boxes, heads.box_coder.weights
    )
    # a region without area has a place, and its logarithm is not finite
    wanted = torch.where(positive, wanted, 0.0)
    # axes: R, classes, 4; of each region the offsets of its own class
    near = regression.view(len(labels), -1, 4).gather(
        1, labels.clamp(min=0)[:, None, None].expand(-1, 1, 4)
    )[:, 0]
    offsets = functional.smooth_l1_loss(near, wanted, beta=1 / 9, reduction="none")
    return {
        "loss_classifier": functional.cross_entropy(logits, labels, ignore_index=-1),
        "loss_box_reg": torch.where(positive, offsets, 0.0).sum() / (labels >= 0).sum(),
    }


def pooled(
    pool: MultiScaleRoIAlign,
    features: dict[str, torch.Tensor],
    boxes: torch.Tensor,
    image: torch.Tensor,
    filled: torch.Tensor,
    sizes: list[tuple[int, int]],
) -> torch.Tensor:
    """Return, [R, C, h, w], what torchvision's MultiScaleRoIAlign `pool` makes of `boxes` [R, 4] of images
    int64 [R]; 0 where not `filled`.

    Each level is asked for all of them, and those of the others are nowhere on it: so nobody has to count
    them. Regions are in the order of their images.
    """
    if _waits_cost_nothing(boxes.device):
        return pool(
            features, [boxes[image == place] for place in range(len(sizes))], sizes
        )
    maps = [one for name, one in features.items() if name in pool.featmap_names]
    levels = pool.map_levels([boxes]).masked_fill(~filled, -1)
    owner = image.to(boxes.dtype)[:, None]
    parts: list[torch.Tensor] = []
    for level, (one, scale) in enumerate(zip(maps, pool.scales, strict=True)):
        rois = torch.cat(
            [owner, torch.where((levels == level)[:, None], boxes, NOWHERE)], 1
        )
        part = roi_align(one, rois, pool.output_size, scale, pool.sampling_ratio).to(
            maps[0].dtype
        )
        # all but one of a region's are 0; two live at a time
        parts = [part if level == 0 else parts[0] + part]
    return parts[0]


def _waits_cost_nothing(device: torch.device) -> bool:
    """Whether this is a CPU: there a region that is left over, or nowhere on a level, costs as much as
    another."""
    return device.type == "cpu"


def _has_batch_norm(module: nn.Module) -> bool:
    return any(
        isinstance(one, nn.modules.batchnorm._BatchNorm) for one in module.modules()
    )


def _firsts(counts: Sequence[int], places: int, device: torch.device) -> torch.Tensor:
    """Return the places, int64, of the first `counts` of each image, when each image has `places` of them."""
    return on_device(
        [
            place
            for image, count in enumerate(counts)
            for place in range(image * places, image * places + count)
        ],
        device,
    )
