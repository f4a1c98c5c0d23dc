"""Targets follow the pixels: shapes are found where the targets say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from saturate.contracts import Rows
from saturate.plan import geometry
from saturate.plan.boxes import DetectionPlan, DetectionPolicy
from saturate.plan.targets import IGNORE, packed, padded
from tests.conformance.test_places import POLICIES
from tests.unit.annotated import columns
from tests.unit.coco_files import counts


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
        mask = np.zeros((h, w), bool)
        mask[y0:y1, x0:x1] = True
        codes.append(np.array(counts(mask)))
    return columns(sizes, boxes, runs=codes if runs else None)


def rows_of(source: Any, policy: DetectionPolicy, seed: int, epoch: int = 0) -> Rows:
    return DetectionPlan(
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


@pytest.mark.parametrize("runs", [False, True], ids=["polygons", "runs"])
@pytest.mark.parametrize("name", POLICIES)
def test_masks_fill_their_boxes_and_keypoints_change_sides(
    name: str, runs: bool
) -> None:
    """In all turns: rectangles, with a keypoint at either end of the diagonal, hidden in every third."""
    source = drawn(5, runs=runs, images=40)
    corner, extent = source.boxes[:, :2], source.boxes[:, 2:]
    source.keypoints = np.full((40, 2, 3), 2.0)
    source.keypoints[:, 0, :2] = corner + 0.5
    source.keypoints[:, 1, :2] = corner + extent - 0.5
    source.keypoints[::3, :, 2] = 0
    source.keypoint_mirror = np.array([1, 0])
    rows = in_all_turns(rows_of(source, POLICIES[name], 9))
    found = packed(source, rows, masks=True, keypoints=True)
    assert found["masks"].shape[1:] == rows.padded and len(found["boxes"]) > 20
    which = np.repeat(np.arange(40), np.diff(found["offsets"]))
    seen, offsets = 0, []
    for row, box, mask, points in zip(
        which, found["boxes"], found["masks"], found["keypoints"], strict=True
    ):
        if mask.any():
            ys, xs = np.nonzero(mask)
            edges = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            assert np.abs(edges - box).max() <= 1.5
            offsets.append(edges - box)
            assert mask.sum() >= 0.9 * np.prod(edges[2:] - edges[:2])
        else:
            assert (box[2:] - box[:2]).min() < 1
        sample = int(rows.ids[row])
        swaps = rows.turns[row] in (1, 2, 4, 7)
        given = source.keypoints[sample, ::-1] if swaps else source.keypoints[sample]
        moved = geometry.to_output(rows, np.array([row]), given[None, :, :2])[0]
        inside = ((moved >= 0) & (moved < rows.sizes[row, ::-1])).all(axis=1)
        shown = inside & (given[:, 2] > 0)
        assert (points[~shown] == 0).all() and (points[shown, 2] == 2).all()
        np.testing.assert_allclose(points[shown, :2], moved[shown], atol=1e-3)
        seen += int(shown.sum())
    assert seen > 10 and abs(np.mean(offsets)) < 0.1


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


def test_masks_and_keypoints_at_the_edges() -> None:
    """An image as it is: its mask is the same, and a point on its right edge is no more inside."""
    mask = np.zeros((100, 100), bool)
    mask[:, 0] = mask[-1] = True
    box = (0.0, 0.0, 100.0, 100.0)
    source = columns([(100, 100)], [[box]], runs=[np.array(counts(mask))])
    source.keypoints = np.array([[[0.0, 0.0, 2.0], [100.0, 50.0, 2.0]]])
    source.keypoint_mirror = np.arange(2)
    rows = plain_rows([0], [True], [False])
    found = packed(source, rows, masks=True, keypoints=True)
    np.testing.assert_array_equal(found["masks"], mask[None])
    assert found["keypoints"].tolist() == [[[0, 0, 2], [0, 0, 0]]]


def test_padded_boxes_are_the_packed_ones_in_their_rows() -> None:
    source = columns([(100, 100)] * 3, BOXES)
    source.usable[3] = False
    found = packed(
        source,
        plain_rows([2, 0, 1], [True] * 3, [False] * 3),
        masks=False,
        keypoints=False,
    )
    targets = padded(found, 3)
    there = targets["labels"] != IGNORE
    assert there.tolist() == [[True] * 3, [True, True, False], [False] * 3]
    for name, values in targets.items():
        assert values.dtype == found[name].dtype
        np.testing.assert_array_equal(values[there], found[name])
    with pytest.raises(ValueError, match="shape mismatch"):
        padded(found, 2)


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
                # has no area in fp32
                (50.0, 50.0, 1e-9, 1.0),
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
