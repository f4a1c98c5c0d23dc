"""The R-CNN family's training for a batch at once is torchvision's, image by image and draw by draw."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torchvision.models.detection import FasterRCNN, KeypointRCNN, MaskRCNN
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import (
    FastRCNNConvFCHead,
    FastRCNNPredictor,
    TwoMLPHead,
)
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from saturate.models import _rcnn
from saturate.models.detection import (
    Detector,
    _fit_to_shape,
    _keep_pixels_exact,
    _Prepared,
)
from tests.unit.test_ssd import Targets, boxes_from

HEIGHT, WIDTH, CLASSES, CHANNELS, KEYPOINTS = 96, 128, 5, 8, 3
KINDS = ("boxes", "batch norm", "masks", "keypoints")


class Backbone(nn.Module):
    """Four maps, of strides 4 to 32."""

    out_channels = CHANNELS

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 4, 4)
        self.more = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 2, 2) for _ in range(3))

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        maps = [self.stem(images)]
        for one in self.more:
            maps.append(one(maps[-1]))
        return {str(level): one for level, one in enumerate(maps)}


def small(kind: str = "boxes", **options: Any) -> Any:
    torch.manual_seed(0)
    options = {
        "rpn_anchor_generator": AnchorGenerator(
            ((12,), (24,), (48,), (96,)), ((0.5, 1.0, 2.0),) * 4
        ),
        "rpn_pre_nms_top_n_train": 60,
        "rpn_post_nms_top_n_train": 100,
        "rpn_batch_size_per_image": 40,
        "box_batch_size_per_image": 32,
        "box_head": TwoMLPHead(CHANNELS * 49, 16),
        "box_predictor": FastRCNNPredictor(16, CLASSES),
        **options,
    }
    if kind == "batch norm":
        options["box_head"] = FastRCNNConvFCHead(
            (CHANNELS, 7, 7), [8], [16], norm_layer=nn.BatchNorm2d
        )
    model: Any
    if kind == "masks":
        options["mask_head"] = MaskRCNNHeads(CHANNELS, [8], 1)
        model = MaskRCNN(
            Backbone(), mask_predictor=MaskRCNNPredictor(8, 8, CLASSES), **options
        )
    elif kind == "keypoints":
        options["keypoint_head"] = KeypointRCNNHeads(CHANNELS, [512])
        model = KeypointRCNN(Backbone(), num_keypoints=KEYPOINTS, **options)
    else:
        model = FasterRCNN(Backbone(), **options)
    for name, one in model.named_parameters():
        if name.startswith(("rpn", "roi_heads")) and one.ndim > 1:
            nn.init.normal_(one, std=0.2)
    _keep_pixels_exact(model)
    _fit_to_shape(model, kind, (2, 3, HEIGHT, WIDTH))
    return model.train()


SMALL = small()
"""For what changes nothing in it."""
SIZES = [(HEIGHT, WIDTH), (90, 100), (70, WIDTH)]


@cache
def anchors_of() -> torch.Tensor:
    """Return the anchors of SMALL, [3060, 4]."""
    images = torch.zeros(1, 3, HEIGHT, WIDTH)
    return SMALL.rpn.anchor_generator(
        ImageList(images, [(HEIGHT, WIDTH)]), list(SMALL.backbone(images).values())
    )[0]


def targets_from(
    seed: int, images: list[tuple[int, str]], kind: str = "boxes"
) -> Targets:
    generator, targets = torch.Generator().manual_seed(seed), []
    for count, where in images:
        boxes = boxes_from(generator, count, where, anchors_of(), 64)
        target = {
            "boxes": boxes,
            "labels": torch.randint(1, CLASSES, (count,), generator=generator),
        }
        if kind == "masks":
            target["masks"] = (
                torch.rand(count, HEIGHT, WIDTH, generator=generator) > 0.5
            ).to(torch.uint8)
        if kind == "keypoints":
            spots = boxes[:, None, :2] + torch.rand(
                count, KEYPOINTS, 2, generator=generator
            ) * (boxes[:, None, 2:] - boxes[:, None, :2])
            target["keypoints"] = torch.cat([spots, torch.ones(count, KEYPOINTS, 1)], 2)
        targets.append(target)
    return targets


@contextmanager
def first_ones() -> Iterator[None]:
    def falling(like: torch.Tensor) -> torch.Tensor:
        return torch.linspace(
            0.9, 0.1, like.shape[1], dtype=torch.float64, device=like.device
        ).expand(like.shape)

    with (
        patch.object(
            torch, "randperm", lambda count, device: torch.arange(count, device=device)
        ),
        patch.object(_rcnn, "keys", falling),
    ):
        yield


@contextmanager
def as_on_a_gpu(*, waits: bool = False, kernel: bool = True) -> Iterator[None]:
    """Go the way that waits for nothing, unless `waits`.

    `kernel`: a stand-in for the one that needs a GPU keeps all boxes.
    """
    with ExitStack() as stack:
        stack.enter_context(
            patch.object(_rcnn, "_waits_cost_nothing", lambda device: waits)
        )
        if kernel:
            stack.enter_context(
                patch.object(_rcnn, "survivors", lambda boxes, alive, _: alive.clone())
            )
        yield


def test_each_is_drawn_as_often_as_any_other_and_with_any_other() -> None:
    torch.manual_seed(0)
    rounds = 20_000
    labels = torch.tensor(
        [1, 0, -1, 0, 2, 0, 0, 1, -1, 0, 0, 1, 0, 0, 3, 0, 0, 1, 0, 0]
    )
    sampler = BalancedPositiveNegativeSampler(10, 0.4)
    places, filled = _rcnn.draw(labels.expand(rounds, -1), sampler)
    assert filled.all()
    drawn = torch.zeros(rounds, len(labels)).scatter_(1, places, 1.0)
    together = drawn.T @ drawn / rounds
    for its, count, taken in ((labels > 0, 6, 4), (labels == 0, 12, 6)):
        own = together[its][:, its]
        twice = taken * (taken - 1) / (count * (count - 1))
        wanted = torch.full_like(own, twice).fill_diagonal_(taken / count)
        scatter = (wanted * (1 - wanted) / rounds).sqrt()
        assert ((own - wanted).abs() < 5 * scatter).all()
    assert together[labels == -1].sum() == 0


def check_losses(
    stock: Any, counts: list[int], seed: int, kind: str
) -> dict[str, torch.Tensor]:
    targets = targets_from(seed, [(count, "anywhere") for count in counts], kind)
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(len(counts), 3, HEIGHT, WIDTH, generator=generator)
    sizes = SIZES[: len(counts)]
    other = copy.deepcopy(stock)
    Detector(other)  # takes its transform away
    with first_ones():
        wanted = other(_Prepared(images, sizes), targets)
        got: Any = Detector(stock)(images, sizes, targets)
    torch.testing.assert_close(got, dict(wanted), rtol=1e-5, atol=1e-6)
    for one in (got, wanted):
        torch.stack(list(one.values())).sum().backward()
    for (name, one), two in zip(
        stock.named_parameters(), other.parameters(), strict=True
    ):
        assert one.grad is not None and two.grad is not None, name
        most = 1e-5 * float(two.grad.abs().max()) + 1e-6
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=most, msg=name)
    torch.testing.assert_close(dict(stock.named_buffers()), dict(other.named_buffers()))
    return got


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("kind", "counts", "options"),
    [
        *((kind, [3, 0, 14], {}) for kind in KINDS),
        *((kind, [0], {}) for kind in KINDS),
        # few proposals are left
        ("boxes", [3, 5], {"rpn_nms_thresh": 0.2}),
        # every anchor counts
        ("boxes", [14, 3], {"rpn_batch_size_per_image": 5000}),
        # where places are left over
        (
            "batch norm",
            [1, 0, 2],
            {"rpn_post_nms_top_n_train": 5, "rpn_batch_size_per_image": 5000},
        ),
    ],
)
def test_losses_and_gradients_are_torchvisions(
    kind: str, counts: list[int], options: dict[str, int], waits: bool
) -> None:
    # a few boxes are compared with all anchors at a time
    few = patch.object(_rcnn, "CHUNK_BYTES", 5 * 4 * len(anchors_of()))
    with as_on_a_gpu(waits=waits, kernel=False), few:
        got = check_losses(small(kind, **options), counts, 3, kind)
    assert all(torch.isfinite(loss) for loss in got.values())
    assert (got["loss_box_reg"].item() > 0) == (sum(counts) > 0)


def test_masks_are_found_in_fp32() -> None:
    detector = Detector(small("masks")).eval()
    images = torch.rand(len(SIZES), 3, HEIGHT, WIDTH)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found: Any = detector(images, SIZES)
    for one in found:
        assert len(one["boxes"]) > 0 and one["masks"].dtype == torch.float32
        assert one["masks"].shape == (len(one["boxes"]), 1, 28, 28)
        assert 0 < one["masks"].mean() < 1


def test_training_waits_for_no_value_on_the_device() -> None:
    """It is passed with shapes alone: what needs to know a value raises."""
    targets = targets_from(1, [(3, "anywhere"), (0, "anywhere"), (5, "anywhere")])
    with FakeTensorMode() as mode:
        stock = small()
        fake: Targets = [
            {name: mode.from_tensor(value) for name, value in one.items()}
            for one in targets
        ]
        images, detector = torch.zeros(3, 3, HEIGHT, WIDTH), Detector(stock)
        with as_on_a_gpu():
            out: Any = detector(images, SIZES, fake)
        torch.stack(list(out.values())).sum().backward()
    assert all(one.grad is not None for one in stock.parameters())
