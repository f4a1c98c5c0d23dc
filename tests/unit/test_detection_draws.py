"""How a detector's images are framed is torchvision's, and places are whole pixels."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from plan.boxes import DetectionPolicy, canvas

SIDES = st.integers(8, 300)


def test_outputs_are_as_large_as_torchvisions_detectors_make_them() -> None:
    rng = np.random.default_rng(0)
    heights, widths = rng.integers(20, 700, (2, 80))
    heights[:6], widths[:6] = (
        (480, 640, 427, 375, 640, 333),
        (640, 480, 640, 500, 640, 500),
    )
    for size, longer, count in (
        (80, 133, 80),
        (97, 161, 80),
        (64, 64, 80),
        (800, 1333, 12),
    ):
        theirs = GeneralizedRCNNTransform(size, longer, [0.0] * 3, [1.0] * 3).eval()
        policy = DetectionPolicy(augment="flip", size=size, longer=longer)
        sizes = policy.outputs(0, 0, np.arange(count), heights[:count], widths[:count])
        for h, w, got in zip(heights, widths, sizes.tolist(), strict=False):
            assert list(theirs.resize(torch.zeros(1, h, w))[0].shape[1:]) == got


@settings(max_examples=25)
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=9))
def test_a_canvas_is_as_large_as_torchvisions(sizes: list[tuple[int, int]]) -> None:
    theirs = GeneralizedRCNNTransform(800, 1333, [0.0] * 3, [1.0] * 3)
    images = [torch.empty(1, h, w) for h, w in sizes]
    assert canvas(np.array(sizes)) == tuple(theirs.batch_images(images).shape[2:])
