"""torchvision's classification registry by name: builds, fits the head to the classes, loads weights. Imports nothing of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from models import Native, Unusable
from models._weights import dry_run, load

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AUXILIARY_WEIGHTS = {"googlenet": 0.3, "inception_v3": 0.4}
"""Weight of each auxiliary head's loss: Szegedy et al. 2014 (GoogLeNet) and the value in common use for Inception v3."""


def names() -> list[str]:
    """Every classification architecture that torchvision registers."""
    return torchvision.models.list_models(module=torchvision.models)


def native(arch: str) -> Native:
    """Side of the images of torchvision's first ImageNet-1k weights; mean and deviation of ImageNet's training images."""
    sizes = [
        entry.transforms.keywords["crop_size"] for entry in torchvision.models.get_model_weights(arch) if entry.name == "IMAGENET1K_V1"
    ]
    return Native(int(sizes[0]) if sizes else 224, MEAN, STD)


def build(arch: str, *, classes: int, shape: tuple[int, ...], weights: str | None = None) -> tuple[nn.Module, list[str]]:
    """(module, parameters left at their initial values because the weights are for other classes) for batches of `shape` [B, 3, H, W].

    `weights` is a checkpoint file of ours, a state dict file, or the name of torchvision weights. Raises Unusable, also when
    the architecture cannot train on batches of this shape.
    """
    batch_size, image_size = shape[0], shape[-1]
    options: dict[str, Any] = {"num_classes": classes}
    if arch.startswith("vit_"):
        options["image_size"] = image_size
    if arch.startswith("maxvit"):
        options["input_size"] = (image_size, image_size)
    if arch in AUXILIARY_WEIGHTS:
        options["init_weights"] = True
        options["transform_input"] = weights is not None and not Path(weights).is_file()
    try:
        module = torchvision.models.get_model(arch, weights=None, **options)
        dry_run(module, torch.empty(shape, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        said = str(error).splitlines()[0]
        got = f"--image-size {image_size} with --batch-size {batch_size}"
        raise Unusable(f"{got} does not suit --arch {arch}, which was made for {native(arch).size} pixels ({said})") from None
    return module, load(module, arch, weights) if weights else []


def auxiliary_weight(arch: str) -> float:
    """Weight of the losses of outputs after the first, 0 for architectures without auxiliary heads."""
    return AUXILIARY_WEIGHTS.get(arch, 0.0)
