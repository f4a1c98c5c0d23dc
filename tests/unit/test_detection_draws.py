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
from plan.boxes import OVERLAPS, DetectionPolicy, canvas, crops_by_overlap
from plan.draws import Purpose, uniforms

SIDES = st.integers(8, 300)
SHORT_SIDES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
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


def test_the_distance_tells_what_differs() -> None:
    rng = np.random.default_rng(0)
    assert (
        unlike(rng.random(20_000), rng.random(500))
        < 1
        < unlike(rng.random(20_000), rng.random(500) ** 1.4)
    )


@pytest.mark.parametrize(("height", "width"), [(480, 640), (333, 500)])
def test_zooms_are_those_of_random_zoom_out(height: int, width: int) -> None:
    torch.manual_seed(0)
    picture = tv_tensors.Image(torch.empty(3, height, width, device="meta"))
    # left top right bottom
    padded = np.array(
        [v2.RandomZoomOut().make_params([picture])["padding"] for _ in range(800)]
    )
    sides = np.full(20_000, height), np.full(20_000, width)
    draws = uniforms(1, 0, Purpose.ZOOM, IDS, 4)
    images, extents = windows.zoomed_out(*sides, draws, probability=1.0)
    ours = np.concatenate([images[:, :2], extents - images[:, 2:]], axis=1)
    assert (ours >= 0).all() and (
        images[:, 2:] - images[:, :2] == [width, height]
    ).all()
    for column in range(4):
        assert unlike(ours[:, column], padded[:, column]) < 1
    assert unlike(ours[:, 0] + ours[:, 2], padded[:, 0] + padded[:, 2]) < 1
    images, extents = windows.zoomed_out(*sides, draws)
    assert (extents == [width, height]).all(axis=1).mean() == pytest.approx(
        0.5, abs=0.02
    )


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


def test_a_crop_has_an_overlap_a_middle_and_an_allowed_shape() -> None:
    rng = np.random.default_rng(3)
    extents = rng.integers(50, 2000, (300, 2))
    which = np.sort(rng.integers(0, 300, 900))
    corner = rng.random((900, 2)) * extents[which] * 0.9
    boxes = np.concatenate(
        [corner, corner + rng.random((900, 2)) * (extents[which] - corner)], axis=1
    )
    crops = crops_by_overlap(5, 1, np.arange(300), extents, boxes, which)
    width, height = (crops[:, 2:] - crops[:, :2]).T
    assert (crops >= 0).all() and (crops[:, 2:] <= extents).all()
    whole = (width == extents[:, 0]) & (height == extents[:, 1])
    assert set(np.flatnonzero(~np.isin(np.arange(300), which))) <= set(
        np.flatnonzero(whole)
    )
    cut = ~whole
    assert cut.sum() > 100
    assert (width[cut] / height[cut] >= 0.5).all() and (
        width[cut] / height[cut] <= 2
    ).all()
    assert (width[cut] >= np.floor(0.3 * extents[cut, 0])).all() and (
        height[cut] >= np.floor(0.3 * extents[cut, 1])
    ).all()
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    inside = ((crops[which, :2] < middle) & (middle < crops[which, 2:])).all(axis=1)
    assert set(np.flatnonzero(cut)) <= set(which[inside])


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


def test_short_sides_are_drawn_alike() -> None:
    heights, widths = np.full(20_000, 480), np.full(20_000, 640)
    policy = DetectionPolicy(
        augment="multiscale", size=800, longer=1333, short_sides=SHORT_SIDES
    )
    sizes = policy.outputs(0, 0, IDS, heights, widths)
    counts = np.unique(sizes[:, 0], return_counts=True)
    assert counts[0].tolist() == list(SHORT_SIDES)
    assert np.abs(counts[1] / 20_000 - 1 / 11).max() < 0.01
    picture = tv_tensors.Image(torch.empty(3, 480, 640, device="meta"))
    made = {
        v2.RandomShortestSize(list(SHORT_SIDES), max_size=1333).make_params([picture])[
            "size"
        ]
        for _ in range(200)
    }
    assert made == set(map(tuple, np.unique(sizes, axis=0).tolist()))


def test_options_are_torchvisions() -> None:
    assert list(OVERLAPS) == v2.RandomIoUCrop().options


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 300, 320]))
def test_a_place_is_the_whole_pixels_that_an_image_covers(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    extents = rng.integers(2, 3000, (50, 2))
    images, crops = (
        np.concatenate(
            [low, low + 1 + (rng.random((50, 2)) * (extents - low - 1)).astype(int)],
            axis=1,
        )
        for low in ((rng.random((50, 2)) * (extents - 1)).astype(int) for _ in range(2))
    )
    meet = (
        np.maximum(images[:, :2], crops[:, :2])
        < np.minimum(images[:, 2:], crops[:, 2:])
    ).all(axis=1)
    images, crops = images[meet], crops[meet]
    regions, inner, place = windows.placed(images, crops, size)
    seen = np.concatenate(
        [
            np.maximum(images[:, :2], crops[:, :2]),
            np.minimum(images[:, 2:], crops[:, 2:]),
        ],
        axis=1,
    )
    assert (regions == seen - np.tile(images[:, :2], 2)).all()
    assert (
        (place[:, :2] >= 0).all()
        and (place[:, 2:] <= size).all()
        and (place[:, 2:] > place[:, :2]).all()
    )
    extent = regions[:, 2:] - regions[:, :2]
    assert (inner[:, :2] >= 0).all() and (inner[:, 2:] <= extent).all()
    assert (inner[:, 2:] > inner[:, :2]).all()
    step = (crops[:, 2:] - crops[:, :2]) / size
    exact = (seen - np.tile(crops[:, :2], 2)) / np.tile(step, 2)  # in output pixels
    wide = np.floor(exact[:, 2:] + 1e-9) > np.ceil(
        exact[:, :2] - 1e-9
    )  # apart for x and y
    assert (place[:, :2] - exact[:, :2] < 1)[wide].all() and (
        place[:, :2] >= exact[:, :2] - 1e-9
    )[wide].all()
    assert (exact[:, 2:] - place[:, 2:] < 1)[wide].all() and (
        place[:, 2:] <= exact[:, 2:] + 1e-9
    )[wide].all()
    shown = (inner + np.tile(seen[:, :2] - crops[:, :2], 2)) / np.tile(step, 2)
    np.testing.assert_allclose(shown[:, :2][wide], place[:, :2][wide], atol=1e-6)
    np.testing.assert_allclose(shown[:, 2:][wide], place[:, 2:][wide], atol=1e-6)


def test_an_image_without_zoom_and_crop_fills_the_output() -> None:
    rng = np.random.default_rng(0)
    whole = windows.whole(*rng.integers(1, 3000, (2, 2000)))
    regions, inner, place = windows.placed(whole, whole, 300)
    assert (
        (regions == whole).all()
        and (inner == whole).all()
        and (place == [0, 0, 300, 300]).all()
    )
