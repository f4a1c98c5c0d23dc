"""The affine map of a row: exact both ways, for flips, places and windows of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contracts import Rows
from plan import geometry

SEEDS = st.integers(0, 2**32 - 1)


def drawn_rows(seed: int, count: int = 6, *, places: bool = True) -> Rows:
    """Rows with any regions, windows, places and flips."""
    rng = np.random.default_rng(seed)

    def spans(limit: Any) -> Any:
        """Two different whole numbers in 0..limit, in order."""
        low = np.floor(rng.random(limit.shape) * limit).astype(np.int64)
        return low, low + 1 + np.floor(rng.random(limit.shape) * (limit - low)).astype(np.int64)

    low, high = spans(rng.integers(1, 3000, (count, 2)))
    extent = high - low
    start = rng.random((count, 2)) * extent * 0.9
    windows = np.concatenate([start, start + (0.01 + 0.99 * rng.random((count, 2))) * (extent - start)], axis=1)
    sizes = rng.integers(1, 1500, (count, 2))
    place = np.concatenate(spans(sizes[:, ::-1] - 1), axis=1)
    return Rows(
        ids=np.arange(count),
        regions=np.concatenate([low, high], axis=1),
        windows=windows,
        sizes=sizes,
        flips=rng.random(count) < 0.5,
        valid=np.ones(count, bool),
        places=place if places else None,
    )


@given(SEEDS, st.booleans())
def test_back_and_forth_is_where_it_was(seed: int, places: bool) -> None:
    rows = drawn_rows(seed, places=places)
    rng = np.random.default_rng(seed)
    which = rng.integers(0, len(rows), 40)
    for points in (rng.uniform(-500, 4000, (40, 2)), rng.uniform(-500, 4000, (40, 7, 2))):
        there = geometry.to_output(rows, which, points)
        assert there.shape == points.shape and there.dtype == np.float64
        np.testing.assert_allclose(geometry.to_image(rows, which, there), points, rtol=1e-9, atol=1e-6)


@given(SEEDS, st.booleans())
def test_the_windows_corners_are_the_places_corners(seed: int, places: bool) -> None:
    """And the left one is on the right under a flip."""
    rows = drawn_rows(seed, places=places)
    which = np.arange(len(rows))
    place = geometry.places(rows)
    if not places:
        assert (place[:, :2] == 0).all() and (place[:, 2:] == rows.sizes[:, ::-1]).all()
    corner = rows.regions[:, :2]
    first = geometry.to_output(rows, which, corner + rows.windows[:, :2])
    last = geometry.to_output(rows, which, corner + rows.windows[:, 2:])
    close: Any = {"rtol": 1e-9, "atol": 1e-6}
    np.testing.assert_allclose(first[:, 0], np.where(rows.flips, place[:, 2], place[:, 0]), **close)
    np.testing.assert_allclose(last[:, 0], np.where(rows.flips, place[:, 0], place[:, 2]), **close)
    np.testing.assert_allclose(np.stack([first[:, 1], last[:, 1]]), place[:, [1, 3]].T, **close)


def one(*, flip: bool) -> Rows:
    """A region at (10, 20), of it the window 4..24 x 2..12, shown 40 x 10 large at (5, 6) of an output 60 x 30 large."""
    return Rows(
        ids=np.array([0]),
        regions=np.array([[10, 20, 40, 40]]),
        windows=np.array([[4.0, 2.0, 24.0, 12.0]]),
        sizes=np.array([[30, 60]]),
        flips=np.array([flip]),
        valid=np.array([True]),
        places=np.array([[5, 6, 45, 16]]),
    )


def test_by_hand() -> None:
    row, here = np.array([0]), np.array([[20.0, 25.0]])  # 6 pixels right of the window and 3 below its top
    assert geometry.to_output(one(flip=False), row, here).tolist() == [[5 + 12, 6 + 3]]
    assert geometry.to_output(one(flip=True), row, here).tolist() == [[45 - 12, 6 + 3]]
    box = np.array([[20.0, 25.0, 24.0, 31.0]])
    assert geometry.boxes_to_output(one(flip=False), row, box).tolist() == [[17, 9, 25, 15]]
    assert geometry.boxes_to_output(one(flip=True), row, box).tolist() == [[25, 9, 33, 15]]
    assert geometry.boxes_to_image(one(flip=True), row, np.array([[25.0, 9.0, 33.0, 15.0]])).tolist() == box.tolist()


@given(SEEDS)
def test_boxes_keep_their_corners_in_order(seed: int) -> None:
    rows, rng = drawn_rows(seed), np.random.default_rng(seed)
    which = rng.integers(0, len(rows), 30)
    corner = rng.uniform(0, 3000, (30, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(0.5, 500, (30, 2))], axis=1)
    moved = geometry.boxes_to_output(rows, which, boxes)
    assert (moved[:, 2:] > moved[:, :2]).all()
    np.testing.assert_allclose(geometry.boxes_to_image(rows, which, moved), boxes, rtol=1e-9, atol=1e-6)


def test_boxes_are_cut_at_the_edges() -> None:
    boxes = np.array([[-5.0, -6.0, 3.0, 4.0], [2.0, 3.0, 50.0, 60.0], [30.0, 1.0, 40.0, 2.0]])
    cut = geometry.clipped(boxes, np.array([10, 20, 20]), np.array([20, 10, 10]))
    assert cut.tolist() == [[0, 0, 3, 4], [2, 3, 10, 20], [10, 1, 10, 2]]
