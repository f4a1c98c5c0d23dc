"""A run is steady at once: DALI takes its memory before the first step, and a validation takes a graph's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.max_batch import peak
from saturate.contracts import Batch
from saturate.engine import graphed
from saturate.engine.distributed import ProcessWorld
from saturate.loaders import open_loader
from tests.conformance import pictures
from tests.conformance.scenes import Scene, scanned, scene
from tests.gpu.test_combinations import trained
from tests.gpu.test_graphs import batch_of, made
from tests.gpu.test_graphs import trained as outcomes_of
from tests.gpu.test_memory import device_mib

pytestmark = pytest.mark.alone

GROWTH = 1.05
MIB = 2**20


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of usual sizes, and every sixteenth of 6 megapixels, as train/ and val/."""
    root = tmp_path_factory.mktemp("mixed")
    files = {
        f"{at:03d}": pictures.jpeg(
            pictures.photograph(at, *((2000, 3000) if at % 16 == 15 else (375, 500))),
            quality=85,
        )
        for at in range(192)
    }
    for split in ("train", "val"):
        scene(root / f"of-{split}", files)
        (root / split).symlink_to(root / f"of-{split}" / "data")
    return root


@pytest.fixture(scope="module")
def large(mixed: Path) -> Scene:
    return scanned(mixed / "of-train" / "data", mixed / "manifests")


def test_no_memory_is_taken_later(large: Scene, device: torch.device) -> None:
    """Epochs whose crops are drawn anew take no more memory than the first batch has."""
    feed = large.feed(device, batch_size=32, image_size=224, workers=4)
    with open_loader("dali-gpu", feed) as loader:
        next(iter(loader.batches(0, 0)))
        first = device_mib()
        for epoch in range(4):
            for _ in loader.batches(epoch, 0):
                pass
        last = device_mib()
    assert last <= GROWTH * first


def test_training_and_validation_beside_a_graph(
    mixed: Path, tmp_path: Path, device: torch.device
) -> None:
    """Their memory together, at its peak, is at most 5 % over that of eager steps."""
    flags = "--loader torchvision --arch resnet18 --batch-size 96 --val-batch-size 96"
    more = "--ceilings false --val-every 1 --graphs"
    peaks = {}
    for graphs in ("false", "true"):
        torch.cuda.empty_cache()
        before = device_mib()
        with peak(device, every_s=0.005) as found:
            words = f"{flags} {more} {graphs}".split()
            told = trained(mixed, tmp_path / graphs, *words)
        assert told["graphs"] is (graphs == "true")
        peaks[graphs] = 1024 * max(found) - before
    share = peaks["true"] / peaks["false"]
    assert share <= 1.05, peaks


class Keeps(torch.nn.Module):
    """Makes a tensor in its first validation, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, 5)
        self.kept: torch.Tensor | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(images.float().mean((2, 3)))
        if not self.training and self.kept is None:
            self.kept = torch.full((MIB,), 3.0, device=images.device)
        return (
            found
            if self.training or self.kept is None
            else found + self.kept.mean() - 3.0
        )


def validated(step: graphed.Step, batches: Iterator[Batch]) -> list[float]:
    """Return the sums of outputs of some batches, in the memory that is lent."""
    step.module.eval()
    with (
        step.memory_lent(),
        torch.inference_mode(),
        torch.autocast("cuda", torch.float16),
    ):
        found = [
            float(step.module(batch.images).float().sum())
            for batch in itertools.islice(batches, 3)
        ]
    step.module.train()
    return found


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("net", ["resnet18", "keeps"])
def test_lent_memory_comes_back(net: str, world: ProcessWorld) -> None:
    """Validations between replays change nothing and take nothing; what keeps a tensor goes on eagerly."""
    steps = [made(world, net if net == "resnet18" else Keeps()) for _ in range(2)]
    if net == "keeps":
        steps[1].module.load_state_dict(steps[0].module.state_dict())
    eager, graph = steps
    assert not graphed.capture(graph, [batch_of(99, "fp16", world.device)], world)[0]
    figures: list[list[np.ndarray]] = [[], []]
    for at in range(3):
        for step, told in zip(steps, figures, strict=True):
            told.append(outcomes_of(step, "fp16", steps=4, first=4 * at).ravel())
            told.append(
                np.array(
                    validated(
                        step, (batch_of(50 + k, "fp16", world.device) for k in range(3))
                    )
                )
            )
            assert step.memory_is_back() is (
                net == "resnet18" or at > 0 or step is eager
            )
    expected, found = (np.concatenate(told) for told in figures)
    np.testing.assert_array_equal(found, expected)
    assert (graph.graphs is None) is (net == "keeps")
    graph.forget()
