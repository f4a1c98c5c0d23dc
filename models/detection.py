"""torchvision's detectors by name, and a small one: builds, fits the heads to the classes, loads, freezes.

The plan resizes and the loader normalises and pads; so a detector's own transform does nothing here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.misc import FrozenBatchNorm2d
from torchvision.ops.poolers import _setup_scales

from saturate.models import Loaded, Native, Unusable, _rcnn, _ssd
from saturate.models._anchors import Anchors
from saturate.models._finite import FiniteImages
from saturate.models._tiny_detector import LONGER, SIZE, tiny
from saturate.models._weights import (
    Weights,
    batches,
    categories,
    dry_run,
    fill,
    published,
    read,
    suiting,
)

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
OWN = {"fcos_tiny": tiny}
"""Architectures that torchvision does not have."""
NATIVE = {
    "fcos_tiny": Native(SIZE, MEAN, STD, LONGER),
    "fasterrcnn_mobilenet_v3_large_320_fpn": Native(320, MEAN, STD, 640),
    "ssd300_vgg16": Native(
        300, (0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255)
    ),
    "ssdlite320_mobilenet_v3_large": Native(320, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""The architectures whose input is not Native(800, MEAN, STD, 1333)."""
STAGES = {
    "resnet50": (),
    "mobilenet_v3_large": (0, 2, 4, 7, 13, 16),
    "vgg16": (0, 4, 9, 16, 23),
}
"""Backbone of torchvision's -> the first layers of its stages among the classifier's `features`.

ResNet-50 has names in their place: the stem, layer1, ..., layer4."""
TRAINED = {"ssd300_vgg16": 4, "ssdlite320_mobilenet_v3_large": 6}
"""Stages that torchvision trains when there are weights to start from; 3 for the others."""
EPS_FREE = (
    "fasterrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
)
"""Their published weights were trained with frozen norms that added nothing to the variance."""
VARIANCE = re.compile(r"backbone\.body\..*running_var")
HEADS = (
    "roi_heads.box_predictor.",
    "roi_heads.mask_predictor.",
    "roi_heads.keypoint_predictor.",
    "head.classification_head.",
)
"""Parameters whose shape depends on the classes, or on the keypoints, are here."""
STRIDE = 32
"""The sides of an image's canvas are the next multiples of this, as in torchvision's transform and plan.boxes."""
IN_FP32 = ("rpn.head", "roi_heads.box_predictor", "head")
"""Modules that run in fp32: their outputs become pixels, and fp16 has no fractions of a pixel beyond 1024,
bf16 none beyond 128."""


def names() -> list[str]:
    """List every detector that torchvision registers, and ours."""
    return [*torchvision.models.list_models(module=torchvision.models.detection), *OWN]


def native(arch: str, weights: str | None = None) -> Native:
    """Return the size and normalisation that torchvision's own transform of the architecture would apply."""
    return NATIVE.get(arch, Native(800, MEAN, STD, 1333))


def classes(arch: str, weights: str) -> tuple[str, ...]:
    """Return the names of the outputs of torchvision's weights; () for any other file."""
    return categories(arch, weights)


