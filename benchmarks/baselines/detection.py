"""Detectors as one trains them with torchvision alone: PIL, one image at a time, a DataLoader that gives
lists, the model's own resize.

Uses nothing of ours on purpose: `train.py --task detection` beside this file times it. Images go through a
flip and to_tensor; the module resizes, normalises and pads them on the device.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms import functional

Target = dict[str, torch.Tensor]
SHAPES = [2 ** (step / 3) for step in range(-3, 4)]
"""Width / height at which a batch's group ends: a batch is of images of about the same shape."""
CLASSES = 91
"""COCO's ids and the background."""


class Coco(Dataset[Any]):
    """(fp32 [3, H, W] in 0..1, {"boxes": fp32 [n, 4] x0 y0 x1 y1, "labels", and "masks" where asked for}) of
    images that have a box."""

    def __init__(self, root: Path, *, masks: bool) -> None:
        self.data = torchvision.datasets.CocoDetection(
            str(root / "train2017"),
            str(root / "annotations" / "instances_train2017.json"),
        )
        coco = self.data.coco
        self.kept = [
            place
            for place, image in enumerate(self.data.ids)
            if _boxes(coco.loadAnns(coco.getAnnIds(image)))
        ]
        self.masks = masks

    def __len__(self) -> int:
        return len(self.kept)

    def shapes(self) -> list[float]:
        """Return width / height of each image."""
        images = self.data.coco.loadImgs([self.data.ids[place] for place in self.kept])
        return [image["width"] / image["height"] for image in images]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Target]:
        picture, annotations = self.data[self.kept[index]]
        found = _boxes(annotations)
        corners = torch.tensor([one["bbox"] for one in found], dtype=torch.float32)
        corners[:, 2:] += corners[:, :2]
        width, height = picture.size
        corners[:, 0::2].clamp_(0, width)
        corners[:, 1::2].clamp_(0, height)
        whole = (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])
        target = {
            "boxes": corners[whole],
            "labels": torch.tensor([one["category_id"] for one in found])[whole],
        }
        if self.masks:
            target["masks"] = torch.stack(
                [torch.from_numpy(self.data.coco.annToMask(one)) for one in found]
            )[whole]
        if random.random() < 0.5:
            picture = functional.hflip(picture)
            target["boxes"][:, [0, 2]] = width - target["boxes"][:, [2, 0]]
            if self.masks:
                target["masks"] = target["masks"].flip(-1)
        return functional.to_tensor(picture), target


def _boxes(annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the boxes that one learns from: no crowd, and wider and higher than a pixel."""
    return [
        one
        for one in annotations
        if not one.get("iscrowd", 0) and min(one["bbox"][2:]) > 1
    ]


class Grouped(Sampler[list[int]]):
    """Batches in a random order, each of images of about the same shape; what fills no batch is left out."""

    def __init__(self, shapes: list[float], batch_size: int) -> None:
        self.groups = [bisect.bisect_right(SHAPES, shape) for shape in shapes]
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        waiting: dict[int, list[int]] = defaultdict(list)
        for index in torch.randperm(len(self.groups)).tolist():
            batch = waiting[self.groups[index]]
            batch.append(index)
            if len(batch) == self.batch_size:
                yield waiting.pop(self.groups[index])


def loader(root: Path, arch: str, batch_size: int, workers: int) -> DataLoader[Any]:
    """Return the DataLoader; a batch is ([images], [targets])."""
    data = Coco(root, masks="maskrcnn" in arch)
    grouped = Grouped(data.shapes(), batch_size)
    return DataLoader(
        data,
        batch_sampler=grouped,
        num_workers=workers,
        collate_fn=_listed,
        persistent_workers=workers > 0,
    )


def _listed(
    samples: list[tuple[torch.Tensor, Target]],
) -> tuple[tuple[torch.Tensor, ...], tuple[Target, ...]]:
    images, targets = zip(*samples, strict=True)
    return images, targets


def batches(
    loader: DataLoader[Any], device: torch.device
) -> Iterator[tuple[list[torch.Tensor], list[Target]]]:
    """Yield batches for ever, on the device. Raises ValueError where no batch can be filled."""
    while True:
        empty = True
        for images, targets in loader:
            empty = False
            yield (
                [image.to(device) for image in images],
                [
                    {name: one.to(device) for name, one in target.items()}
                    for target in targets
                ],
            )
        if empty:
            raise ValueError(
                "no batch of images of about the same shape can be filled: a smaller --batch-size, or more "
                "images"
            )


def model(arch: str) -> nn.Module:
    """Return a model without weights, in training mode."""
    found: nn.Module = torchvision.models.get_model(
        arch, weights=None, weights_backbone=None, num_classes=CLASSES
    )
    return found.train()


def loss_of(
    found: nn.Module, images: list[torch.Tensor], targets: list[Target]
) -> torch.Tensor:
    """Return the sum of the module's losses. It is read back each step, as such loops do, to stop when it is
    no number."""
    total = torch.stack(list(found(images, targets).values())).sum()
    if not math.isfinite(total.item()):
        raise ValueError("the loss is no number")
    return total
