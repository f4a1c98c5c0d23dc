"""Detectors in fp16 on a GPU: each family trains on canvases that change, a ceiling leaves no trace, memory
does not grow.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from config import Optimisation
from contracts import Feed, Pixels
from dataset.coco.scan import open_coco
from dataset.sources.folder import Folder
from engine.distributed import ProcessWorld
from engine.step import Step
from loaders import open_loader
from models import detection as registry
from plan import draws
from plan.boxes import DetectionPlan, DetectionPolicy
from report.ceilings import compute_ceiling
from report.phases import Phases
from tasks.detection import Detection
from tests.unit.coco_files import write_coco

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
        tmp_path_factory.mktemp("coco") / "data", splits={"train2017": 32, "val2017": 4}, size=(240, 320)
    )


def made(arch: str, root: Path, cache: Path, device: torch.device) -> tuple[Step, Feed]:
    """A step and a feed as train.py composes them, for one process."""
    columns = open_coco(root, "train", keypoints="keypoint" in arch, cache=cache)
    native = registry.native(arch)
    native = native if native.longer is None else native._replace(size=256, longer=384)
    framing: dict[str, Any] = (
        {"augment": "multiscale", "short_sides": (192, 256)} if native.longer else {"augment": "ssd"}
    )
    policy = DetectionPolicy(size=native.size, longer=native.longer, flip=0.5, **framing)
    plan = DetectionPlan.of(columns, policy, seed=0, batch_size=BATCH)
    torch.manual_seed(0)
    keypoints = len(columns.keypoint_mirror)
    module, _ = registry.build(
        arch, classes=len(columns.classes), shape=(BATCH, *plan.sample_shape), keypoints=keypoints
    )
    module = module.to(device).to(memory_format=torch.channels_last)
    task = Detection(columns, masks="mask" in arch, keypoints="keypoint" in arch, centred=policy.centred)
    optimisation = Optimisation(lr=1e-4, nesterov=False)
    step = Step(
        module=module,
        task=task,
        optimisation=optimisation,
        precision="fp16" if device.type == "cuda" else "fp32",
        world=ProcessWorld(device),
        draw_key=partial(draws.key, 0, draws.Purpose.MODEL),
        phases=Phases(device),
    )
    feed = Feed(
        plan=plan,
        source=Folder(columns),
        columns=columns,
        targets=task.targets,
        device=device,
        workers=2,
        pixels=Pixels(
            mean=native.mean, std=native.std, dtype="float16" if device.type == "cuda" else "float32"
        ),
    )
    return step, feed


def trains(step: Step, feed: Feed, name: str, *, steps: int) -> list[float]:
    """The losses of so many steps, over as many epochs as it takes."""
    with open_loader(name, feed) as loader:
        batches = itertools.chain.from_iterable(loader.batches(epoch, 0) for epoch in itertools.count())
        outcomes = [step(batches, lr=1e-4, epoch=0, position=i) for i in range(steps)]
        return [float(outcome[0] / outcome[1]) for outcome in outcomes]


@pytest.mark.parametrize("arch", ARCHS)
def test_each_family_trains_in_fp16(arch: str, root: Path, tmp_path: Path, device: torch.device) -> None:
    losses = trains(*made(arch, root, tmp_path, device), "dali-gpu", steps=STEPS)
    assert np.isfinite(losses).all(), losses
    assert np.mean(losses[-4:]) < np.mean(losses[:4]), losses


@pytest.mark.parametrize("arch", ["fasterrcnn_resnet50_fpn", "ssd300_vgg16"])
def test_a_compute_ceiling_leaves_no_trace(
    arch: str, root: Path, tmp_path: Path, device: torch.device
) -> None:
    step, feed = made(arch, root, tmp_path, device)
    trains(step, feed, "torchvision", steps=2)
    before = [tensor.clone() for tensor in step.state_tensors()]
    with open_loader("torchvision", feed) as loader:
        world = ProcessWorld(device)
        some = itertools.islice(loader.batches(1, 0), feed.plan.resident)
        found = compute_ceiling(step, some, accumulate=1, world=world, synchronise=world.synchronise)
    assert found["rate"] > 0
    assert all(torch.equal(one, other) for one, other in zip(step.state_tensors(), before, strict=True))


def test_device_memory_does_not_grow(root: Path, tmp_path: Path, device: torch.device) -> None:
    step, feed = made("fasterrcnn_resnet50_fpn", root, tmp_path, device)
    with open_loader("dali-gpu", feed) as loader:
        used: list[int] = []
        for epoch in range(8):
            batches = iter(loader.batches(epoch, 0))
            for _ in range(feed.plan.steps()):
                step(batches, lr=1e-5, epoch=epoch, position=0)
            torch.cuda.synchronize(device)
            used.append(torch.cuda.memory_allocated(device))
        assert max(used[4:]) <= max(used[:4]) * 1.02, used
