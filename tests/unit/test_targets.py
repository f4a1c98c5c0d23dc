"""Targets follow the pixels: shapes are found where the targets say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from contracts import Rows
from plan import geometry
from plan.boxes import DetectionPlan, DetectionPolicy
from plan.targets import packed
from tests.conformance.placed import turned
from tests.unit.annotated import columns

SEEDS = st.integers(0, 2**32 - 1)
POLICIES = {
    "flip": DetectionPolicy(augment="flip", size=160, longer=266, flip=0.5),
    "stretch": DetectionPolicy(augment="flip", size=128, flip=0.5),
    "multiscale": DetectionPolicy(
        augment="multiscale", size=160, longer=266, short_sides=(96, 128, 224), flip=0.5
    ),
    "lsj": DetectionPolicy(augment="lsj", size=192, longer=256, flip=0.5),
    "ssd": DetectionPolicy(augment="ssd", size=200, flip=0.5),
    "ssdlite": DetectionPolicy(augment="ssdlite", size=200, flip=0.5),
}


def counted(mask: Any) -> Any:
    flat = mask.ravel(order="F").astype(bool)
    edges = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff(np.concatenate([[0], edges, [len(flat)]]))
    return np.concatenate([[0], runs]) if flat[0] else runs


def drawn(seed: int, *, runs: bool = False, images: int = 12) -> SimpleNamespace:
    """Images of 60 to 300 pixels with one rectangle of whole pixels each, a fifth of a side at least."""
    rng = np.random.default_rng(seed)
    sizes = [(int(h), int(w)) for h, w in rng.integers(60, 300, (images, 2))]
    boxes, codes = [], []
    for h, w in sizes:
        x0, y0 = int(rng.integers(0, w * 7 // 10)), int(rng.integers(0, h * 7 // 10))
        x1, y1 = (
            int(rng.integers(low + side // 5, side + 1))
            for low, side in ((x0, w), (y0, h))
        )
        boxes.append([(float(x0), float(y0), float(x1 - x0), float(y1 - y0))])
        mask = np.zeros((h, w), np.uint8)
        mask[y0:y1, x0:x1] = 1
        codes.append(counted(mask))
    return columns(sizes, boxes, runs=codes if runs else None)


def rows_of(source: Any, policy: DetectionPolicy, seed: int, epoch: int = 0) -> Rows:
    return DetectionPlan.of(
        source, policy, seed=seed, batch_size=len(source.height), keep_empty=True
    ).rows(epoch, 0)[0]


def in_all_turns(rows: Rows) -> Rows:
    """Give rows the eight turns one after the other; plans of detection draw only mirrored ones."""
    before = geometry.upright(rows)
    turns = (np.arange(len(rows)) % geometry.TURNS).astype(np.uint8)
    sizes = np.where(
        geometry.transposed(turns)[:, None], before.sizes[:, ::-1], before.sizes
    )
    places = (
        None
        if before.places is None
        else geometry.turned_places(before.places, turns, sizes)
    )
    canvas = int(sizes[:, 0].max()), int(sizes[:, 1].max())
    return replace(rows, turns=turns, sizes=sizes, places=places, canvas=canvas)


def shown(rows: Rows, row: int, image: Any) -> Any:
    """uint8 [H, W], the canvas of a row, of a grey image: what a loader makes of it."""
    x0, y0, x1, y1 = rows.regions[row].tolist()
    px0, py0, px1, py1 = rows.placed[row].tolist()
    wide, high = (
        geometry.upright(rows).placed[row, 2:] - geometry.upright(rows).placed[row, :2]
    )
    region = Image.fromarray(image[y0:y1, x0:x1])
    window = tuple(rows.windows[row].tolist())
    resized = np.asarray(
        region.resize((wide, high), Image.Resampling.BILINEAR, box=window)
    )
    canvas = np.zeros(rows.padded, np.uint8)
    canvas[py0:py1, px0:px1] = turned(resized[..., None], int(rows.turns[row]))[..., 0]
    return canvas


def around(pixels: Any) -> Any:
    ys, xs = np.nonzero(pixels)
    return np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12)
@given(SEEDS, st.booleans())
def test_a_drawn_rectangle_is_found_where_its_box_is(
    name: str, seed: int, turns: bool
) -> None:
    source = drawn(seed)
    rows = rows_of(source, POLICIES[name], seed)
    rows = in_all_turns(rows) if turns else rows
    found = packed(
        source, rows, masks=False, keypoints=False, centred=POLICIES[name].centred
    )
    for row, sample in enumerate(rows.ids.tolist()):
        image = np.zeros((source.height[sample], source.width[sample]), np.uint8)
        x, y, w, h = source.boxes[sample].astype(int)
        image[y : y + h, x : x + w] = 255
        box = found["boxes"][found["offsets"][row] : found["offsets"][row + 1]]
        if len(box) and (box[0, 2:] - box[0, :2] > 4).all():
            assert np.abs(around(shown(rows, row, image) > 127) - box[0]).max() <= 1


@pytest.mark.parametrize("name", POLICIES)
def test_masks_of_polygons_and_of_run_lengths_are_one_shape(name: str) -> None:
    outline = [
        np.array([[12.0, 8.0], [90.0, 30.0], [40.0, 105.0]]),
        np.array([[100.0, 60.0], [150.0, 62.0], [148.0, 110.0], [101.0, 108.0]]),
    ]
    size = (120, 170)
    ys, xs = np.mgrid[: size[0], : size[1]] + 0.5
    inside = np.zeros(size, bool)
    for points in outline:
        ahead = np.roll(points, -1, axis=0)
        left = [
            (b[0] - a[0]) * (ys - a[1]) - (b[1] - a[1]) * (xs - a[0]) >= 0
            for a, b in zip(points, ahead, strict=True)
        ]
        inside |= np.logical_and.reduce(left)
    whole = (12.0, 8.0, 138.0, 102.0)
    coded = columns([size] * 8, [[whole]] * 8, runs=[counted(inside)] * 8)
    polygons = columns([size] * 8, [[whole]] * 8)
    polygons.points = np.concatenate(outline * 8)
    polygons.point_offsets = np.concatenate([[0], np.cumsum([3, 4] * 8)])
    polygons.polygon_offsets = np.arange(0, 17, 2)
    rows = rows_of(coded, POLICIES[name], 4)
    one, other = (
        packed(source, rows, masks=True, keypoints=False)["masks"]
        for source in (coded, polygons)
    )
    assert len(one) == len(other) and other.sum() > 5000
    outlines = (
        np.abs(np.diff(one.astype(int), axis=1)).sum()
        + np.abs(np.diff(one.astype(int), axis=2)).sum()
    )
    assert (one != other).sum() < 0.75 * outlines


@pytest.mark.parametrize("turns", [False, True], ids=["as drawn", "all turns"])
@pytest.mark.parametrize("name", POLICIES)
def test_keypoints_follow_the_pixels_and_change_sides_when_reflected(
    name: str, turns: bool
) -> None:
    rng = np.random.default_rng(2)
    sizes, count = [(200, 240)] * 30, 30
    points = np.zeros((count, 3, 3))
    points[..., :2] = rng.uniform(30, 170, (count, 3, 2)).astype(int) + 0.5
    points[..., 2] = 2
    points[::2, 2] = 0
    boxes = [[(20.0, 20.0, 160.0, 160.0)]] * count
    source = columns(sizes, boxes, keypoints=points, mirror=[0, 2, 1])
    rows = rows_of(source, POLICIES[name], 9)
    rows = in_all_turns(rows) if turns else rows
    found = packed(
        source, rows, masks=False, keypoints=True, centred=POLICIES[name].centred
    )
    assert found["keypoints"].dtype == np.float32 and found["keypoints"].shape == (
        len(found["boxes"]),
        3,
        3,
    )
    seen = hidden = 0
    for row, sample in enumerate(rows.ids.tolist()):
        for place in range(found["offsets"][row], found["offsets"][row + 1]):
            for slot in range(3):
                name_of = [0, 2, 1][slot] if rows.turns[row] in (1, 2, 4, 7) else slot
                x, y, visible = found["keypoints"][place, slot]
                there = geometry.to_output(
                    rows, np.array([row]), points[sample, name_of, None, :2]
                )[0]
                inside = (there >= 0).all() and (there < rows.sizes[row, ::-1]).all()
                if points[sample, name_of, 2] and inside:
                    assert visible == 2 and (x, y) == pytest.approx(there, abs=1e-3)
                    image = np.zeros((200, 240), np.uint8)
                    centre = points[sample, name_of].astype(int)
                    image[
                        centre[1] - 12 : centre[1] + 13, centre[0] - 12 : centre[0] + 13
                    ] = 255
                    assert shown(rows, row, image)[int(y), int(x)] > 100
                    seen += 1
                else:
                    assert (x, y, visible) == (0, 0, 0)
                    hidden += 1
    assert seen > 20 and hidden > 5
    assert rows.turns.any() and not rows.turns.all()


def plain_rows(
    ids: list[int], valid: list[bool], mirrored: list[bool], size: int = 100
) -> Rows:
    count = len(ids)
    return Rows(
        ids=np.where(valid, ids, -1),
        regions=np.tile([0, 0, 100, 100], (count, 1)),
        windows=np.tile([0.0, 0.0, 100.0, 100.0], (count, 1)),
        sizes=np.full((count, 2), size),
        turns=np.array(mirrored, np.uint8),
        valid=np.array(valid),
    )


BOXES = [
    [(10.0, 20.0, 30.0, 40.0), (0.0, 0.0, 5.0, 5.0)],
    [],
    [
        (90.0, 90.0, 30.0, 30.0),
        (50.0, 50.0, 10.0, 10.0),
        (-20.0, 4.0, 30.0, 5.0),
        (1.0, 1.0, 2.0, 2.0),
    ],
]


def test_by_hand() -> None:
    source = columns([(100, 100)] * 3, BOXES)
    source.usable[3] = False
    rows = plain_rows(
        [2, 0, 1, 0], [True, True, True, False], [False, True, False, False]
    )
    found = packed(source, rows, masks=False, keypoints=False)
    assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
        "offsets": (np.int64, (5,)),
        "boxes": (np.float32, (5, 4)),
        "labels": (np.int64, (5,)),
    }
    assert found["offsets"].tolist() == [0, 3, 5, 5, 5]
    boxes = [
        [90, 90, 100, 100],
        [0, 4, 10, 9],
        [1, 1, 3, 3],
        [60, 20, 90, 60],
        [95, 0, 100, 5],
    ]
    assert found["boxes"].tolist() == boxes
    assert found["labels"].tolist() == [9, 4, 9, 1, 4]


def test_a_batch_of_nothing_has_every_array() -> None:
    source = columns(
        [(100, 100)] * 3, BOXES, keypoints=np.zeros((6, 2, 3)), mirror=[1, 0]
    )
    for ids, valid in (([1, 1], [True, True]), ([0, 0], [False, False])):
        found = packed(
            source, plain_rows(ids, valid, [False, True]), masks=True, keypoints=True
        )
        assert found["offsets"].tolist() == [0, 0, 0]
        assert found["boxes"].shape == (0, 4) and found["labels"].shape == (0,)
        assert found["masks"].shape == (0, 100, 100) and found["keypoints"].shape == (
            0,
            2,
            3,
        )


def test_boxes_that_are_not_shown_are_left_out() -> None:
    """The rest of the image is cut off: 40..60 of it fills the output."""
    source = columns(
        [(100, 100)],
        [
            [
                (30.0, 45.0, 13.0, 8.0),
                (0.0, 0.0, 40.0, 100.0),
                (50.0, 41.0, 2.0, 2.0),
                (61.0, 50.0, 3.0, 3.0),
            ]
        ],
    )
    region, window = np.array([[35, 35, 70, 70]]), np.array([[5.0, 5.0, 25.0, 25.0]])
    rows = replace(
        plain_rows([0], [True], [False], size=40), regions=region, windows=window
    )
    assert packed(source, rows, masks=False, keypoints=False)["boxes"].tolist() == [
        [0, 10, 6, 26],
        [20, 2, 24, 6],
    ]
    centred = packed(source, rows, masks=False, keypoints=False, centred=True)
    assert centred["boxes"].tolist() == [[20, 2, 24, 6]], (
        "the first one's middle is at 36.5"
    )


def test_a_box_that_is_rounded_away_is_left_out() -> None:
    source = columns([(100, 100)], [[(50.0, 50.0, 1e-9, 1.0), (50.0, 50.0, 1e-3, 1.0)]])
    boxes = packed(
        source, plain_rows([0], [True], [False]), masks=False, keypoints=False
    )["boxes"]
    assert len(boxes) == 1 and (boxes[:, 2:] > boxes[:, :2]).all()
