"""The loading that one writes by hand with PyTorch on the CPU: PIL (clips: PyAV or decord), torchvision's
transforms, a DataLoader.

Uses nothing of ours on purpose: it is what `loader` compares with.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
Array = np.ndarray[Any, Any]
Load = Callable[[str], Any]
"""file -> its pixels, as a DataLoader collates them."""
Decode = Callable[[str, int, int, float], Array]
"""(file, frames, stride, place of the clip from 0 to 1) -> uint8 [T, H, W, 3], fewer than `frames` where the
video ends before.
"""


class Images(Dataset[Any]):
    """(what `load` makes of an image file, label); each read begins `read_delay_s` late."""

    def __init__(
        self,
        files: Sequence[str],
        labels: Sequence[int],
        load: Load,
        read_delay_s: float = 0.0,
    ) -> None:
        self.files = files
        self.labels = labels
        self.load = load
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        if self.read_delay_s:
            time.sleep(self.read_delay_s)
        return self.load(self.files[index]), self.labels[index]


class Clips(Dataset[Any]):
    """(normalised fp32 [3, T, size, size], label) of a random clip of each video file.

    The shorter side is resized to `shorter` pixels, then a random square is cut out; a clip that is too short
    repeats its last frame.
    """

    def __init__(
        self,
        files: Sequence[str],
        labels: Sequence[int],
        *,
        decode: Decode,
        frames: int,
        stride: int,
        size: int,
        shorter: int,
    ) -> None:
        # two seconds, of a suite that may not need it
        from torchvision import transforms

        self.files = files
        self.labels = labels
        self.decode = decode
        self.frames = frames
        self.stride = stride
        resize = transforms.Resize(shorter, antialias=True)
        self.crop = transforms.Compose([resize, transforms.RandomCrop(size)])
        self.normalise = transforms.Normalize(MEAN, STD)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        pixels, label = self.decoded(index)
        missing = self.frames - len(pixels)
        pixels = np.concatenate([pixels, np.repeat(pixels[-1:], missing, axis=0)])
        small = self.crop(torch.from_numpy(pixels).permute(0, 3, 1, 2))  # [T, 3, H, W]
        return self.normalise(small.float() / 255).transpose(0, 1), label

    def decoded(self, index: int) -> tuple[Array, int]:
        """Return the frames of a clip, uint8 [T, H, W, 3], at most `frames` of them, and its label."""
        place = random.random()
        pixels = self.decode(self.files[index], self.frames, self.stride, place)
        return pixels, self.labels[index]


class Alone(Clips):
    """(frames that were decoded, label): no pixels are resized, and none travel."""

    def __getitem__(self, index: int) -> Any:
        pixels, label = self.decoded(index)
        return len(pixels), label


def start_of(place: float, length: int, frames: int, stride: int) -> int:
    """Return the first frame of a clip of a video of so many frames."""
    return int(place * max(length - (frames - 1) * stride - 1, 0))


def pyav_clip(path: str, frames: int, stride: int, place: float) -> Array:
    """Decode a clip with PyAV, as Decode says: seek by time to the key frame before, and decode from
    there.
    """
    import av

    with av.open(path) as container:
        stream = container.streams.video[0]
        rate = stream.average_rate or Fraction(30)
        base = stream.time_base or Fraction(1, av.time_base)
        count = stream.frames or int((container.duration or 0) * rate / av.time_base)
        start = start_of(place, count, frames, stride)
        begin = (stream.start_time or 0) + int(start / rate / base)
        container.seek(begin, stream=stream)
        taken: list[Any] = []
        passed = 0
        for frame in container.decode(stream):
            if frame.pts is None or frame.pts < begin:
                continue
            if passed % stride == 0:
                taken.append(frame.to_ndarray(format="rgb24"))
            passed += 1
            if len(taken) == frames:
                break
    return np.stack(taken)


def decord_clip(path: str, frames: int, stride: int, place: float) -> Array:
    """Decode a clip with decord, as Decode says."""
    import decord

    reader = decord.VideoReader(path, num_threads=1)
    start = start_of(place, len(reader), frames, stride)
    wanted = range(start, min(start + frames * stride, len(reader)), stride)
    pixels: Array = reader.get_batch([*wanted]).asnumpy()
    return pixels


def shorter_side(size: int) -> int:
    """Return the shorter side that a frame is resized to before `size` x `size` pixels are cut out."""
    return round(size * 256 / 224)


def by_pil(window: str, size: int, augment: str = "") -> Load:
    """Return what gives normalised fp32 [3, size, size], size in pixels.

    `window` is stretch, random-resized or center (of a shorter side of 256 / 224 times `size`); `augment` is
    "", flip, or randaugment or jitter of flipped images.
    """
    from torchvision import transforms

    first = {
        "stretch": [transforms.Resize((size, size))],
        "random-resized": [transforms.RandomResizedCrop(size)],
        "center": [transforms.Resize(shorter_side(size)), transforms.CenterCrop(size)],
    }
    flip = transforms.RandomHorizontalFlip()
    then = {
        "": [],
        "flip": [flip],
        "randaugment": [flip, transforms.RandAugment()],
        "jitter": [flip, transforms.ColorJitter(0.4, 0.4, 0.4)],
    }
    normal = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    transform = transforms.Compose([*first[window], *then[augment], *normal])

    def load(file: str) -> Any:
        with Image.open(file) as image:
            return transform(image.convert("RGB"))

    return load


def by_opencv(size: int) -> Load:
    """Return what gives uint8 [size, size, 3], the whole image stretched, as two of the published reports
    load: BGR, not normalised.
    """
    import cv2

    return lambda file: cv2.resize(cv2.imread(file), (size, size))


def loader(
    data: Dataset[Any],
    *,
    batch_size: int,
    workers: int,
    device: torch.device,
    world_size: int = 1,
    rank: int = 0,
    samples: int | None = None,
    make: Callable[..., DataLoader[Any]] = DataLoader,
) -> DataLoader[Any]:
    """Return a loader of whole batches in an order drawn for each epoch; `samples`: so many of them an epoch
    instead of all. `make` is DataLoader, or what takes its arguments.
    """
    sampler: Any = RandomSampler(data, num_samples=samples)  # type: ignore[arg-type]
    if world_size > 1:
        sampler = DistributedSampler(data, world_size, rank, drop_last=True)
    return make(
        data,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
        persistent_workers=workers > 0,
    )


def batches(
    loader: DataLoader[Any], device: torch.device, epoch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield images and labels of one epoch, on the device."""
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
    for images, labels in loader:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def forever(
    data: Any, batch_size: int, workers: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of pairs on the device, epoch after epoch. Raises ValueError where no batch can be filled."""
    made = loader(data, batch_size=batch_size, workers=workers, device=device)
    if not len(made):
        raise ValueError(f"{len(data)} samples fill no batch of {batch_size}")
    for epoch in itertools.count():
        yield from batches(made, device, epoch)
