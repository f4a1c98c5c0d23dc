"""The step as a CUDA graph: the numbers of eager steps, and eager where it cannot be one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch, Task, UserError
from saturate.engine import graphed
from saturate.engine.checkpoint import load_optimizer
from saturate.engine.distributed import ProcessWorld
from saturate.engine.precision import DTYPES
from saturate.engine.step import Step
from saturate.models import classification as registry
from saturate.models import detection
from saturate.plan.targets import IGNORE, padded
from saturate.report.ceilings import compute_ceiling
from saturate.settings.optimisation import Optimisation
from saturate.tasks.classification import Classification
from saturate.tasks.detection import Detection
from saturate.tasks.distillation import Distilled
from tests.unit.steps import composed

CLASSES = 5
BATCH = 8
SIDE = 64
PLACES = 93


def made(
    world: ProcessWorld,
    arch: str | torch.nn.Module,
    precision: str = "fp16",
    *,
    task: Task | None = None,
    **settings: Any,
) -> Step:
    """Make a step as train.py composes it."""
    torch.manual_seed(0)
    module = arch
    if isinstance(arch, str):
        module, _ = registry.build(arch, classes=CLASSES, shape=(2, 3, SIDE, SIDE))
    assert isinstance(module, torch.nn.Module)
    module = module.to(world.device).to(memory_format=torch.channels_last).train()
    optimisation = Optimisation(**{"lr": 0.01} | settings)
    task = task or Classification(np.arange(BATCH) % CLASSES)
    step = composed(
        module, task, optimisation, precision=precision, device=world.device
    )
    step.world = world
    return step


def batch_of(
    number: int, precision: str, device: torch.device, side: int = SIDE
) -> Batch:
    """Return a batch at memory of its own; of every third, two rows are padding."""
    generator = torch.Generator(device).manual_seed(number)
    dtype = DTYPES[precision]
    images = torch.randn(BATCH, 3, side, side, generator=generator, device=device).to(
        dtype
    )
    valid = torch.arange(BATCH, device=device) < (
        BATCH - 2 if number % 3 == 2 else BATCH
    )
    labels = (torch.arange(BATCH, device=device) + number) % CLASSES
    return Batch(
        images=images.to(memory_format=torch.channels_last),
        sizes=torch.full((BATCH, 2), side, device=device),
        targets={"labels": torch.where(valid, labels, IGNORE)},
        valid=valid,
        ids=np.arange(BATCH) + BATCH * number,
    )


def trained(
    step: Step,
    precision: str,
    *,
    steps: int = 12,
    first: int = 0,
    of: Callable[[int, str, torch.device], Batch] = batch_of,
) -> np.ndarray:
    """Return the outcomes of some steps, float32 [steps, 4]."""
    outcomes = []
    for at in range(first, first + steps):
        micros = [
            of(at * step.accumulate + k, precision, step.world.device)
            for k in range(step.accumulate)
        ]
        outcome = step(
            iter(micros),
            lr=0.01 / (1 + at),
            epoch=0,
            position=at,
            want_norm=at % 4 == 0,
        )
        outcomes.append(outcome.clone())  # the next replay writes there
    return torch.stack(outcomes).cpu().numpy()


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sgd": ("resnet18", "fp16", {}),
    "clipped": ("resnet18", "fp16", {"clip_grad_norm": 0.5}),
    "accumulated": ("resnet18", "fp16", {"accumulate": 3}),
    "adamw": ("resnet18", "fp16", {"optimizer": "adamw", "lr": 1e-3}),
    "bf16": ("resnet18", "bf16", {}),
    "fp32": ("resnet18", "fp32", {"accumulate": 2, "clip_grad_norm": 1.0}),
    "dropout": ("mobilenet_v3_small", "fp16", {}),
    "depth": ("efficientnet_b0", "fp16", {"accumulate": 2}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("deterministic")
def test_bit_for_bit(case: str, world: ProcessWorld) -> None:
    """Losses, norms and loss scales of graphs are those of eager steps, and so are weights and statistics.

    Dropout and stochastic depth take their masks from the step's key in both.
    """
    arch, precision, settings = CASES[case]
    eager = made(world, arch, precision, **settings)
    expected = trained(eager, precision)
    step = made(world, arch, precision, **settings)
    before = [tensor.detach().clone() for tensor in step.state_tensors()]
    why, split = graphed.capture(step, [batch_of(99, precision, world.device)], world)
    assert not why
    assert {"forward", "backward", "update"} <= split.keys()
    assert all(
        torch.equal(a, b) for a, b in zip(step.state_tensors(), before, strict=True)
    )
    found = trained(step, precision, steps=6)
    compute_ceiling(
        step,
        [batch_of(7, precision, world.device)],
        accumulate=step.accumulate,
        world=world,
        synchronise=world.synchronise,
    )
    found = np.concatenate([found, trained(step, precision, steps=6, first=6)])
    assert len(np.unique(found[:, 0])) > 6, "batches differ"
    np.testing.assert_array_equal(found, expected)
    for a, b in zip(step.state_tensors(), eager.state_tensors(), strict=True):
        assert torch.equal(a, b)
    step.forget()


@pytest.mark.usefixtures("deterministic")
def test_a_student_beside_its_teacher(world: ProcessWorld) -> None:
    teacher, _ = registry.build("resnet18", classes=CLASSES, shape=(2, 3, SIDE, SIDE))
    teacher = teacher.to(world.device).requires_grad_(False).eval()
    before = [tensor.clone() for tensor in teacher.state_dict().values()]
    task = Distilled(Classification(np.arange(BATCH) % CLASSES), teacher, 0.5, 2.0)
    expected = trained(made(world, "resnet18", task=task), "fp16")
    step = made(world, "resnet18", task=task)
    why, _ = graphed.capture(step, [batch_of(99, "fp16", world.device)], world)
    assert not why
    np.testing.assert_array_equal(trained(step, "fp16"), expected)
    alone = trained(made(world, "resnet18"), "fp16")
    assert not np.array_equal(alone[:, 0], expected[:, 0])
    for a, b in zip(teacher.state_dict().values(), before, strict=True):
        assert torch.equal(a, b)
    step.forget()


def boxed(number: int, precision: str, device: torch.device) -> Batch:
    """Return a batch for an SSD, whose first image has no box. Of every four batches one has none at all, and
    one has an image with as many as COCO's fullest."""
    rng = np.random.default_rng(number)
    counts = rng.integers(1, 12, BATCH) * (number % 4 != 2)
    counts[0] = 0
    if number % 4 == 1:
        counts[1] = PLACES
    # axes: box, corner, x and y
    corners = np.sort(rng.random((counts.sum(), 2, 2)) * 298, axis=1)
    corners[:, 1] += 2
    packed = {
        "offsets": np.append(0, np.cumsum(counts)),
        "boxes": corners.reshape(-1, 4).astype(np.float32),
        "labels": rng.integers(1, 91, len(corners)),
    }
    host = padded(packed, PLACES)
    targets = {name: torch.from_numpy(one).to(device) for name, one in host.items()}
    return replace(batch_of(number, precision, device, 300), targets=targets, host=host)