class Detector(nn.Module):
    """A torchvision detector without its transform. Parameters and buffers have torchvision's names."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        for name, child in stock.named_children():
            if name != "transform":
                self.add_module(name, child)
        stock.transform = _Untouched()
        # in a tuple it is no child of this module, and its parameters have no second name
        self._stock = (stock,)
        self._finite = FiniteImages(stock)

    def forward(
        self,
        images: torch.Tensor,
        sizes: list[tuple[int, int]],
        targets: list[dict[str, torch.Tensor]] | dict[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor] | list[dict[str, torch.Tensor]]:
        """Return in training the losses by name, scalars; else what is detected, a dict an image.

        What is detected in an image does not depend on the others: it is run on a canvas of its own, as in a batch
        of one, beside images that have the same canvas. On a larger one GroupNorm in a head (FCOS, RetinaNet v2)
        has other statistics, anchors another distance, convolutions no edge, and padding takes part in choosing
        candidates.

        `images` [B, 3, H, W], resized, normalised and padded; `sizes` the height and width of each without
        its padding. Targets and detections are in the pixels of `images`: boxes [N, 4] as x0 y0 x1 y1, labels
        int64 [N]; for an SSD targets may be one dict of boxes [B, N, 4] and labels [B, N], above 0 where there
        is a box; targets also masks uint8 [N, H, W] or keypoints [N, K, 3] where the architecture needs
        them; detections scores [N], sorted, and masks [N, 1, 28, 28] as probabilities inside their boxes, or
        keypoints [N, K, 3] and keypoints_scores [N, K]; and `finite`, bool: all that the heads said of the
        image were numbers.
        """
        (stock,) = self._stock
        stock.training = self.training
        if self.training:
            return dict(self._outputs(images, sizes, targets))
        if torch.jit.is_tracing():  # an export, of one image, whose size is no number
            return self._detections(images, sizes)
        canvases: dict[tuple[int, int], list[int]] = {}
        for place, (height, width) in enumerate(sizes):
            own = -(-height // STRIDE) * STRIDE, -(-width // STRIDE) * STRIDE
            canvases.setdefault(own, []).append(place)
        results: dict[int, dict[str, torch.Tensor]] = {}
        for (height, width), places in canvases.items():
            alike = images
            if len(canvases) > 1:
                alike = torch.stack([images[place] for place in places])
            answers = self._detections(
                alike[:, :, :height, :width], [sizes[place] for place in places]
            )
            results |= zip(places, answers, strict=True)
        return [results[place] for place in range(len(sizes))]

    def _outputs(
        self,
        images: torch.Tensor,
        sizes: list[tuple[int, int]],
        targets: Any,
    ) -> Any:
        (stock,) = self._stock
        prepared = _Prepared(images, sizes)
        # ours asks how many boxes are left, which a trace for an export would keep as it was
        if isinstance(stock, SSD) and not torch.jit.is_tracing():
            return _ssd.run(stock, prepared, targets)
        if isinstance(stock, GeneralizedRCNN) and self.training:
            return _rcnn.losses(stock, prepared, targets)
        return stock(prepared, targets)

    def _detections(
        self, images: torch.Tensor, sizes: list[tuple[int, int]]
    ) -> list[dict[str, torch.Tensor]]:
        """Return what is detected in images that are not padded beyond their own canvas."""
        outputs = self._outputs(images, sizes, None)
        for output, finite in zip(
            outputs, self._finite.take(len(sizes), images.device), strict=True
        ):
            output["finite"] = finite
            if "masks" in output:
                output["masks"] = output["masks"].float()
        return list(outputs)


class _Prepared(ImageList):
    """Images with the sizes of their filled parts. A detector looks at each of them before its transform."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.tensors)


class _Untouched(nn.Module):
    """In place of torchvision's resize and normalise, and of the way back."""

    def forward(self, images: _Prepared, targets: object) -> tuple[_Prepared, object]:
        return images, targets

    def postprocess(self, detections: object, *_: object) -> object:
        return detections


