"""Bundles of micro-batches: a loader gives the same batches, bit for bit, whatever it works on at once."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch, Feed, do_nothing
from saturate.loaders import _bundles, open_loader
from saturate.plan import bundles
from saturate.plan.augment import Augment, Auto, Erase
from saturate.plan.images import ImagePlan, ImagePolicy
from saturate.plan.mixing import Mixing
from saturate.tasks.classification import Classification
from tests.conformance.pictures import jpeg, photograph
from tests.conformance.scenes import Scene, scene

SAMPLES = 75
"""Images: bundles of 5 micro-batches of 2 do not divide them."""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Images, of which the first four were damaged since they were scanned: each rank has some of them."""
    root = tmp_path_factory.mktemp("bundles")
    made = scene(
        root, {f"{at:03d}": jpeg(photograph(at, 40, 48)) for at in range(SAMPLES)}
    )
    for path in [path for path in sorted(made.folder.rglob("*")) if path.is_file()][:4]:
        data = path.read_bytes()
        path.write_bytes(data[:200] + bytes(len(data) - 200))
    return made


def feed(pictures: Scene, *, training: bool) -> Feed:
    labels = np.arange(SAMPLES) % 5
    task = Classification(
        labels, mixing=Mixing(mixup=0.8, cutmix=1.0) if training else Mixing()
    )
    augment = Augment(
        (
            Auto(auto_augment="rand-m9-mstd0.5-inc1"),
            Erase(erase=0.5, erase_mode="pixel"),
        )
    )
    policy = ImagePolicy(
        window="random-resized", image_size=32, flip=0.5, augment=augment
    )
    if not training:
        policy = ImagePolicy(window="center", image_size=32)
    # the second of two ranks
    plan = ImagePlan(
        pictures.manifest,
        policy,
        seed=5,
        batch_size=2,
        training=training,
        world_size=2,
        rank=1,
    )
    return replace(pictures.feed(), plan=plan, targets=task.targets)


def test_a_bundle_has_no_more_pixels_than_128_images() -> None:
    """Four pairs of 100 x 100 and 200 x 200 pixels are 200,000, and 128 images of 224 x 224 are 32 times that."""
    spec = SimpleNamespace(
        canvas=(100, 100), scale=2, rows=4, filled=True, varies=False, frames=0
    )
    plan: Any = SimpleNamespace(
        batches=spec, steps=lambda: 10**6, global_batch_size=spec.rows
    )
    assert bundles.count(plan, 1000, 1) == 128 * 224 * 224 // 200_000


@pytest.mark.parametrize(
    ("name", "training"),
    [("torchvision", True), ("dali-cpu", False), ("dali-fed", True)],
)
def test_batches_are_those_of_a_loader_without_bundles(
    name: str, training: bool, pictures: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = feed(pictures, training=training)
    if name.startswith("dali"):
        pytest.importorskip("nvidia.dali")
    monkeypatch.setattr(bundles, "LEAST_BUNDLES", 1)
    found: dict[int, list[dict[str, Any]]] = {}
    # bundles of 5 micro-batches, of which the last one has fewer
    for rows in (10, 1):
        monkeypatch.setattr(bundles, "ROWS", rows)
        with open_loader(name, its) as loader:
            assert isinstance(loader, _bundles.Bundles) == (rows > 1)
            # an epoch that was begun, and one that is abandoned
            found[rows] = [copied(batch) for batch in loader.batches(1, 8)]
            found[rows] += map(copied, islice(loader.batches(2, 0), 3))
    assert len(found[10]) == len(found[1]) > 18
    assert any(batch["failed"] for batch in found[1])
    torch.testing.assert_close(found[10], found[1], rtol=0, atol=0)


def copied(batch: Batch) -> dict[str, Any]:
    """A batch is the loader's once the next one is asked for."""
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    found = asdict(replace(batch, launched=do_nothing))
    del found["launched"]
    return found
