"""Clips: which frames, which window, which view, for any video."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturate.contracts import Rows
from saturate.plan import clips
from saturate.plan.clips import ClipPlan
from tests.conformance.plans import Videos, clip_policy


def plan(n: int, **numbers: Any) -> ClipPlan:
    return ClipPlan(
        **{
            "columns": Videos(n),
            "policy": clip_policy(),
            "seed": 3,
            "batch_size": 4,
            **numbers,
        }
    )


def places(rows: Rows) -> Any:
    """float64 [B, 4], the windows in pixels of the whole picture."""
    return rows.windows + rows.regions[:, [0, 1, 0, 1]]


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=60),
    st.integers(1, 20),
    st.floats(0.2, 200),
    st.floats(0, 1, exclude_max=True),
)
def test_a_clip_by_time_has_the_nearest_frames(
    steps: list[int], count: int, step: float, draw: float
) -> None:
    pts = np.cumsum([700, *steps])
    last = clips.last_start_in_time(pts, count, step)
    fits = [i for i in range(len(pts)) if pts[i] + (count - 1) * step <= pts[-1] + 0.5]
    assert last == max(fits, default=0)
    start = int(clips.random_start(np.array([last]), np.array([draw]))[0])
    clip = clips.by_time(pts, start, count, step)
    assert clip.shape == (count,) and clip[0] == start
    wanted = pts[start] + np.arange(count) * step
    nearest = np.abs(pts[:, None] - wanted).argmin(axis=0)  # the first of several
    assert clip.tolist() == nearest.tolist()


def test_views_are_clips_times_crops() -> None:
    columns = Videos(9)
    rows = plan(
        9,
        columns=columns,
        batch_size=9 * 12,
        training=False,
        policy=clip_policy(clips=4, crops=3, resize=16),
    ).rows(0, 0)[0]
    assert rows.frames is not None
    for sample in range(9):
        mine = rows.ids == sample
        frames, crops = (
            rows.frames[mine].reshape(4, 3, 4),
            places(rows)[mine].reshape(4, 3, 4),
        )
        first, count = columns.first[sample], columns.frames[sample]
        assert (frames[:, 0] == frames[:, 1]).all() and (
            frames[:, 0] == frames[:, 2]
        ).all()
        assert frames[0, 0, 0] == first
        assert frames[-1, 0, -1] == first + count - 1
        assert (crops[0] == crops[3]).all()
        begins, longer = (
            crops[0, :, :2].max(axis=1),
            max(columns.height[sample], columns.width[sample]),
        )
        assert (
            begins[0] == 0
            and begins[0] <= begins[1] <= begins[2]
            and crops[0, 2].max() == pytest.approx(longer)
        )
