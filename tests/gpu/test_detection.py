"""Detectors in fp16 on a GPU."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Feed, Pixels
from dataset.coco.scan import open_coco
from dataset.stores.folder import Folder
from engine.step import Step
from loaders import open_loader
from models import detection as registry
from plan.boxes import DetectionPlan, DetectionPolicy
from settings.optimisation import Optimisation
from tasks.detection import Detection
from tests.unit.coco_files import write_coco
from tests.unit.steps import composed

ARCHS = (
    "fasterrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)
BATCH, STEPS = 4, 12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(
        tmp_path_factory.mktemp("coco") / "data",
        splits={"train2017": 32, "val2017": 4},
        size=(240, 320),
    )


def made(arch: str, root: Path, cache: Path, device: torch.device) -> tuple[Step, Feed]:
    columns = open_coco(root, "train", keypoints="keypoint" in arch, cache=cache)
    native = registry.native(arch)
    native = native if native.longer is None else native._replace(size=256, longer=384)
    framing: dict[str, Any] = (
        {"augment": "multiscale", "short_sides": (192, 256)}
        if native.longer
        else {"augment": "ssd"}
    )
    policy = DetectionPolicy(
        size=native.size, longer=native.longer, flip=0.5, **framing
    )
    plan = DetectionPlan.of(columns, policy, seed=0, batch_size=BATCH)
    torch.manual_seed(0)
    keypoints = len(columns.keypoint_mirror)
    module, _ = registry.build(
        arch,
        classes=len(columns.classes),
        shape=(BATCH, *plan.sample_shape),
        keypoints=keypoints,
    )
    module = module.to(device).to(memory_format=torch.channels_last)
    task = Detection(
        columns,
        masks="mask" in arch,
        keypoints="keypoint" in arch,
        centred=policy.centred,
    )
    dtype = "16" if device.type == "cuda" else "32"
    step = composed(
        module,
        task,
        Optimisation(lr=1e-4, nesterov=False),
        precision=f"fp{dtype}",
        device=device,
    )
    feed = Feed(
        plan=plan,
        source=Folder(columns),
        columns=columns,
        targets=task.targets,
        device=device,
        workers=2,
        pixels=Pixels(mean=native.mean, std=native.std, dtype=f"float{dtype}"),
    )
    return step, feed


def trains(step: Step, feed: Feed, name: str, *, steps: int) -> list[float]:
    with open_loader(name, feed) as loader:
        batches = itertools.chain.from_iterable(
            loader.batches(epoch, 0) for epoch in itertools.count()
        )
        outcomes = [step(batches, lr=1e-4, epoch=0, position=i) for i in range(steps)]
        return [float(outcome[0] / outcome[1]) for outcome in outcomes]


@pytest.mark.parametrize("arch", ARCHS)
def test_each_family_trains_in_fp16(
    arch: str, root: Path, tmp_path: Path, device: torch.device
) -> None:
    losses = trains(*made(arch, root, tmp_path, device), "dali-gpu", steps=STEPS)
    assert np.isfinite(losses).all(), losses
    assert np.mean(losses[-4:]) < np.mean(losses[:4]), losses
