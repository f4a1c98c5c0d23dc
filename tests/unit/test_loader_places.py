"""Where images lie on a canvas, what is 0 around them, and memory that only grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts import Rows
from loaders._staging import fitted, outside, too_small

SIDES = st.integers(1, 9)


def rows_of(sizes: list[tuple[int, int]], **more: Any) -> Rows:
    count = len(sizes)
    return Rows(
        ids=np.arange(count),
        regions=np.zeros((count, 4), np.int64),
        windows=np.zeros((count, 4)),
        sizes=np.array(sizes, np.int64),
        turns=np.zeros(count, np.uint8),
        valid=np.ones(count, bool),
        **more,
    )


WHOLE = rows_of([(8, 6), (8, 6)])
PLACES = np.array([[0, 0, 6, 8], [1, 2, 3, 4]])


def test_without_places_an_image_fills_its_output() -> None:
    assert rows_of([(8, 6), (3, 4)]).placed.tolist() == [[0, 0, 6, 8], [0, 0, 4, 3]]
    assert rows_of([(8, 6), (8, 6)], places=PLACES).placed is PLACES


@pytest.mark.parametrize(
    ("rows", "fills"),
    [
        (WHOLE, True),
        (rows_of([(8, 6), (8, 6)], canvas=(8, 6)), True),
        (rows_of([(8, 6), (8, 6)], canvas=(8, 7)), False),
        (rows_of([(8, 6), (7, 6)]), False),
        (rows_of([(8, 6), (8, 6)], places=PLACES), False),
        (rows_of([(8, 6)], places=PLACES[:1]), True),
    ],
)
def test_what_is_left_free(rows: Rows, fills: bool) -> None:
    assert rows.filled is fills


@given(st.data(), SIDES, SIDES)
def test_outside_is_what_no_place_covers(data: st.DataObject, height: int, width: int) -> None:
    places, expected = [], np.ones((3, height, width), bool)
    for i in range(3):
        x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
        x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
        places.append([x0, y0, x1, y1])
        expected[i, y0:y1, x0:x1] = False
    found = outside(torch.tensor(places), torch.zeros(3, 3, height, width))
    np.testing.assert_array_equal(found[:, 0].numpy(), expected)
    of_clips = outside(torch.tensor(places), torch.zeros(3, 3, 2, height, width))
    np.testing.assert_array_equal(of_clips[:, 0, 0].numpy(), expected)


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6))
def test_memory_only_grows(shapes: list[tuple[int, int]]) -> None:
    memory: torch.Tensor | None = None
    most = 0
    for shape in shapes:
        before, grows = memory, too_small(memory, shape)
        memory = fitted(memory, shape, dtype=torch.float16)
        assert memory.shape == shape
        assert memory.is_contiguous()
        assert grows == (shape[0] * shape[1] > most)
        assert grows or (before is not None and memory.data_ptr() == before.data_ptr())
        most = max(most, shape[0] * shape[1])
        memory.fill_(1)
