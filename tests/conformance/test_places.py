"""Every loader places and distorts images of different sizes as Pillow and NumPy do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts import Feed, Pixels
from dataset.stores.folder import Folder
from plan.boxes import DetectionPlan, DetectionPolicy
from tests.conformance import placed
from tests.conformance.placed import epoch_is_the_plans
from tests.conformance.scenes import Backend, Scene

POLICIES = {
    "flip": DetectionPolicy(augment="flip", size=120, longer=200, flip=0.5),
    "lsj": DetectionPolicy(augment="lsj", size=128, longer=200, flip=0.5),
    "ssd": DetectionPolicy(augment="ssd", size=100, flip=0.5),
}
"""Policies of the recipes, smaller; multiscale and ssdlite draw as flip and ssd do."""


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
    # of a small image edges count more; contrast and saturation multiply a difference by 2.25 at most
    allowed = (backend.pixel_difference + 0.2) * (2.25 if augment == "ssd" else 1)
    epoch_is_the_plans(backend.open, feed, coco, allowed, [(1, 8), (0, 0)])
    epoch_is_the_plans(
        backend.open, replace(feed, plan=replace(plan, training=False)), coco, allowed
    )
