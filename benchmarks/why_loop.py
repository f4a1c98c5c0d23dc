"""A training loop as many people write it, slow by one cause that is named on its command line (why.py).

    python benchmarks/why_loop.py FOLDER name=value ...

With `stopwatch=SECONDS` it prints its rate, samples a second after a warm-up, by a clock of its own.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets.folder import pil_loader

DEFAULTS: dict[str, Any] = {
    "arch": "",  # of torchvision; "": a convolution
    "size": 64,
    "batch": 32,
    "workers": 2,
    "persistent": 1,
    "pin": 1,
    "samples": 100_000,  # of an epoch
    "read_ms": 0.0,  # slept before each file is read
    "spin_ms": 0.0,  # Python that each sample runs, outside of its transforms
    "blur": 0,  # side of a Gaussian blur's kernel
    "step_ms": 0.0,  # slept in each step
    "pictures": 0,  # JPEGs of a batch that each step writes
    "item": 0,  # times a step asks for its loss
    "amp": 1,
    "channels_last": 1,
    "validate_every": 0,
    "slow_rank_ms": 0.0,  # read_ms of rank 1 alone
    "memory": 0,  # 1: batches that lie in memory
    "decoder": "",  # "": Pillow; "torchvision": its libjpeg-turbo
    "stopwatch": 0.0,
    "traceml": 0,  # 1: the two lines that TraceML asks for
}
WARM_UP_S = 4.0


def by_torchvision(path: str) -> Any:
    """Return an image as Pillow's loader does, decoded by torchvision."""
    content = torchvision.io.read_file(path)
    pixels = torchvision.io.decode_image(content, torchvision.io.ImageReadMode.RGB)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


class Photographs(torchvision.datasets.ImageFolder):
    """The images of a folder again and again."""

    def __init__(self, folder: str, asked: dict[str, Any], transform: Any) -> None:
        loader = by_torchvision if asked["decoder"] else pil_loader
        super().__init__(folder, transform, loader=loader)
        self.asked = asked
        self.of_rank_ms = asked["slow_rank_ms"] * (os.environ.get("RANK") == "1")

    def __len__(self) -> int:
        return int(self.asked["samples"])

    def __getitem__(self, number: int) -> Any:
        slept_ms = self.asked["read_ms"] + self.of_rank_ms
        if slept_ms:
            time.sleep(slept_ms / 1e3)
        ends = time.thread_time() + self.asked["spin_ms"] / 1e3
        while time.thread_time() < ends:
            pass
        return super().__getitem__(number % len(self.samples))


def loader_of(folder: str, asked: dict[str, Any]) -> Any:
    size = asked["size"]
    if asked["memory"]:
        return DataLoader(InMemory(asked), batch_size=None)
    blur = [transforms.GaussianBlur(asked["blur"])] if asked["blur"] else []
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            *blur,
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )
    data = Photographs(folder, asked, transform)
    return DataLoader(
        data,
        asked["batch"],
        shuffle=True,
        num_workers=asked["workers"],
        pin_memory=bool(asked["pin"]) and torch.cuda.is_available(),
        persistent_workers=bool(asked["persistent"] and asked["workers"]),
        drop_last=True,
    )


class InMemory(torch.utils.data.IterableDataset[Any]):
    """Batches that lie in memory, given again and again until an epoch has its samples."""

    def __init__(self, asked: dict[str, Any]) -> None:
        shape = asked["batch"], 3, asked["size"], asked["size"]
        batch = torch.rand(shape), torch.arange(shape[0]) % 10
        pinned = asked["pin"] and torch.cuda.is_available()
        self.count = asked["samples"] // asked["batch"]
        self.batches = [
            [one.pin_memory() if pinned else one.clone() for one in batch]
            for _ in range(2)
        ]

    def __iter__(self) -> Any:
        return islice(cycle(self.batches), self.count)


def small() -> nn.Module:
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 4), nn.ReLU(), *pooled)


def main() -> None:
    folder, *words = sys.argv[1:]
    given = dict(word.split("=", 1) for word in words)
    asked = {
        name: type(value)(given.get(name, value)) for name, value in DEFAULTS.items()
    }
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    arch = asked["arch"]
    net: Any = (getattr(torchvision.models, arch) if arch else small)().to(device)
    if asked["channels_last"]:
        net = net.to(memory_format=torch.channels_last)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)
    in_half = on_gpu and bool(asked["amp"])
    scaler = torch.amp.GradScaler(enabled=in_half)
    loader = loader_of(folder, asked)
    held_out = loader_of(folder, {**asked, "samples": 4 * asked["batch"]})
    if asked["traceml"]:
        import traceml_ai

        traceml_ai.init(mode="auto")
        traced = traceml_ai.trace_step
    gc.collect()  # else each worker begins with it, or none, by what was allocated so far
    steps, began, first, total = 0, time.perf_counter(), 0.0, 0
    while True:
        for images, labels in loader:
            with traced(net) if asked["traceml"] else contextlib.nullcontext():
                x = images.to(device, non_blocking=bool(asked["pin"]))
                y = labels.to(device, non_blocking=bool(asked["pin"]))
                if asked["channels_last"]:
                    x = x.contiguous(memory_format=torch.channels_last)
                with torch.autocast("cuda", torch.float16, enabled=in_half):
                    loss = nn.functional.cross_entropy(net(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                for _ in range(asked["item"]):
                    loss.item()
                if asked["step_ms"]:
                    time.sleep(asked["step_ms"] / 1e3)
                for image in images[: asked["pictures"]]:
                    picture = torchvision.transforms.functional.to_pil_image(image)
                    picture.resize((512, 512)).save(io.BytesIO(), "PNG")
            steps += 1
            if asked["validate_every"] and steps % asked["validate_every"] == 0:
                net.eval()
                with torch.no_grad():
                    for images, _ in held_out:
                        net(images.to(device))
                net.train()
            if asked["stopwatch"]:
                if on_gpu and steps % 8 == 0:
                    torch.cuda.synchronize()
                now = time.perf_counter()
                if not first and now - began > WARM_UP_S:
                    first = now
                elif first:
                    total += len(labels)
                    if now - first > asked["stopwatch"]:
                        print(f"rate {total / (now - first):.2f}", flush=True)
                        return


def converted(source: Path, folder: Path, kind: str) -> Path:
    """Write the images of `source` as PNGs, or enlarged to 12 megapixels ("large"), into `folder`."""
    for path in sorted(source.rglob("*.JPEG"))[: 24 if kind == "large" else None]:
        image = Image.open(path).convert("RGB")
        if kind == "large":
            image = image.resize((4000, 3000))
        there = (
            folder
            / path.parent.name
            / f"{path.stem}.{'jpg' if kind == 'large' else 'png'}"
        )
        there.parent.mkdir(parents=True, exist_ok=True)
        image.save(there)
    return folder


if __name__ == "__main__":
    main()
