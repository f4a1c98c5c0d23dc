"""The plan of detection: groups by size, so that padding stays small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from saturate.contracts import UserError
from saturate.models import Native
from saturate.plan.boxes import DetectionPlan, DetectionPolicy, padding
from saturate.settings.augmentation import AugmentationSettings
from saturate.settings.detection import Detection
from saturate.tasks._plans import detection_policies
from tests.conformance.plans import SHORT_SIDES, boxed
from tests.unit.annotated import columns

GREY = (0.5, 0.5, 0.5)
FLIP = DetectionPolicy(augment="flip", size=800, longer=1333, flip=0.5)
MULTISCALE = DetectionPolicy(
    augment="multiscale", size=800, longer=1333, short_sides=SHORT_SIDES, flip=0.5
)
LSJ = DetectionPolicy(augment="lsj", size=1024, longer=1333, flip=0.5)
SSD = DetectionPolicy(augment="ssd", size=300, flip=0.5)


def plan(n: int, **numbers: Any) -> DetectionPlan:
    return DetectionPlan(boxed(n), FLIP, seed=3, batch_size=n, **numbers)


def test_the_largest_shape_holds_every_batch() -> None:
    box = [(0.0, 0.0, 9.0, 9.0)]
    both = columns([(360, 640), (640, 360)], [box] * 2)
    landscapes = columns([(480, 640), (400, 640)], [box] * 2)
    for source, policy, shape in (
        (both, FLIP, (1344, 1344)),
        (both, MULTISCALE, (1344, 1344)),
        (both, replace(LSJ, size=1000), (1024, 1024)),
        (both, SSD, (300, 300)),
        (landscapes, FLIP, (800, 1280)),
    ):
        here = DetectionPlan(source, policy, seed=1, batch_size=1)
        assert here.batches.canvas == shape


def test_policies_read_their_settings() -> None:
    made, stretched = Native(640, GREY, GREY, 1333), Native(300, GREY, GREY)
    settings = AugmentationSettings(flip=0.25)
    assert detection_policies(settings, Detection(), made)[0] == DetectionPolicy(
        augment="flip", size=640, longer=1333, flip=0.25
    )
    many = Detection(augment="multiscale", short_sides=(100, 200), longer_side=1000)
    assert detection_policies(settings, many, made)[0] == DetectionPolicy(
        augment="multiscale", size=640, longer=1000, short_sides=(100, 200), flip=0.25
    )
    policies = detection_policies(settings, Detection(augment="ssd"), stretched)
    assert policies[0] == DetectionPolicy(augment="ssd", size=300, flip=0.25)
    assert policies[1] == DetectionPolicy(augment="flip", size=300)
    assert policies[0].operates and not policies[1].operates


def test_padding_is_what_no_image_covers() -> None:
    """640 x 360 pixels become 1333 x 749 as in torchvision, on a canvas of multiples of 32."""
    source = columns([(360, 640)], [[(0.0, 0.0, 9.0, 9.0)]])
    batches = DetectionPlan(source, FLIP, seed=1, batch_size=1).rows(0, 0)
    assert padding(batches) == pytest.approx(1 - 1333 * 749 / (1344 * 768))
    assert padding([]) == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: DetectionPolicy(augment="ssd", size=800, longer=1333),
            "--augment ssd stretches images",
        ),
        (lambda: plan(0).require_a_step(), "none of the 0 training images has a box"),
    ],
)
def test_mistakes_are_one_line(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_validation_is_by_size() -> None:
    sizes = plan(61, training=False).rows(0, 0)[0].sizes.tolist()
    assert all((a[0] > a[1]) <= (b[0] > b[1]) for a, b in pairwise(sizes)), (
        "upright ones last"
    )
