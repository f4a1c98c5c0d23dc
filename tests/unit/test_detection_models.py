"""Detectors by name: torchvision's losses and detections in any precision, on ranks."""

from __future__ import annotations

import copy
import math
import re
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.detection.image_list import ImageList

from saturate.models import Loaded, Native, _rcnn
from saturate.models.detection import OWN, Detector, build, names, native
from saturate.plan.boxes import canvas

TORCHVISION = [name for name in names() if name not in OWN]
SMALL = "fasterrcnn_mobilenet_v3_large_320_fpn"
FAMILIES = [
    *(f"{name}_resnet50_fpn" for name in ("fasterrcnn", "retinanet", "fcos")),
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
]
"""Masks and keypoints are test_rcnn's."""
CLASSES, KEYPOINTS = 5, 3
Targets = list[dict[str, torch.Tensor]]


def shape_of(arch: str) -> tuple[int, ...]:
    """Return the shape of two small images, or of two of the detector's one size."""
    made = native(arch)
    return (2, 3, *((made.size, made.size) if made.longer is None else (64, 96)))


def made(
    arch: str, *, classes: int = CLASSES, **chosen: Any
) -> tuple[nn.Module, Loaded]:
    shape = shape_of(arch)
    return build(arch, classes=classes, shape=shape, keypoints=KEYPOINTS, **chosen)


def outline(arch: str, **chosen: Any) -> nn.Module:
    with torch.device("meta"), patch("saturate.models.detection._fit_to_shape"):
        return made(arch, **chosen)[0]


def stock_of(arch: str, **chosen: Any) -> Any:
    return torchvision.models.get_model(
        arch,
        **{"weights": None, "weights_backbone": None, "num_classes": CLASSES} | chosen,
    )


def examples(
    sizes: list[tuple[int, int]],
) -> tuple[list[torch.Tensor], Targets]:
    """Pictures in [0, 1] of these heights and widths, with two boxes each; the last one has none."""
    generator = torch.Generator().manual_seed(0)
    images, targets = [], []
    for place, (height, width) in enumerate(sizes):
        corners = torch.tensor(
            [[0.1, 0.2, 0.6, 0.8], [0.4, 0.1, 0.9, 0.7]]
        ) * torch.tensor([width, height, width, height])
        count = 0 if place and place == len(sizes) - 1 else 2
        images.append(torch.rand(3, height, width, generator=generator))
        target = {"boxes": corners, "labels": torch.tensor([1, CLASSES - 1])}
        targets.append({name: value[:count] for name, value in target.items()})
    return images, targets


def quick(detector: Any) -> Any:
    """Fewer proposals and a lower bar for detections, so that a pass is short and something is found by
    random weights.
    """
    if hasattr(detector, "rpn"):
        detector.rpn._pre_nms_top_n = detector.rpn._post_nms_top_n = {
            "training": 20,
            "testing": 10,
        }
        detector.roi_heads.fg_bg_sampler.batch_size_per_image = 8
        detector.roi_heads.detections_per_img = 4
        detector.roi_heads.score_thresh = 0.001
    detector.score_thresh, detector.topk_candidates = 0.001, 20
    return detector


def whole(detector: nn.Module) -> Any:
    assert isinstance(detector, Detector)
    return detector._stock[0]


@pytest.mark.parametrize("arch", names())
def test_native_is_what_its_own_transform_does(arch: str) -> None:
    with torch.device("meta"):
        transform: Any = (
            OWN[arch](CLASSES) if arch in OWN else stock_of(arch)
        ).transform
    longer = None if transform.fixed_size else transform.max_size
    assert native(arch) == Native(
        transform.min_size[-1],
        tuple(transform.image_mean),
        tuple(transform.image_std),
        longer,
    )
    assert transform.fixed_size in (None, (native(arch).size, native(arch).size))


@pytest.mark.parametrize("arch", [SMALL, *FAMILIES[1:]])
def test_losses_and_detections_are_the_stock_models(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    small = {} if native(arch).longer is None else {"min_size": 64, "max_size": 96}
    stock = quick(stock_of(arch, **small))
    # the same weights, without a second start
    monkeypatch.setattr(
        torchvision.models, "get_model", lambda *_, **__: copy.deepcopy(stock)
    )
    ours, _ = made(arch)
    images, targets = examples([(40, 52), (48, 70)][: 1 if "vgg" in arch else 2])
    transform = copy.deepcopy(stock.transform)
    # what is sampled are the first ones of both
    monkeypatch.setattr(
        torch, "randperm", lambda count, device: torch.arange(count, device=device)
    )
    monkeypatch.setattr(
        _rcnn,
        "keys",
        lambda like: torch.linspace(
            0.9, 0.1, like.shape[1], dtype=torch.float64
        ).expand(like.shape),
    )

    prepared, resized = transform.train()([image.clone() for image in images], targets)
    wanted = stock.train()([image.clone() for image in images], targets)
    got = ours.train()(prepared.tensors, prepared.image_sizes, resized)
    assert got.keys() == wanted.keys() and all(loss.ndim == 0 for loss in got.values())
    assert {
        name: pytest.approx(loss.item(), rel=1e-5, abs=1e-7)
        for name, loss in wanted.items()
    } == {k: v.item() for k, v in got.items()}
    assert sum(got.values()).item() > 0.1

    with torch.inference_mode():
        wanted = stock.eval()([image.clone() for image in images])
        prepared, _ = transform.eval()([image.clone() for image in images])
        found = ours.eval()(prepared.tensors, prepared.image_sizes)
    assert all(
        len(one["boxes"]) > 0 and one["boxes"].dtype == torch.float32 for one in found
    )
    found = transform.postprocess(
        found,
        prepared.image_sizes,
        [(image.shape[1], image.shape[2]) for image in images],
    )
    for one, other in zip(found, wanted, strict=True):
        assert one.pop("finite")
        assert one.keys() == other.keys()
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=1e-5, atol=1e-4)


