"""torchvision's classification registry by name: builds, fits the head to the classes, loads weights. Imports
nothing of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torchvision
from torch import nn

from saturate.models import AUXILIARY_WEIGHTS, Loaded, Native
from saturate.models._weights import (
    batches,
    categories,
    dry_run,
    load,
    published,
    published_weights,
    set_depth,
    suiting,
)

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
WNIDS = Path(__file__).with_name("imagenet_wnids.txt")
"""WordNet's ids of the 1,000 classes of ILSVRC 2012, sorted, a line each: the names of ImageNet's folders."""


def names() -> list[str]:
    """List every classification architecture that torchvision registers."""
    return torchvision.models.list_models(module=torchvision.models)


def native(arch: str, weights: str | None = None) -> Native:
    """Return side, crop share, interpolation, mean and deviation of the images of torchvision's `weights`, if they are
    that, by name or by the name of the file.

    Else all but the crop share are those of its first ImageNet-1k weights.
    """
    first = published_weights(arch).get("IMAGENET1K_V1")
    named = published(arch, weights) if weights is not None else None
    known = named or first
    if known is None:
        return Native(224, MEAN, STD)
    made_for = known.transforms()
    made = Native(
        int(made_for.crop_size[0]),
        tuple(made_for.mean),
        tuple(made_for.std),
        interpolation=made_for.interpolation.value,
    )
    if not named:
        return made
    return made._replace(crop_share=made.size / int(made_for.resize_size[0]))


def build(
    arch: str,
    *,
    classes: int,
    shape: tuple[int, ...],
    weights: str | None = None,
    stochastic_depth: float | None = None,
) -> tuple[nn.Module, Loaded]:
    """Return the module for batches of `shape` [B, 3, H, W], and what it began with.

    `weights` is a file, or the name of torchvision weights; `stochastic_depth` the largest probability of a
    block to be left out, None for torchvision's own. Raises Unusable, also when the architecture
    cannot train on batches of this shape.
    """
    image_size = shape[-1]
    options: dict[str, Any] = {"num_classes": classes}
    if arch.startswith("vit_"):
        options["image_size"] = image_size
    if arch.startswith("maxvit"):
        options["input_size"] = (image_size, image_size)
    if arch in AUXILIARY_WEIGHTS:
        options["init_weights"] = True
        # as their weights were trained; no state dict has it, so a checkpoint would else mean two things
        options["transform_input"] = True
    with suiting(arch, batches(shape), f"{native(arch).size} pixels"):
        module = torchvision.models.get_model(arch, weights=None, **options)
        dry_run(module, shape)
    if stochastic_depth is not None:
        set_depth(module, arch, stochastic_depth)
    return module, load(module, arch, weights) if weights else Loaded()


def classes(arch: str, weights: str) -> tuple[str, ...]:
    """Return the names of the outputs of torchvision's weights: ImageNet's folders, of its 1,000 classes."""
    names = categories(arch, weights)
    return tuple(WNIDS.read_text().split()) if len(names) == 1000 else names
