"""Super-resolution on a GPU: batches of pairs, a step as a graph, and figures that are the CPU's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import Batch, Pixels
from engine import graphed
from engine.distributed import ProcessWorld
from engine.step import Step
from loaders import _postprocess, first_batch, open_loader
from models import superres as registry
from plan import draws
from plan.patches import HIGH
from report.phases import Phases
from settings.optimisation import Optimisation
from tasks.superres import Fidelity, Superres
from tests.gpu.test_rcnn import no_waits
from tests.unit import test_finish_kernel
from tests.unit.superres_files import CPU, feed_of, opened, write

PLAIN: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def test_batches_are_those_of_the_cpu(device: torch.device, tmp_path: Path) -> None:
    """Training, and a validation whose images have other sizes each time: memory is used again."""
    for split, patch, size in (("train", 16, 4), ("val", None, 1)):
        write(tmp_path / "data" / split, 9)
        feed = feed_of(
            opened(tmp_path / "data", split), patch=patch, batch_size=size, workers=2
        )
        feed = replace(feed, pixels=Pixels(**PLAIN))
        with open_loader("paired", feed) as loader:
            expected = [
                (batch.images, batch.targets[HIGH]) for batch in loader.batches(0, 0)
            ]
        with open_loader("paired", replace(feed, device=device)) as loader:
            for batch, (low, high) in zip(loader.batches(0, 0), expected, strict=True):
                torch.testing.assert_close(batch.images.cpu(), low, rtol=0, atol=1e-6)
                torch.testing.assert_close(
                    batch.targets[HIGH].cpu(), high, rtol=0, atol=1e-6
                )


def test_the_kernel_that_finishes_does_what_torch_does(device: torch.device) -> None:
    """They agree to the bit, since it looks up what torch makes of each level; once built it never waits."""
    assert _postprocess._kernel(device, torch.float16) is not None
    test_finish_kernel.check_they_are_the_same(test_finish_kernel.differences(device))
    levels = torch.full(
        (test_finish_kernel.BATCH, 19, 19, 3), 7, dtype=torch.uint8, device=device
    )
    rows = test_finish_kernel.rows_of((19, 19))
    finish = _postprocess.Finish(test_finish_kernel.feed(device, "float16"))
    finish(levels, rows, rows.valid)
    with no_waits():
        finish(levels, rows, rows.valid)


@pytest.mark.parametrize("arch", ["srcnn", "espcn", "edsr_baseline"])
def test_a_graph_has_the_losses_of_eager_steps(
    arch: str, device: torch.device, tmp_path: Path
) -> None:
    write(tmp_path / "data/train", 8)
    split = opened(tmp_path / "data", patches=4)
    feed = replace(
        feed_of(split, workers=2),
        pixels=Pixels(**PLAIN, dtype="float16"),
        device=device,
    )
    world = ProcessWorld(device)
    deterministic = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True
    )

    def losses(graphs: bool) -> list[float]:
        torch.manual_seed(0)
        module, _ = registry.build(arch, scale=2, shape=(4, 3, 8, 8))
        loss = "l1" if arch.startswith("edsr") else "mse"
        step = Step(
            module=module.to(device).to(memory_format=torch.channels_last).train(),
            task=Superres(scale=2, loss=loss, psnr="y", shave=2, samples=32),
            optimisation=Optimisation(optimizer="adamw", lr=1e-3),
            precision="fp16",
            world=world,
            draw_key=partial(draws.key, 0, draws.Purpose.MODEL),
            phases=Phases(device),
        )
        assert not graphs or graphed.capture(step, [first_batch(feed)], world)[0] == ""
        with open_loader("paired", feed) as loader:
            batches = iter(loader.batches(0, 0))
            found = [
                float(step(batches, lr=1e-3, epoch=0, position=position)[0])
                for position in range(8)
            ]
        step.forget()
        return found

    with world.own_stream(), deterministic:
        eager = losses(graphs=False)
        assert losses(graphs=True) == eager and len(set(eager)) == 8


def test_figures_are_those_of_the_cpu(device: torch.device, tmp_path: Path) -> None:
    write(tmp_path / "data/val", 3)
    feed = feed_of(opened(tmp_path / "data", "val"), patch=None, batch_size=1)
    feed = replace(feed, pixels=Pixels(**PLAIN))

    def figures(where: torch.device) -> dict[str, Any]:
        metric = Fidelity(device=where, scale=2, of_luma=True, shave=2, samples=3)
        with open_loader("paired", feed) as loader:
            for batch in loader.batches(0, 0):
                metric.update(
                    (batch.targets[HIGH] * 0.9).to(where), moved(batch, where)
                )
        found = metric.result(ProcessWorld(CPU))
        found.pop("extras")
        return found

    assert figures(device) == pytest.approx(figures(CPU), abs=1e-9)


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on a device."""
    targets = {name: value.to(device) for name, value in batch.targets.items()}
    return replace(
        batch,
        images=batch.images.to(device),
        targets=targets,
        valid=batch.valid.to(device),
    )