@pytest.mark.parametrize(
    ("arch", "settings"),
    [
        ("ssd300_vgg16", {}),
        ("ssd300_vgg16", {"accumulate": 2}),
        ("ssdlite320_mobilenet_v3_large", {"ema": 0.9}),
    ],
)
@pytest.mark.usefixtures("deterministic")
def test_ssds_bit_for_bit(
    arch: str, settings: dict[str, Any], world: ProcessWorld
) -> None:
    """Whatever boxes a batch has; an eager step looks at no more places than there are boxes. The first steps
    overflow."""
    outcomes = []
    steps = []
    for captured in (False, True):
        torch.manual_seed(0)
        module, _ = detection.build(arch, classes=91, shape=(2, 3, 300, 300))
        columns: Any = None
        task = Detection(columns, places=PLACES)
        step = made(
            world, module, task=task, nesterov=False, clip_grad_norm=1.0, **settings
        )
        step._loss_scale().fill_(2.0**24)
        if captured:
            noise = [boxed(99, "fp16", world.device)]
            assert graphed.capture(step, noise, world)[0] == ""
        outcomes.append(trained(step, "fp16", steps=20, of=boxed))
        steps.append(step)
    eager, found = outcomes
    assert np.isfinite(found[:, :2]).all() and found[-1, 3] < found[0, 3]
    np.testing.assert_array_equal(found, eager)
    for tensors in zip(*(step.state_tensors() for step in steps), strict=True):
        assert torch.equal(*tensors)
    steps[1].forget()


