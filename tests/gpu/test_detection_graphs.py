"""Steps of SSDs as CUDA graphs: the numbers of eager ones, whatever boxes a batch has, and no slower."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torchvision.models.detection.image_list import ImageList

from contracts import Array, Batch
from engine import graphed
from engine.distributed import ProcessWorld
from engine.precision import DTYPES
from engine.step import Step
from models import _ssd
from models import detection as registry
from plan.targets import padded
from settings.optimisation import Optimisation
from tasks.detection import Detection
from tests.unit.steps import composed
from tests.unit.test_ssd import padded_from

SSD = "ssd300_vgg16"
CLASSES = 91
PLACES = 93
"""Boxes of the fullest image, as in COCO."""
STEPS = 20


def test_the_compiled_kernel_finds_what_torch_does(device: torch.device) -> None:
    """Bit for bit, where overlaps are equal too, among the default boxes of SSD300."""
    stock = torchvision.models.get_model(SSD, weights=None, weights_backbone=None)
    stages = [torch.empty(1, 1, side, side) for side in (38, 19, 10, 5, 3, 1)]
    images = ImageList(torch.empty(1, 3, 300, 300), [(300, 300)])
    among = stock.anchor_generator(images, stages)[0]
    assert len(among) == 8732 and _ssd._kernel(device) is not None
    for seed in range(4):
        boxes, there = padded_from(seed, among, 300)
        wanted = _ssd.match(among, boxes, there, 0.5)
        found = _ssd.match(among.to(device), boxes.to(device), there.to(device), 0.5)
        assert torch.equal(found.cpu(), wanted)


def made(
    world: ProcessWorld, arch: str, batch_size: int, precision: str, **settings: Any
) -> Step:
    """Make a step as train.py composes it."""
    torch.manual_seed(0)
    side = registry.native(arch).size
    shape = (batch_size, 3, side, side)
    module, _ = registry.build(arch, classes=CLASSES, shape=shape)
    step = composed(
        module.to(world.device).to(memory_format=torch.channels_last).train(),
        Detection(SimpleNamespace(), places=PLACES),
        Optimisation(**{"lr": 1e-4, "nesterov": False} | settings),
        precision=precision,
        device=world.device,
    )
    step.world = world
    return step


def batch_of(number: int, step: Step, side: int, batch_size: int) -> Batch:
    """Return a batch whose first image has no box. Of every four, none has one in one, and an image has
    all PLACES in another; of every five, an image of one could not be decoded."""
    device = step.world.device
    rng = np.random.default_rng(number)
    counts = rng.integers(1, 12, batch_size) * (number % 4 != 2)
    counts[0] = 0
    if number % 4 == 1:
        counts[1] = PLACES
    corners = np.sort(rng.random((counts.sum(), 2, 2)) * (side - 2), axis=1)
    corners[:, 1] += 2  # with area
    packed: dict[str, Array] = {
        "offsets": np.concatenate([[0], np.cumsum(counts)]),
        "boxes": corners.reshape(-1, 4).astype(np.float32),
        "labels": rng.integers(1, CLASSES, counts.sum()),
    }
    host = padded(packed, PLACES)
    valid = np.ones(batch_size, bool)
    valid[-1] = number % 5 != 4
    generator = torch.Generator(device).manual_seed(number)
    shape = (batch_size, 3, side, side)
    images = torch.randn(shape, generator=generator, device=device)
    return Batch(
        images=images.to(DTYPES[step.precision], memory_format=torch.channels_last),
        sizes=torch.full((batch_size, 2), side, device=device),
        targets={name: torch.tensor(one).to(device) for name, one in host.items()},
        valid=torch.tensor(valid).to(device),
        ids=np.arange(batch_size),
        host=host,
    )


def trained(step: Step, side: int, *, batch_size: int = 4) -> np.ndarray:
    """Return the outcomes of some steps, float32 [STEPS, 6]."""
    outcomes = []
    for at in range(STEPS):
        micros = [
            batch_of(at * step.accumulate + k, step, side, batch_size)
            for k in range(step.accumulate)
        ]
        outcome = step(
            iter(micros), lr=1e-4, epoch=0, position=at, want_norm=at % 4 == 0
        )
        outcomes.append(outcome.clone())  # the next replay writes there
    return torch.stack(outcomes).cpu().numpy()


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fp16": (SSD, "fp16", {}),
    "accumulated": (SSD, "fp16", {"accumulate": 2}),
    "clipped": (SSD, "bf16", {"clip_grad_norm": 1.0, "accumulate": 2}),
    "fp32": (SSD, "fp32", {}),
    "ssdlite": ("ssdlite320_mobilenet_v3_large", "fp16", {"ema": 0.9}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("deterministic")
def test_bit_for_bit(case: str, world: ProcessWorld) -> None:
    """Losses, norms, loss scales and weights are those of eager steps, those that overflow among them."""
    arch, precision, settings = CASES[case]
    side = registry.native(arch).size

    def step_of_case() -> Step:
        step = made(world, arch, 4, precision, **settings)
        if step.scaler.is_enabled():
            step._loss_scale().fill_(2.0**24)  # the first steps overflow
        return step

    eager = step_of_case()
    expected = trained(eager, side)
    step = step_of_case()
    why, _ = graphed.capture(step, [batch_of(99, step, side, 4)], world)
    assert why == ""
    found = trained(step, side)
    assert isinstance(step.graphs, graphed.Graphs)
    assert np.isfinite(found[:, :2]).all(), found
    if precision == "fp16":
        assert found[-1, 3] < found[0, 3], "no step overflowed"
    np.testing.assert_array_equal(found, expected)
    for a, b in zip(step.state_tensors(), eager.state_tensors(), strict=True):
        assert torch.equal(a, b)
    step.forget()


@pytest.mark.alone
@pytest.mark.parametrize("batch_size", [4, 8, 32])
def test_a_graph_is_no_slower(batch_size: int, world: ProcessWorld) -> None:
    """Prints the rates, `-s` shows them: steps on a resident batch, in turns."""
    side = registry.native(SSD).size
    rates: dict[str, list[float]] = {"eager": [], "graphs": []}
    steps = {name: made(world, SSD, batch_size, "fp16") for name in rates}
    batch = batch_of(0, steps["eager"], side, batch_size)
    why, _ = graphed.capture(steps["graphs"], [batch], world)
    assert why == ""
    for _ in range(6):
        for name, step in steps.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for at in range(20):
                step(itertools.repeat(batch, 1), lr=1e-8, epoch=0, position=at)
            torch.cuda.synchronize()
            rates[name].append(20 * batch_size / (time.perf_counter() - began))
    eager, graphs = (float(np.median(rates[name][1:])) for name in rates)
    print(
        f"SSD300, fp16, batch {batch_size}: {eager:,.0f} img/s eager, {graphs:,.0f} as graphs, "
        f"{graphs / eager:.2f} times"
    )
    assert graphs > 0.97 * eager
    steps["graphs"].forget()
