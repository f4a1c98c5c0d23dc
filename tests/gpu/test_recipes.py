"""Recipes on the GPU: kernels give torch's pixels, and mixed batches train in a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Batch, Feed
from engine import graphed
from engine.distributed import ProcessWorld
from engine.step import Step
from loaders import _ops, first_batch, open_loader
from plan.augment import Augment, Auto, Erase, Jitter
from plan.images import ImagePlan, ImagePolicy
from plan.mixing import Mixing
from tasks.classification import Classification
from tests.conformance.scenes import Scene
from tests.gpu.test_graphs import made
from tests.unit import test_ops_kernel


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
