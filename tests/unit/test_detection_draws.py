"""How a detector's images are framed is torchvision's, and places are whole pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.transforms import v2

from plan import windows
from plan.boxes import DetectionPolicy, canvas, crops_by_overlap
from plan.draws import Purpose, uniforms

SIDES = st.integers(8, 300)
IDS = np.arange(20_000)


def unlike(ours: Any, theirs: Any) -> float:
    """Kolmogorov and Smirnov's distance of two samples, in units of what one in a thousand pairs of the same
    distribution passes.
    """
    ours, theirs = np.sort(np.asarray(ours, float)), np.sort(np.asarray(theirs, float))
    every = np.concatenate([ours, theirs])
    apart = np.abs(
        np.searchsorted(ours, every, "right") / len(ours)
        - np.searchsorted(theirs, every, "right") / len(theirs)
    ).max()
    return float(apart / (1.95 * np.sqrt(1 / len(ours) + 1 / len(theirs))))


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


BOXED = {
    "one large": [[40, 30, 600, 450]],
    "some small": [[10, 10, 160, 150], [300, 200, 480, 390], [500, 400, 520, 470]],
    "large and small": [[100, 50, 420, 400], [600, 10, 630, 40]],
}


@pytest.mark.parametrize("name", BOXED)
def test_crops_are_those_of_random_iou_crop(name: str) -> None:
    torch.manual_seed(0)
    boxes = np.array(BOXED[name], float)
    picture = tv_tensors.Image(torch.empty(3, 480, 640, device="meta"))
    target = tv_tensors.BoundingBoxes(
        torch.tensor(boxes), format="XYXY", canvas_size=(480, 640)
    )
    made = [
        v2.RandomIoUCrop().make_params([picture, target])
        or {"left": 0, "top": 0, "width": 640, "height": 480}
        for _ in range(120)
    ]
    theirs = np.array(
        [[each[key] for key in ("left", "top", "width", "height")] for each in made]
    )
    count = 4000
    which = np.repeat(np.arange(count), len(boxes))
    crops = crops_by_overlap(
        1,
        0,
        IDS[:count],
        np.tile([640, 480], (count, 1)),
        np.tile(boxes, (count, 1)),
        which,
    )
    ours = np.concatenate([crops[:, :2], crops[:, 2:] - crops[:, :2]], axis=1)
    ours, theirs = (
        np.column_stack([each, each[:, 2] / each[:, 3]]) for each in (ours, theirs)
    )
    for one, other in zip(ours.T, theirs.T, strict=True):
        assert unlike(one, other) < 1.2  # 15 comparisons
    ours, theirs = ours[:, :4], theirs[:, :4]
    whole = (ours == [0, 0, 640, 480]).all(axis=1).mean()
    assert whole == pytest.approx(
        (theirs == [0, 0, 640, 480]).all(axis=1).mean(), abs=0.1
    )


def test_large_scale_jitter_is_torchvisions() -> None:
    torch.manual_seed(0)
    picture = tv_tensors.Image(torch.empty(3, 480, 640, device="meta"))
    theirs = np.array(
        [
            v2.ScaleJitter((1024, 1024)).make_params([picture])["size"]
            for _ in range(800)
        ]
    )
    draws = uniforms(1, 0, Purpose.SCALE, IDS, 2)
    regions, inner, place = windows.jittered(
        np.full(20_000, 480), np.full(20_000, 640), draws, size=1024
    )
    shown = (place[:, 2:] - place[:, :2]).astype(float)
    scale = shown / (inner[:, 2:] - inner[:, :2])
    ours = scale * [640, 480]  # of the whole image
    assert (
        unlike(np.rint(ours[:, 1]), theirs[:, 0]) < 1
        and unlike(np.rint(ours[:, 0]), theirs[:, 1]) < 1
    )
    assert (place[:, :2] == 0).all() and (
        shown == np.minimum(np.rint(ours), 1024)
    ).all()
    begin = regions[:, :2] + inner[:, :2]
    cut = ours[:, 0] > 1025
    left = (begin[cut, 0] * scale[cut, 0]) / (ours[cut, 0] - 1024)
    assert unlike(left, np.linspace(0, 1, 1000)) < 1.2, (
        "cut uniformly, but for whole pixels"
    )
