"""The loop that one writes by hand with the same libraries, to be run beside train.py on the same data in the
same hour.

`python -m benchmarks.baselines.train --data IMAGENET --arch resnet18 --loader dali`. Uses nothing of ours on
purpose: DALI's own reader and random crop (or torchvision's ImageFolder and transforms), autocast, a loss
scale, channels_last, the default stream; in fp32 where there is no GPU. `--task detection --arch
fasterrcnn_resnet50_fpn`: benchmarks/baselines/detection.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import nn

from benchmarks.baselines import dali, detection, pytorch, superres

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
COMPILED = "dali+compile"
"""DALI on the GPU beside a network behind torch.compile."""


def dali_batches(
    root: Path,
    asked: argparse.Namespace,
    device: torch.device,
    *,
    training: bool = True,
) -> Batches:
    """Yield normalised images, fp16 on a GPU and fp32 on a CPU, and labels, for ever."""
    made = dali.images(
        window="random-resized" if training else "center",
        size=asked.image_size,
        batch_size=asked.batch_size,
        threads=asked.workers,
        device=device,
        flip=training,
        shuffle=training,
        decode_on_cpu=asked.loader == "dali-cpu",
        file_root=str(root),
    )
    while True:
        for (batch,) in made:
            images = batch["images"].contiguous(memory_format=torch.channels_last)
            yield images, batch["labels"].squeeze(-1).long()


def torchvision_batches(
    root: Path, asked: argparse.Namespace, device: torch.device
) -> Batches:
    """Yield normalised fp32 images and labels, for ever. Raises ValueError where no batch can be filled."""
    load = pytorch.by_pil("random-resized", asked.image_size, "flip")
    data = torchvision.datasets.ImageFolder(str(root), loader=load)
    return pytorch.forever(data, asked.batch_size, asked.workers, device)


def of_images(
    asked: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return a classifier and a function that gives the loss of its next batch."""
    compiled = asked.loader == COMPILED
    make = torchvision_batches if asked.loader == "torchvision" else dali_batches
    batches = make(asked.data / "train", asked, device)
    model: nn.Module = torchvision.models.get_model(asked.arch).to(device)
    model = model.to(memory_format=torch.channels_last)
    called = torch.compile(model) if compiled else model

    def loss() -> torch.Tensor:
        images, labels = next(batches)
        images = images.contiguous(memory_format=torch.channels_last)
        return nn.functional.cross_entropy(called(images), labels)

    return model, loss


def of_detectors(
    asked: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return a detector and a function that gives the loss of its next batch."""
    loader = detection.loader(asked.data, asked.batch_size, asked.workers)
    batches = detection.batches(loader, device)
    model = detection.model(asked.arch).to(device)
    return model, lambda: detection.loss_of(model, *next(batches))


def of_patches(
    asked: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return SRCNN and a function that gives the loss of its next batch."""
    patches = superres.Patches(asked.data / "train")
    batches = pytorch.forever(patches, asked.batch_size, asked.workers, device)
    model = superres.model().to(device).to(memory_format=torch.channels_last)

    def loss() -> torch.Tensor:
        inputs, targets = next(batches)
        return nn.functional.mse_loss(model(inputs), targets)

    return model, loss


OF_TASK = {
    "classification": of_images,
    "detection": of_detectors,
    "superres": of_patches,
}
"""--task -> what makes the model and its losses."""


def asked_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    cores = len(os.sched_getaffinity(0))
    add("--task", choices=tuple(OF_TASK), default="classification")
    add("--data", type=Path, required=True, help="folder with train/; COCO's layout")
    add("--arch", default="resnet18")
    add(
        "--loader",
        choices=("dali", COMPILED, "dali-cpu", "torchvision"),
        default="dali",
    )
    add("--batch-size", type=int, default=512)
    add("--image-size", type=int, default=224, help="of classifiers, pixels")
    add("--workers", type=int, default=max(cores - 1, 1))
    add("--output", type=Path, help="write the figures there, as JSON")
    add("--steps", type=int, help="with DALI: so many, and a validation; times nothing")
    add("--seconds", type=float, default=20.0, help="timed, after a warm-up")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    asked = asked_of(argv)
    gpu = torch.cuda.is_available()
    if not gpu and (asked.loader in ("dali", COMPILED) or asked.steps):
        sys.exit("by hand: no GPU is here")
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    # detectors' images have many shapes
    torch.backends.cudnn.benchmark = asked.task != "detection"
    model, loss = OF_TASK[asked.task](asked, device)
    # as benchmarks/train.py's GENTLER, so that both train alike
    rate = 1e-5 if asked.task == "detection" else 0.01
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4
    )
    scaler = torch.amp.GradScaler(device.type, enabled=gpu)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.float16, enabled=gpu):
            found = loss()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(found).backward()
        scaler.step(optimizer)
        scaler.update()

    loads: list[tuple[float, float]] = []
    ended = threading.Event()

    def watch() -> None:
        """Ask the driver once a second how busy the GPU is, and for its watts."""
        while not ended.wait(1.0):
            busy, milliwatts = torch.cuda.utilization(), torch.cuda.power_draw()
            loads.append((busy / 100, milliwatts / 1000))

    def run(seconds: float) -> tuple[int, float]:
        """Train for so long and return (samples, seconds) between two points at which the device was
        synchronised.
        """
        synchronise = torch.cuda.synchronize if gpu else lambda: None
        synchronise()
        began = time.perf_counter()
        steps = 0
        while time.perf_counter() - began < seconds:
            step()
            steps += 1
        synchronise()
        return steps * asked.batch_size, time.perf_counter() - began

    if asked.steps:
        validation = dali_batches(asked.data / "val", asked, device, training=False)
        for _ in range(asked.steps):
            step()
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            for _ in range(asked.steps):
                images, labels = next(validation)
                nn.functional.cross_entropy(model(images), labels)
        torch.cuda.synchronize()
        return

    # not measured: DALI's buffers grow, and kernels are picked, in the first seconds
    run(min(asked.seconds, 15.0))
    watcher = threading.Thread(target=watch)
    if gpu:
        watcher.start()
    windows = [run(max(2.0, asked.seconds / 5)) for _ in range(5)]
    steps = sum(samples for samples, _ in windows) // asked.batch_size
    figures: dict[str, Any] = {"windows": windows, "steps": steps}
    if gpu:
        ended.set()
        watcher.join()
        free, total = torch.cuda.mem_get_info()
        figures["device_gib"] = (total - free) / 2**30
        names = ("gpu_utilisation", "power_w")
        figures |= dict(zip(names, np.mean(loads, axis=0).tolist(), strict=True))
    if asked.output:
        asked.output.write_text(json.dumps(figures))
    rates = sorted(samples / seconds for samples, seconds in windows)
    print(
        f"by hand: {asked.arch} {asked.loader} {rates[2]:,.0f} img/s ({rates[0]:,.0f} to {rates[-1]:,.0f})"
    )


if __name__ == "__main__":
    main()
