"""Every loader places and distorts images of different sizes as Pillow and NumPy do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from saturate.contracts import Feed, Pixels
from saturate.dataset.stores.folder import Folder
from saturate.plan.boxes import DetectionPlan, DetectionPolicy
from tests.conformance import pictures, placed
from tests.conformance.placed import epoch_is_the_plans
from tests.conformance.scenes import Backend, Scene

POLICIES = {
    "flip": DetectionPolicy(augment="flip", size=120, longer=200, flip=0.5),
    "lsj": DetectionPolicy(augment="lsj", size=128, longer=200, flip=0.5),
    "ssd": DetectionPolicy(augment="ssd", size=100, flip=0.5),
}
"""Policies of the recipes, smaller; multiscale and ssdlite draw as flip and ssd do."""


@pytest.mark.parametrize(
    ("augment", "of"), [("flip", "photographs"), ("lsj", "damaged"), ("ssd", "coco")]
)
def test_every_row_is_the_plans(
    backend: Backend, augment: str, of: str, request: pytest.FixtureRequest
) -> None:
    """An epoch, a resume of another, and the first once more, all by one loader; and a validation."""
    scene: Scene = request.getfixturevalue(of)
    plan = DetectionPlan(
        scene.manifest,
        POLICIES[augment],
        seed=3,
        batch_size=4,
        keep_empty=of != "coco",
    )
    feed = Feed(
        plan=plan,
        source=Folder(scene.manifest, 0.0),
        columns=scene.manifest,
        targets=placed.packed,
        pixels=Pixels(dtype=backend.dtype),
        device=backend.device,
        workers=2,
    )
    bad = {
        sample
        for sample, content in enumerate(scene.bytes_of)
        if pictures.pil(content) is None
    }
    assert (len(bad) >= 3) == (of == "damaged")
    # contrast and saturation multiply a difference by 2.25 at most; of a small image edges count more
    allowed = (backend.pixel_difference + 0.2) * (2.25 if augment == "ssd" else 1)
    asked = [(0, 0), (1, 7), (0, 0)]
    assert epoch_is_the_plans(backend.open, feed, scene, allowed, asked) == bad
    validation = replace(feed, plan=replace(plan, training=False))
    assert epoch_is_the_plans(backend.open, validation, scene, allowed) == bad