class _FrozenNorm(FrozenBatchNorm2d):
    """torchvision's frozen norm with its input's type as output: with fp32 buffers it would be fp32.

    Scale and shift are made again only when a buffer was written, loaded or moved: six small kernels less a
    norm and step.
    """

    _made: tuple[Any, Any, torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():  # it fuses them
            scale, shift = self._scale_and_shift(x.dtype)
        else:
            buffers = (self.weight, self.bias, self.running_mean, self.running_var)
            made_of = (x.dtype, self.eps, *((id(one), one._version) for one in buffers))
            if self._made is None or self._made[0] != made_of:
                # they may be made in a validation, and training cannot use an inference tensor
                with torch.inference_mode(False):
                    # no other tensor gets the id of one that is kept
                    self._made = (made_of, buffers, *self._scale_and_shift(x.dtype))
            scale, shift = self._made[2:]
        return torch.addcmul(shift, x, scale)

    def _scale_and_shift(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return scale.to(dtype)[:, None, None], shift.to(dtype)[:, None, None]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was made: a copy's buffers have versions of their own."""
        return {**self.__dict__, "_made": None}


def build(
    arch: str,
    *,
    classes: int,
    shape: tuple[int, ...],
    weights: str | None = None,
    weights_backbone: str | None = None,
    trainable_layers: int | None = None,
    keypoints: int = 0,
) -> tuple[nn.Module, Loaded]:
    """Return the module for batches of `shape` [B, 3, H, W], and what it began with.

    `classes` counts the background. `weights` is a file, or the name of torchvision weights;
    `weights_backbone` the same of the backbone's classifier. With either of them batch norm is frozen where
    torchvision does so, and all but the last `trainable_layers` stages of the backbone are. Downloads nothing
    unless a name was given. Raises Unusable.
    """
    if weights and weights_backbone:
        raise Unusable(
            f"--weights {weights} has a backbone already; give either --weights or --weights-backbone"
        )
    pretrained = bool(weights or weights_backbone)
    if arch in OWN:
        if weights_backbone or trainable_layers is not None:
            raise Unusable(
                f"--weights-backbone and --trainable-layers: the backbone of --arch {arch} is no classifier's "
                "and is always trained; leave them out"
            )
        stock = OWN[arch](classes)
        loaded = (
            _load(stock, arch, weights, read(arch, weights)) if weights else Loaded()
        )
        return adopted(stock, arch, shape), loaded
    if weights_backbone and arch.startswith("ssdlite"):
        raise Unusable(
            f"--weights-backbone {weights_backbone}: --arch {arch} has half of a backbone's last channels, as its "
            "paper; --weights COCO_V1, or leave it out"
        )
    frozen = _frozen_stages(arch, trainable_layers, pretrained=pretrained)
    options = {}
    if arch.startswith("keypointrcnn"):
        if not keypoints:
            raise Unusable(
                f"--arch {arch} needs keypoints and the annotations have none; "
                "--arch fasterrcnn_resnet50_fpn does without"
            )
        options["num_keypoints"] = keypoints
    stock = torchvision.models.get_model(
        arch, weights=None, weights_backbone=None, num_classes=classes, **options
    )
    if pretrained and not arch.startswith("ssd") and not arch.endswith("_v2"):
        _freeze_norms(stock.backbone)
    loaded = _load(stock, arch, weights, read(arch, weights)) if weights else Loaded()
    if weights_backbone:
        loaded = _load_backbone(stock, arch, weights_backbone)
    if frozen:
        _freeze_stages(stock, arch, frozen)
    return adopted(stock, arch, shape), loaded


def adopted(stock: nn.Module, arch: str, shape: tuple[int, ...]) -> Detector:
    """Return one of torchvision's detectors, or a user's that is made of its parts, as it is trained here.
    Raises Unusable when it cannot train on batches of `shape`."""
    missing = [part for part in ("backbone", "transform") if not hasattr(stock, part)]
    if missing:
        made_of = "torchvision's detectors have it (torchvision.models.detection)"
        raise Unusable(
            f"--arch {arch} returned a network without .{missing[0]}; {made_of}"
        )
    _keep_pixels_exact(stock)
    _fit_to_shape(stock, arch, shape)
    return Detector(stock)


def _backbone(arch: str) -> str:
    """Return the name that torchvision has for a detector's backbone as a classifier."""
    return next(name for name in STAGES if name in arch)


@cache
def _outline(classifier: str) -> nn.Module:
    """Return a classifier's layers and their names, without values."""
    with torch.device("meta"):
        return torchvision.models.get_model(classifier, weights=None)


def _frozen_stages(arch: str, trained: int | None, *, pretrained: bool) -> int:
    """Return how many stages of the backbone are frozen, the stem included. Raises Unusable."""
    stages = len(STAGES[_backbone(arch)]) or 5
    if trained is None:
        return stages - TRAINED.get(arch, 3) if pretrained else 0
    if not 0 <= trained <= stages or not pretrained:
        raise Unusable(
            f"--trainable-layers {trained}: the backbone of --arch {arch} has {stages} stages, 0 to {stages}, "
            "which are all trained without --weights or --weights-backbone"
        )
    return stages - trained


# --- weights ------------------------------------------------------------------------------------------------


def _load(stock: nn.Module, arch: str, name: str, weights: Weights) -> Loaded:
    """Load a whole detector. `name` is --weights. Raises Unusable."""
    trained = published(arch, name)
    if arch in EPS_FREE and trained is not None and trained.name == "COCO_V1":
        tensors = {
            one: _as_if_with_eps(value) if VARIANCE.fullmatch(one) else value
            for one, value in weights.tensors.items()
        }
        weights = replace(weights, tensors=tensors)
    return fill(stock, arch, weights, heads=HEADS)


def _as_if_with_eps(variance: torch.Tensor) -> torch.Tensor:
    """Return the variance that is the given one again once 1e-5 is added, so that checkpoints of such a run
    mean the same wherever they are loaded.

    At least 1e-9 is left of it: a few channels are dead, and their scale must not be beyond fp16.
    """
    return (variance.double() - 1e-5).clamp(min=-1e-5 + 1e-9).to(variance.dtype)


def _load_backbone(stock: nn.Module, arch: str, name: str) -> Loaded:
    """Load a classifier's trunk. `name` is --weights-backbone. Raises Unusable."""
    flag = "--weights-backbone"
    classifier = _backbone(arch)
    own = stock.state_dict()
    trunk = _trunk(stock, arch)
    state, notes = read(classifier, name, flag=flag).tensors_for(trunk)
    fitting = {}
    for theirs, ours in trunk.items():
        if theirs not in state or state[theirs].shape != own[ours].shape:
            which = f"it has no '{theirs}'"
            if theirs in state:
                which = f"'{theirs}' is not {tuple(own[ours].shape)} in it"
            raise Unusable(
                f"{flag} {name} is not {classifier}'s, as --arch {arch} needs: {which}"
            )
        fitting[ours] = state[theirs]
    stock.load_state_dict(fitting, strict=False)
    return Loaded(notes=notes)


def _trunk(stock: nn.Module, arch: str) -> dict[str, str]:
    """Return names of the classifier's trunk -> names in the detector.

    torchvision groups its layers anew, and keeps their order.
    """
    heads = ("fc.", "classifier.")
    parts = ("backbone.body.", "backbone.features.", "backbone.extra.0.")
    theirs = [
        one
        for one in _outline(_backbone(arch)).state_dict()
        if not one.startswith(heads)
    ]
    ours = [one for one in stock.state_dict() if one.startswith(parts)]
    theirs, ours = (
        [one for one in names if "num_batches" not in one] for names in (theirs, ours)
    )
    # SSD's first extra block goes on behind the trunk
    return dict(zip(theirs, ours, strict=False))


# --- freezing -----------------------------------------------------------------------------------------------


def _freeze_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, _FrozenNorm(child.num_features, child.eps))
        else:
            _freeze_norms(child)


def _freeze_stages(stock: nn.Module, arch: str, frozen: int) -> None:
    """Train no parameter of the backbone's first `frozen` stages."""
    backbone = _backbone(arch)
    parameters = dict(stock.named_parameters())
    for theirs, ours in _trunk(stock, arch).items():
        first, second, *_ = theirs.split(".")
        if backbone == "resnet50":
            stage = int(first[5:]) if first.startswith("layer") else 0
        else:
            stage = bisect_right(STAGES[backbone], int(second)) - 1
        if stage < frozen and ours in parameters:  # frozen norms have none
            parameters[ours].requires_grad_(False)


# --- what is changed in torchvision's -----------------------------------------------------------------------


def _keep_pixels_exact(stock: nn.Module) -> None:
    """Keep anchors, and what heads say of them, in fp32 under autocast."""
    owner = stock.get_submodule("rpn") if hasattr(stock, "rpn") else stock
    owner.anchor_generator = Anchors(owner.get_submodule("anchor_generator"))
    modules = dict(stock.named_modules())
    for name in IN_FP32:
        if name in modules:
            modules[name].register_forward_hook(lambda *called: _single(called[-1]))
    # torchvision's loss takes views of the heat maps, which channels_last does not allow
    if "roi_heads.keypoint_predictor" in modules:
        modules["roi_heads.keypoint_predictor"].register_forward_hook(
            lambda *called: called[-1].float().contiguous()
        )


def _single(outputs: Any) -> Any:
    """Return tensors in fp32, in whatever they are nested."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float()
    if isinstance(outputs, dict):
        return {name: _single(one) for name, one in outputs.items()}
    return type(outputs)(_single(one) for one in outputs)


def _fit_to_shape(stock: nn.Module, arch: str, shape: tuple[int, ...]) -> None:
    """Tell the regions' pools how large the levels are. Raises Unusable when the backbone cannot take such batches,
    or the anchors were made for another size."""
    made = native(arch)
    if arch == "ssd300_vgg16" and shape[-2:] != (made.size, made.size):
        raise Unusable(
            f"--arch {arch} has anchors for {made.size} pixels alone, --image-size got {shape[-1]}; leave it "
            "out"
        )
    with suiting(arch, batches(shape), f"{made.size} pixels"):
        features = dry_run(stock.get_submodule("backbone"), shape)
    if isinstance(features, torch.Tensor):  # torchvision's name for a single level
        features = {"0": features}
    for pool in stock.modules():
        if isinstance(pool, MultiScaleRoIAlign):
            # torchvision guesses it from the first image that it sees, without its padding, and a low one would spoil
            # all others
            pool.scales, pool.map_levels = _setup_scales(
                [one for name, one in features.items() if name in pool.featmap_names],
                [shape[-2:]],
                pool.canonical_scale,
                pool.canonical_level,
            )