@pytest.mark.usefixtures("deterministic")
def test_a_resumed_run_goes_on_with_the_same_masks(
    world: ProcessWorld, tmp_path: Path
) -> None:
    """A graph is captured anew behind a checkpoint, whose state it then reads."""
    settings: dict[str, Any] = {"optimizer": "adamw", "lr": 1e-3}
    expected = trained(made(world, "mobilenet_v3_small", **settings), "fp16")
    noise = [batch_of(99, "fp16", world.device)]
    first = made(world, "mobilenet_v3_small", **settings)
    assert not graphed.capture(first, noise, world)[0]
    found = [trained(first, "fp16", steps=6)]
    content: dict[str, Any] = {"config": {}, "model": first.module.state_dict()}
    content["optimizer"] = first.optimizer.state_dict()
    content["scaler"] = first.scaler.state_dict()
    torch.save(content, tmp_path / "last.pt")
    first.forget()
    content = torch.load(tmp_path / "last.pt", map_location="cpu")
    again = made(world, "mobilenet_v3_small", **settings)
    again.module.load_state_dict(content["model"])
    load_optimizer(again.optimizer, again.scaler, content, "adamw")
    assert not graphed.capture(again, noise, world)[0]
    found.append(trained(again, "fp16", steps=6, first=6))
    np.testing.assert_array_equal(np.concatenate(found), expected)
    again.forget()


@pytest.mark.usefixtures("deterministic")
def test_images_that_grow_have_a_graph_a_size(world: ProcessWorld) -> None:
    """Steps of two sizes, in turns, are those of eager ones, and the smaller one's graph takes little more
    memory: all lie in one pool.
    """
    sides = (32, SIDE)

    def outcomes(step: Step) -> np.ndarray:
        batches = [
            batch_of(at, "fp16", world.device, sides[at // 2 % 2]) for at in range(8)
        ]
        found = [
            step(
                iter([batch]), lr=0.01, epoch=0, position=at, want_norm=at % 3 == 0
            ).clone()
            for at, batch in enumerate(batches)
        ]
        return torch.stack(found).cpu().numpy()

    def pool_bytes(*sides: int) -> int:
        step = made(world, "resnet18")
        noise = [batch_of(99, "fp16", world.device, side) for side in sides]
        assert not graphed.capture(step, noise, world)[0]
        assert isinstance(step.graphs, graphed.Graphs)
        found = sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot(step.graphs._pool.id)
        )
        if len(sides) > 1:
            np.testing.assert_array_equal(outcomes(step), expected)
        step.forget()
        return int(found)

    expected = outcomes(made(world, "resnet18"))
    assert pool_bytes(*sides) <= pool_bytes(SIDE) + pool_bytes(32) // 2


class Waits(torch.nn.Module):
    """Reads a number from the device in the middle of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(
            torch.nn.functional.dropout(images.float().mean((2, 3)))
        )
        return found * (1.0 if found.sum().item() < 1e9 else 0.5)


def test_what_cannot_be_captured_trains_on_as_before(world: ProcessWorld) -> None:
    torch.manual_seed(0)
    module, said = Waits(), "test_graphs.py, line"
    state = deepcopy(module.state_dict())
    expected = trained(made(world, module), "fp16")
    module.load_state_dict(state)
    step = made(world, module)

    def noise() -> list[Batch]:
        return [batch_of(99, "fp16", world.device)]

    outcome = graphed.prepare(step, noise, world, "auto", one_shape=True)
    assert said in outcome.why_not
    assert step.graphs is None
    np.testing.assert_array_equal(trained(step, "fp16"), expected)
    with pytest.raises(UserError, match=r"--graphs true: .*--graphs false"):
        graphed.prepare(made(world, Waits()), noise, world, True, one_shape=True)
