"""Rows that a plan has drawn, held against what every loader relies on. Knows no loader, and draws nothing.

A loader decodes what it is told. Told nonsense, one would call a good file damaged, another end inside of its
decoder, a third deliver other pixels. So EpochPlan.draw, which makes all rows, checks them once, here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from saturate.contracts import Array, FaultyPlan, Rows
from saturate.plan.geometry import TRANSPOSE, TURNS

if TYPE_CHECKING:
    from saturate.plan.epoch import EpochPlan

ROUNDING = 1e-6
"""Pixels by which a window may lie outside of its region: its edges are products of ratios."""


def require_ids(plan: EpochPlan, ids: Array) -> None:
    """Raise FaultyPlan unless these are samples of the plan, none more often than it has views."""
    samples = len(plan.stored[0])
    ordered = np.sort(ids)
    inside = ((ids >= 0) & (ids < samples)).all()
    if not inside or (ordered[plan.views :] == ordered[: -plan.views]).any():
        limits = f"samples are 0 to {samples - 1}, each {plan.views} times at most"
        raise _fault(plan, "ids", f"{ids.tolist()}; {limits}")


def require_sound(plan: EpochPlan, rows: Rows, ids: Array) -> None:
    """Raise FaultyPlan unless a loader can follow the rows.

    `ids`: int64 [B], the sample whose numbers a row has, of padding too.
    """
    for name, good in _conditions(plan, rows, ids).items():
        # the fastest way to ask: this is done for every batch
        if np.count_nonzero(good) < good.size:
            i = int(good.reshape(len(good), -1).all(axis=1).argmin())
            column = rows.placed if name == "places" else getattr(rows, name)
            where = f"row {i} of {len(rows)}, id {ids[i]}, has {column[i].tolist()}"
            raise _fault(plan, name, f"{where} (contracts.Rows says what it may have)")


def _conditions(plan: EpochPlan, rows: Rows, ids: Array) -> dict[str, Array]:
    """Return field -> bool [B] or [B, K], whether a row's numbers are sound. NaN fails every comparison."""
    heights, widths = (np.asarray(column[ids]) for column in plan.stored)
    # axes: [B], edge by edge, since NumPy is slow where the inner axis has two numbers
    x0, y0, x1, y1 = rows.regions.T
    left, top, right, bottom = rows.windows.T
    windows = (left >= -ROUNDING) & (top >= -ROUNDING) & (left < right) & (top < bottom)
    windows &= (right - (x1 - x0) <= ROUNDING) & (bottom - (y1 - y0) <= ROUNDING)
    px0, py0, px1, py1 = rows.placed.T
    tall, wide = rows.sizes.T
    conditions = {
        "regions": _boxes(x0, y0, x1, y1) & (x1 <= widths) & (y1 <= heights),
        "windows": windows,
        "sizes": (rows.sizes > 0) & (rows.sizes <= plan.batches.canvas),
        "turns": rows.turns < (TURNS if plan.batches.transposed else TRANSPOSE),
        "places": _boxes(px0, py0, px1, py1) & (px1 <= wide) & (py1 <= tall),
    }
    if rows.frames is not None and plan.segments is not None:
        first, count = (np.asarray(column[ids]) for column in plan.segments)
        inside = (rows.frames >= 0) & (rows.frames < (first + count)[:, None])
        conditions["frames"] = inside
    return conditions


def _boxes(x0: Array, y0: Array, x1: Array, y1: Array) -> Array:
    """Return bool [B], whether boxes begin at 0 or later, and have an area."""
    good: Array = (x0 >= 0) & (y0 >= 0) & (x0 < x1) & (y0 < y1)
    return good


def _fault(plan: EpochPlan, field: str, problem: str) -> FaultyPlan:
    name = type(plan).__name__
    return FaultyPlan(f"{name} draws {field} that no loader can follow: {problem}")
