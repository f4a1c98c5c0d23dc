"""Recipes on the GPU: operations give the CPU's pixels without a wait, mixed batches train in a graph, and
validation may have another size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Batch, Feed
from engine import graphed
from engine.distributed import ProcessWorld
from engine.step import Step
from loaders import _ops, first_batch, open_loader
from loaders._memory import to_device
from loaders._ops import operated
from plan import ops
from plan.augment import Augment, Auto, Erase, Jitter
from plan.images import ImagePlan, ImagePolicy
from plan.mixing import Mixing
from plan.ops import Op
from tasks.classification import Classification
from tests.conformance.pictures import photograph
from tests.conformance.scenes import Scene
from tests.gpu.test_combinations import trained
from tests.gpu.test_graphs import made
from tests.gpu.test_rcnn import no_waits
from tests.unit import test_ops_kernel

ROWS = np.ones(4, bool)
EACH: dict[str, list[tuple[Any, ...]]] = {
    "colours": [
        (Op.BRIGHTNESS, 1.3),
        (Op.SATURATION, 0.4),
        (Op.CONTRAST, 1.6),
        (Op.HUE, 0.2),
        (Op.GREYSCALE,),
    ],
    "tables": [
        (Op.POSTERIZE, 3),
        (Op.SOLARIZE, 90),
        (Op.SOLARIZE_ADD, 40),
        (Op.AUTOCONTRAST,),
        (Op.EQUALIZE,),
    ],
    "filters": [(Op.INVERT,), (Op.SHARPNESS, 1.7), (Op.BLUR, 1.4)],
    "maps": [
        (Op.AFFINE, 0.9, -0.3, 4.2, 0.3, 0.9, -2.7, smooth, 124, 116, 104)
        for smooth in (1, 0)
    ],
    "noise": [(Op.ERASE, 3, 4, 30, 25, 9, 8, 7, 50, 50, 50, 1, 2)],
}


@pytest.mark.parametrize("group", EACH)
def test_operations_are_the_cpus(group: str, device: torch.device) -> None:
    levels = torch.from_numpy(np.stack([photograph(seed, 61, 70) for seed in range(4)]))
    for operation, *numbers in EACH[group]:
        slots = ops.slot(operation, ROWS, *numbers)
        expected = operated(
            levels, slots, partial(to_device, device=torch.device("cpu"))
        )
        there = levels.to(device)
        # makes what is made once
        operated(there, slots, partial(to_device, device=device))
        with no_waits():
            found = operated(there, slots, partial(to_device, device=device))
        apart = (found.cpu() - expected).abs()
        # a pixel on the edge of two levels, or half-way between two pixels, may fall to either side, and more
        # of them do where a product of matrices is taken in TF32
        assert (apart > 0.01).float().mean() < (
            0.03 if operation == Op.BLUR else 0.005
        ), operation
        assert operation == Op.AFFINE or apart.max() <= 1.01, operation


def test_the_kernels_do_what_torch_does(device: torch.device) -> None:
    """Each row its own operations, of clips; a GPU does them by kernels."""
    assert _ops._kernel(device) is not None
    test_ops_kernel.check_they_are_alike(test_ops_kernel.apart(device))


def recipe(photographs: Scene, device: torch.device, task: Classification) -> Feed:
    """RandAugment, jitter and erasing, behind a loader."""
    erase = Erase(erase=0.5, erase_mode="pixel")
    augment = Augment(
        (Auto(auto_augment="rand-m9-mstd0.5-inc1"), Jitter(color_jitter=0.3), erase)
    )
    policy = ImagePolicy(
        window="random-resized", image_size=64, flip=0.5, vflip=0.5, augment=augment
    )
    plan = ImagePlan.of(photographs.manifest, policy, seed=5, batch_size=4)
    return replace(photographs.feed(device), plan=plan, targets=task.targets)


def copied(batch: Batch) -> Batch:
    targets = {name: value.clone() for name, value in batch.targets.items()}
    return replace(
        batch,
        images=batch.images.clone(),
        sizes=batch.sizes.clone(),
        targets=targets,
        valid=batch.valid.clone(),
    )


@pytest.mark.parametrize("name", ["dali-gpu", "torchvision"])
@pytest.mark.usefixtures("deterministic")
def test_a_recipe_trains_in_a_graph(
    name: str, photographs: Scene, world: ProcessWorld
) -> None:
    """mixup and cutmix of each batch reach the graph: its losses are those of eager steps, bit for bit."""
    labels = np.arange(photographs.samples) % 5
    task = Classification(
        labels, label_smoothing=0.1, mixing=Mixing(mixup=0.8, cutmix=1.0)
    )
    feed = recipe(photographs, world.device, task)
    step = made(world, "resnet18", task=task)
    why, _ = graphed.capture(step, [first_batch(feed)], world)
    assert not why
    with open_loader(name, feed) as loader:
        batches = [
            copied(batch) for epoch in range(3) for batch in loader.batches(epoch, 0)
        ]
    cuts = [bool(batch.targets["cuts"].any()) for batch in batches]
    assert len(batches) >= 3 and any(cuts) and not all(cuts)

    def losses(of: Step) -> Any:
        outcomes = [
            of(iter([batch]), lr=0.01, epoch=0, position=at).clone()
            for at, batch in enumerate(batches)
        ]
        return torch.stack(outcomes)[:, 0].cpu().numpy()

    found = losses(step)
    step.forget()
    np.testing.assert_array_equal(found, losses(made(world, "resnet18", task=task)))
    assert len(np.unique(found)) == len(batches)


@pytest.mark.parametrize("loader", ["dali-gpu", "torchvision"])
def test_validation_at_another_size(loader: str, small: Scene, tmp_path: Path) -> None:
    """Larger images beside the graph of the training step, which stays a graph."""
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val"):
        (data / split).symlink_to(small.folder)
    flags = (
        "--loader",
        loader,
        "--arch",
        "resnet18",
        "--batch-size",
        "8",
        "--ceilings",
        "false",
    )
    told = trained(
        data, tmp_path / "run", *flags, "--image-size", "64", "--val-image-size", "256"
    )
    assert told["graphs"] is True and told["validation"]
    used = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["used"]
    assert (told["image_size"], used["image_size"]) == (64, 256)