NEIGHBOURS = [(34, 120), (50, 60), (90, 70)]
"""Heights and widths of a batch, each with a canvas of its own. The first is so low that torchvision would guess
other scales from it."""


VARYING = (
    f"{SMALL} retinanet_resnet50_fpn_v2 fcos_tiny maskrcnn_resnet50_fpn_v2 "
    "keypointrcnn_resnet50_fpn"
)
"""Detectors whose canvas varies, one of each kind of head."""


def torchvisions(arch: str, ours: Any, photo: torch.Tensor) -> dict[str, torch.Tensor]:
    """What torchvision's own model, with its own transform, finds in a photo that is all it has ever seen."""
    more = {"num_keypoints": KEYPOINTS} if arch.startswith("keypoint") else {}
    with torch.device("meta"):
        stock = quick(OWN[arch](CLASSES) if arch in OWN else stock_of(arch, **more))
    stock.load_state_dict(ours.state_dict(), assign=True)
    transform = stock.transform
    transform.image_mean, transform.image_std = [0.0] * 3, [1.0] * 3
    if transform.fixed_size is None:  # the photo is as large as it is to be
        transform.min_size, transform.max_size = (min(photo.shape[1:]),), 10_000
    with torch.inference_mode():
        (found,) = stock.eval()([photo])
    return dict(found)


def spread(stock: Any, images: torch.Tensor) -> None:
    """Scale what scores classes so that random weights find objects in many places, of unlike scores."""
    scores = re.compile(r"cls_logits$|cls_score$|classification_head.*\.(1|\d\.1)$")

    def scaled(layer: Any, _: Any, outputs: torch.Tensor) -> None:
        if not hasattr(layer, "is_scaled"):
            layer.weight.data.div_(outputs.std() / 2)
            layer.bias.data.zero_()
            layer.is_scaled = True

    hooks = [
        layer.register_forward_hook(scaled)
        for name, layer in stock.named_modules()
        if scores.search(name) and hasattr(layer, "weight")
    ]
    sizes = [tuple(images.shape[-2:])] * len(images)
    with torch.inference_mode():
        stock(images, sizes)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("arch", VARYING.split())
def test_the_answer_is_that_of_the_photo_alone(arch: str) -> None:
    """Beside larger photos: torchvision's own answer to the photo alone."""
    torch.manual_seed(2)
    ours: Any = made(arch)[0].eval()
    quick(whole(ours))
    photos = [torch.randn(3, *size) for size in NEIGHBOURS]
    images = torch.zeros(len(photos), 3, *canvas(np.array(NEIGHBOURS)))
    for image, photo in zip(images, photos, strict=True):
        image[:, : photo.shape[1], : photo.shape[2]] = photo
    spread(ours, images[1:2, :, :64, :64])
    with torch.inference_mode():
        found = ours(images, NEIGHBOURS)[1]
    wanted = torchvisions(arch, ours, photos[1])
    assert len(wanted["scores"]) > 1 and found.keys() == {*wanted, "finite"}
    for name in wanted.keys() - {"masks"}:  # torchvision pastes masks into the photo
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-3)


def test_anchors_and_what_heads_say_of_boxes_are_fp32_and_exact() -> None:
    stock = whole(made(SMALL)[0])
    images = ImageList(torch.zeros(1, 3, 64, 96), [(64, 96)])
    features = [torch.randn(1, 256, 4, 6, dtype=torch.bfloat16)] * 3
    with torch.autocast("cpu", torch.bfloat16):
        objectness, deltas = stock.rpn.head(features)
        scores, boxes = stock.roi_heads.box_predictor(torch.randn(2, 1024))
        raw = stock.rpn.head.cls_logits(features[0])
        (anchors,) = stock.rpn.anchor_generator(images, features)
    assert raw.dtype == torch.bfloat16
    outputs = (*objectness, *deltas, scores, boxes, anchors)
    assert {one.dtype for one in outputs} == {torch.float32}
    exact = stock.rpn.anchor_generator.generator(images, [features[0].float()] * 3)
    assert torch.equal(anchors, exact[0])


@pytest.mark.parametrize(
    ("arch", "module"),
    [
        ("fcos_tiny", "head.classification_head"),
        (SMALL, "backbone.body.0.1"),
        (SMALL, "rpn.head.cls_logits"),
        (SMALL, "roi_heads.box_predictor.bbox_pred"),
        ("ssdlite320_mobilenet_v3_large", "head.regression_head"),
    ],
)
def test_images_whose_heads_say_no_number_are_told(arch: str, module: str) -> None:
    """torchvision drops NaN as if nothing had been found."""
    torch.manual_seed(3)
    detector, _ = made(arch)
    detector.eval()
    images = torch.rand(2, 3, *shape_of(arch)[-2:])
    sizes = [tuple(images.shape[-2:])] * 2

    @torch.inference_mode()
    def finite() -> list[bool]:
        return [bool(found["finite"]) for found in detector(images, sizes)]

    assert finite() == [True, True]
    images[1] = math.nan
    assert finite() == [True, False]
    images[1] = 0.5
    value = next(iter(detector.get_submodule(module).parameters()))
    value.data.flatten()[0] = math.nan
    assert not any(finite())
