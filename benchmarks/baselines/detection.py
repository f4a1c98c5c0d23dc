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
    """(fp32 [3, H, W] in 0..1, {"boxes": fp32 [n, 4] x0 y0 x1 y1, "labels"}) of images that have a box."""

    def __init__(self, root: Path) -> None:
        annotations = root / "annotations" / "instances_train2017.json"
        folder = str(root / "train2017")
        self.data = torchvision.datasets.CocoDetection(folder, str(annotations))
        coco = self.data.coco
        self.with_boxes = [
            index
            for index, image in enumerate(self.data.ids)
            if boxes_of(coco.loadAnns(coco.getAnnIds(image)))
        ]

    def __len__(self) -> int:
        return len(self.with_boxes)

    def shapes(self) -> list[float]:
        """Return width / height of each image."""
        images = self.data.coco.loadImgs([self.data.ids[i] for i in self.with_boxes])
        return [image["width"] / image["height"] for image in images]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Target]:
        picture, annotations = self.data[self.with_boxes[index]]
        known = boxes_of(annotations)
        boxes = torch.tensor([one["bbox"] for one in known], dtype=torch.float32)
        labels = torch.tensor([one["category_id"] for one in known])
        boxes[:, 2:] += boxes[:, :2]
        width, height = picture.size
        boxes[:, 0::2].clamp_(0, width)
        boxes[:, 1::2].clamp_(0, height)
        whole = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        boxes = boxes[whole]
        if random.random() < 0.5:
            picture = functional.hflip(picture)
            boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
        target = {"boxes": boxes, "labels": labels[whole]}
        return functional.to_tensor(picture), target


def boxes_of(annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def loader(root: Path, batch_size: int, workers: int) -> DataLoader[Any]:
    """Return the DataLoader; a batch is ([images], [targets])."""
    data = Coco(root)
    return DataLoader(
        data,
        batch_sampler=Grouped(data.shapes(), batch_size),
        num_workers=workers,
        collate_fn=_listed,
        persistent_workers=workers > 0,
    )


def _listed(samples: list[tuple[torch.Tensor, Target]]) -> tuple[Any, ...]:
    return tuple(zip(*samples, strict=True))


def batches(
    loader: DataLoader[Any], device: torch.device
) -> Iterator[tuple[list[torch.Tensor], list[Target]]]:
    """Yield batches for ever, on the device. Raises ValueError where no batch can be filled."""
    while True:
        empty = True
        for images, targets in loader:
            empty = False
            moved = [
                {name: one.to(device) for name, one in target.items()}
                for target in targets
            ]
            yield [image.to(device) for image in images], moved
        if empty:
            raise ValueError(
                "images of like shape fill no batch; a smaller --batch-size"
            )


def model(arch: str) -> nn.Module:
    """Return a model without weights, in training mode."""
    made: nn.Module = torchvision.models.get_model(
        arch, weights=None, weights_backbone=None, num_classes=CLASSES
    )
    return made.train()


def loss_of(
    model: nn.Module, images: list[torch.Tensor], targets: list[Target]
) -> torch.Tensor:
    """Return the sum of the module's losses. It is read back each step, as such loops do, to stop when it is
    no number.
    """
    total = torch.stack(list(model(images, targets).values())).sum()
    if not math.isfinite(total.item()):
        raise ValueError("the loss is no number")
    return total
