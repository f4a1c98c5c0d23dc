"""The loading that one writes by hand with PyTorch on the CPU: PIL, torchvision's transforms, a DataLoader with pinned memory.

Uses nothing of ours on purpose: it is what `loader` and `slow-storage` compare with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler
from torchvision import transforms

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Images(Dataset[Any]):
    """(normalised fp32 [3, H, W], label) of image files; each read begins `read_delay_s` late."""

    def __init__(self, files: Sequence[str], labels: Sequence[int], transform: Any, read_delay_s: float = 0.0) -> None:
        self.files, self.labels, self.transform, self.read_delay_s = files, labels, transform, read_delay_s

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        if self.read_delay_s:
            time.sleep(self.read_delay_s)
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]


def transform(window: str, size: int) -> Any:
    """`window` is stretch, random-resized or center (of a shorter side of 256 / 224 times `size`); `size` in pixels."""
    first = {
        "stretch": [transforms.Resize((size, size))],
        "random-resized": [transforms.RandomResizedCrop(size)],
        "center": [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)],
    }
    return transforms.Compose([*first[window], transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def loader(
    data: Dataset[Any], *, batch_size: int, workers: int, pinned: bool, world_size: int = 1, rank: int = 0, samples: int | None = None
) -> DataLoader[Any]:
    """Whole batches in an order drawn for each epoch; `samples`: so many of them an epoch instead of all."""
    share: Sampler[int] | None = DistributedSampler(data, world_size, rank, drop_last=True) if world_size > 1 else None
    sampler = share or RandomSampler(data, num_samples=samples)  # type: ignore[arg-type]
    return DataLoader(
        data, batch_size, sampler=sampler, num_workers=workers, pin_memory=pinned, drop_last=True, persistent_workers=workers > 0
    )


def batches(loader: DataLoader[Any], device: torch.device, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images and labels of one epoch, on the device."""
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
    for images, labels in loader:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
