"""A detector's images are as large as torchvision makes them."""

from __future__ import annotations

import numpy as np
import torch
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from saturate.plan.boxes import DetectionPolicy


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
