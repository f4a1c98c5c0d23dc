"""Every loader places and distorts images of different sizes as Pillow and NumPy do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts import Feed, Pixels
from dataset.stores.folder import Folder
from plan.boxes import DetectionPlan, DetectionPolicy
from tests.conformance import pictures, placed
from tests.conformance.placed import (
    KINDS,
    epoch_is_the_plans,
    feed_of,
)
from tests.conformance.scenes import Backend, Scene

POLICIES = {
    "flip": DetectionPolicy(augment="flip", size=120, longer=200, flip=0.5),
    "lsj": DetectionPolicy(augment="lsj", size=128, longer=200, flip=0.5),
    "ssd": DetectionPolicy(augment="ssd", size=100, flip=0.5),
}
"""Policies of the recipes, smaller; multiscale and ssdlite draw as flip and ssd do."""


def tolerance(backend: Backend, kind: str) -> float:
    """Contrast and saturation multiply a difference by 2.25 at most; of a small image edges count more."""
    return (backend.pixel_difference + 0.2) * (2.25 if kind in ("colour", "all") else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_the_plans(
    backend: Backend, photographs: Scene, kind: str
) -> None:
    """An epoch, a resume of another, and the first once more, all by one loader, of 0 to 3 workers."""
    feed = feed_of(photographs, kind, backend.device, workers=KINDS.index(kind) % 4)
    asked = [(0, 0), (1, 7), (0, 0)]
    assert (
        epoch_is_the_plans(
            backend.open, feed, photographs, tolerance(backend, kind), asked
        )
        == set()
    )


@pytest.mark.parametrize("kind", ["sizes", "all"])
def test_damage_among_places(backend: Backend, damaged: Scene, kind: str) -> None:
    feed = feed_of(damaged, kind, backend.device)
    bad = {
        sample
        for sample, content in enumerate(damaged.bytes_of)
        if pictures.pil(content) is None
    }
    assert len(bad) >= 3
    assert (
        epoch_is_the_plans(
            backend.open,
            feed,
            damaged,
            tolerance(backend, kind),
            [(0, 0), (0, 3), (1, 0)],
        )
        == bad
    )


@pytest.mark.parametrize("augment", POLICIES)
def test_the_plan_of_detectors(backend: Backend, coco: Scene, augment: str) -> None:
    plan = DetectionPlan.of(coco.manifest, POLICIES[augment], seed=3, batch_size=4)
    feed = Feed(
        plan=plan,
        source=Folder(coco.manifest, 0.0),
        columns=coco.manifest,
        targets=placed.packed,
        pixels=Pixels(dtype=backend.dtype),
        device=backend.device,
        workers=2,
    )
    allowed = tolerance(backend, "colour" if augment == "ssd" else "places")
    epoch_is_the_plans(backend.open, feed, coco, allowed, [(1, 8)])
    epoch_is_the_plans(
        backend.open, replace(feed, plan=replace(plan, training=False)), coco, allowed
    )
