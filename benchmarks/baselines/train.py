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
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torchvision
from torch import nn

from benchmarks.baselines import dali, detection, superres

SIDE = 224
"""Height and width of the images of classifiers, pixels."""
NOT_HERE = 77
"""Exit code: nothing was measured, and nothing failed."""


def dali_batches(
    root: Path,
    batch_size: int,
    threads: int,
    device: torch.device,
    *,
    training: bool = True,
    decode_on_cpu: bool = False,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield normalised images, fp16 on a GPU and fp32 on a CPU, and labels, for ever."""
    made = dali.images(
        window="random-resized" if training else "center",
        size=SIDE,
        batch_size=batch_size,
        threads=threads,
        device=device,
        flip=training,
        shuffle=training,
        decode_on_cpu=decode_on_cpu,
        file_root=str(root),
    )
    while True:
        for (batch,) in made:
            yield (
                batch["images"].contiguous(memory_format=torch.channels_last),
                batch["labels"].squeeze(-1).long(),
            )


def torchvision_batches(
    root: Path,
    batch_size: int,
    workers: int,
    device: torch.device,
    *,
    recipe: bool = False,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield normalised fp32 images and labels, for ever. Raises ValueError where no batch can be filled.

    A `recipe` adds what torchvision's references do in the workers: RandAugment, random erasing, and mixup or
    cutmix, with which labels are shares of 1,000 classes.
    """
    from torchvision import transforms
    from torchvision.transforms import v2

    mixing = v2.RandomChoice(
        [v2.MixUp(alpha=0.2, num_classes=1000), v2.CutMix(num_classes=1000)]
    )
    steps = [
        transforms.RandomResizedCrop(SIDE),
        transforms.RandomHorizontalFlip(),
        *([transforms.RandAugment()] if recipe else []),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        *([transforms.RandomErasing(0.25)] if recipe else []),
    ]
    data = torchvision.datasets.ImageFolder(str(root), transforms.Compose(steps))
    loader = torch.utils.data.DataLoader(
        data,
        batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
        persistent_workers=workers > 0,
        collate_fn=partial(_mixed, mixing) if recipe else None,
    )
    if not len(loader):
        raise ValueError(
            f"no batch of {batch_size} can be filled: there are {len(data)} images"
        )
    while True:
        for images, labels in loader:
            yield (
                images.to(device, non_blocking=True).contiguous(
                    memory_format=torch.channels_last
                ),
                labels.to(device, non_blocking=True),
            )


def _mixed(
    mixing: nn.Module, samples: list[tuple[torch.Tensor, int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Collate a batch and mix it."""
    images, labels = mixing(*torch.utils.data.default_collate(samples))
    return images, labels


LOADERS: dict[
    str,
    Callable[
        [Path, int, int, torch.device], Iterator[tuple[torch.Tensor, torch.Tensor]]
    ],
] = {
    "dali": dali_batches,
    "dali-cpu": partial(dali_batches, decode_on_cpu=True),
    "torchvision": torchvision_batches,
}
"""--loader -> what makes its batches; dali decodes on the GPU, dali-cpu on the CPU."""


def of_images(
    arguments: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return a classifier and a function that gives the loss of its next batch."""
    make = (
        partial(torchvision_batches, recipe=True)
        if arguments.recipe
        else LOADERS[arguments.loader]
    )
    batches = make(
        arguments.data / "train", arguments.batch_size, arguments.workers, device
    )
    model: nn.Module = torchvision.models.get_model(arguments.arch)
    model = model.to(device).to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()

    def loss() -> torch.Tensor:
        images, labels = next(batches)
        found: torch.Tensor = criterion(model(images), labels)
        return found

    return model, loss


def of_detectors(
    arguments: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return a detector and a function that gives the loss of its next batch."""
    loader = detection.loader(
        arguments.data, arguments.arch, arguments.batch_size, arguments.workers
    )
    batches = detection.batches(loader, device)
    model = detection.model(arguments.arch).to(device)
    return model, lambda: detection.loss_of(model, *next(batches))


def of_patches(
    arguments: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return SRCNN and a function that gives the loss of its next batch."""
    batches = superres.batches(
        arguments.data / "train", arguments.batch_size, arguments.workers, device
    )
    model = superres.model().to(device)

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=tuple(OF_TASK), default="classification")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with train/<class>/*; of detectors COCO's layout",
    )
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--loader", choices=tuple(LOADERS), default="dali")
    parser.add_argument(
        "--recipe",
        action="store_true",
        help="augment as torchvision's references, with its loader",
    )
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument(
        "--workers", type=int, default=max(len(os.sched_getaffinity(0)) - 1, 1)
    )
    parser.add_argument("--output", type=Path, help="write the figures there, as JSON")
    parser.add_argument(
        "--steps",
        type=int,
        help="with DALI on a GPU: so many steps and as many batches of validation instead, and nothing timed",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="timed, after as long a warm-up (at most 15 s)",
    )
    arguments = parser.parse_args()
    if arguments.recipe and (arguments.task, arguments.loader) != (
        "classification",
        "torchvision",
    ):
        parser.error("--recipe: only with --task classification --loader torchvision")
    if not arguments.data.is_dir():
        parser.error(f"--data {arguments.data} is no folder")

    gpu = torch.cuda.is_available()
    if not gpu and (arguments.loader == "dali" or arguments.steps):
        print("by hand: no GPU is here")
        sys.exit(NOT_HERE)
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    torch.backends.cudnn.benchmark = (
        arguments.task == "classification"
    )  # detectors' images have many shapes
    model, loss = OF_TASK[arguments.task](arguments, device)
    # as benchmarks/train.py's GENTLER, so that both train alike
    rate = 1e-5 if arguments.task == "detection" else 0.01
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4
    )
    scaler = torch.amp.GradScaler(device.type, enabled=gpu)
    ends_s = list[float]()  # of each step, by the host's clock

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.float16, enabled=gpu):
            found = loss()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(found).backward()
        scaler.step(optimizer)
        scaler.update()
        # without waiting for the device: the loss scale does, when it asks whether gradients are finite
        ends_s.append(time.perf_counter())

    def synchronise() -> None:
        if gpu:
            torch.cuda.synchronize()

    def run(seconds: float) -> tuple[int, float]:
        """Train for so long and return (samples, seconds) between two points at which the device was
        synchronised."""
        synchronise()
        began = time.perf_counter()
        steps = 0
        while time.perf_counter() - began < seconds:
            step()
            steps += 1
        synchronise()
        return steps * arguments.batch_size, time.perf_counter() - began

    if arguments.steps:
        validation = dali_batches(
            arguments.data / "val",
            arguments.batch_size,
            arguments.workers,
            device,
            training=False,
            decode_on_cpu=arguments.loader == "dali-cpu",
        )
        for _ in range(arguments.steps):
            step()
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            for _ in range(arguments.steps):
                images, labels = next(validation)
                nn.functional.cross_entropy(model(images), labels)
        torch.cuda.synchronize()
        return

    # not measured: DALI's buffers grow, and kernels are picked, in the first seconds
    run(min(arguments.seconds, 15.0))
    windows = [run(max(2.0, arguments.seconds / 5)) for _ in range(5)]
    rates = sorted(samples / seconds for samples, seconds in windows)
    if arguments.output:
        steps = sum(samples for samples, _ in windows) // arguments.batch_size
        told = {"windows": windows, "steps": steps, "step_ends_s": ends_s}
        arguments.output.write_text(json.dumps(told))
    print(
        f"by hand: {arguments.arch} {arguments.loader} {rates[2]:,.0f} img/s ({rates[0]:,.0f} to "
        f"{rates[-1]:,.0f} in 5 windows)"
    )


if __name__ == "__main__":
    main()
