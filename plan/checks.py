"""Rows that a plan has drawn, held against what every loader relies on. Knows no loader, and draws nothing.

A loader decodes what it is told. Told nonsense, one would call a good file damaged, another end inside of its
decoder, a third deliver other pixels. So EpochPlan.draw, which makes all rows, checks them once, here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from contracts import Array, FaultyPlan, Rows
from plan.geometry import TRANSPOSE, TURNS
from plan.ops import Op

ROUNDING = 1e-6
"""Pixels by which a window may lie outside of its region: its edges are products of ratios."""
DTYPES = {
    "regions": np.int64,
    "windows": np.float64,
    "sizes": np.int64,
    "turns": np.uint8,
    "frames": np.int64,
    "ops": np.float32,
    "places": np.int64,
    "exif": np.int64,
}
TAKES = np.zeros(len(Op) + 2, np.int64)
"""How many numbers each operation takes, by its code."""
TAKES[list(Op)] = [op.takes for op in Op]


def require_ids(plan: Any, ids: Array) -> None:
    """Raise FaultyPlan unless these are int64 [B], samples of the plan, none more often than it has views."""
    samples = len(plan.stored[0])
    ordered = np.sort(ids)
    inside = ids.dtype == np.int64 and ((ids >= 0) & (ids < samples)).all()
    if not inside or (ordered[plan.views :] == ordered[: -plan.views]).any():
        limits = f"int64 0 to {samples - 1}, each {plan.views} times at most"
        raise _fault(plan, "ids", f"{ids.dtype} {ids.tolist()}; samples are {limits}")


def require_sound(plan: Any, rows: Rows, ids: Array) -> None:
    """Raise FaultyPlan unless a loader can follow the rows.

    `ids`: int64 [B], the sample whose numbers a row has, of padding too.
    """
    for name, dtype in DTYPES.items():
        value = getattr(rows, name)
        wrong = value is not None and (value.dtype != dtype or len(value) != len(rows))
        if wrong or (value is None and name in ("regions", "windows", "turns")):
            form = getattr(value, "dtype", value), np.shape(value)
            raise _fault(plan, name, f"{form}; {np.dtype(dtype)} [{len(rows)}, ...]")
    if (rows.frames is None) == (len(plan.sample_shape) == 4):
        raise _fault(plan, "frames", "a plan of clips says them, and no other")
    if (rows.ops is None) == plan.operates:
        raise _fault(plan, "ops", f"its `operates` is {plan.operates}")
    for name, good in _conditions(plan, rows, ids).items():
        # the fastest way to ask: this is done for every batch
        if np.count_nonzero(good) < good.size:
            i = int(good.reshape(len(good), -1).all(axis=1).argmin())
            column = rows.placed if name == "places" else getattr(rows, name)
            where = f"row {i} of {len(rows)}, id {ids[i]}, has {column[i].tolist()}"
            raise _fault(plan, name, f"{where} (contracts.Rows says what it may have)")


def _conditions(plan: Any, rows: Rows, ids: Array) -> dict[str, Array]:
    """Return field -> bool [B] or [B, K], whether a row's numbers are sound. NaN fails every comparison."""
    heights, widths = (np.asarray(column[ids]) for column in plan.stored)
    # axes: [B], edge by edge, since NumPy is slow where the inner axis has two numbers
    x0, y0, x1, y1 = rows.regions.T
    regions = (x0 >= 0) & (y0 >= 0) & (x0 < x1) & (y0 < y1)
    left, top, right, bottom = rows.windows.T
    windows = (left >= -ROUNDING) & (top >= -ROUNDING) & (left < right) & (top < bottom)
    windows &= (right - (x1 - x0) <= ROUNDING) & (bottom - (y1 - y0) <= ROUNDING)
    largest = np.array(plan.sample_shape[-2:])
    canvas = np.array(rows.canvas or (rows.sizes[0] if plan.filled else largest))
    conditions = {
        "regions": regions & (x1 <= widths) & (y1 <= heights),
        "windows": windows,
        "sizes": (rows.sizes > 0) & (rows.sizes <= canvas) & (canvas <= largest),
        "turns": rows.turns < (TURNS if plan.transposes else TRANSPOSE),
    }
    px0, py0, px1, py1 = rows.placed.T
    tall, wide = rows.sizes.T
    places = (px0 >= 0) & (py0 >= 0) & (px0 < px1) & (py0 < py1)
    places &= (px1 <= wide) & (py1 <= tall)
    if plan.filled:
        places &= (px1 - px0 == canvas[1]) & (py1 - py0 == canvas[0])
    conditions["places"] = places
    if rows.frames is not None:
        first, count = (np.asarray(column[ids]) for column in plan.segments)
        frames = rows.frames
        counted = frames.shape[1:] == plan.sample_shape[1:2]
        inside = (frames >= 0) & (frames < (first + count)[:, None])
        conditions["frames"] = inside & counted
    if rows.ops is not None:
        codes = rows.ops[:, :, 0]
        known = np.isin(codes, [0, *Op])
        takes = TAKES[np.where(known, codes, 0).astype(np.int64)]
        finite = np.isfinite(rows.ops).all(axis=2)
        conditions["ops"] = known & finite & (takes < rows.ops.shape[2])
    return conditions


def _fault(plan: Any, field: str, problem: str) -> FaultyPlan:
    name = type(plan).__name__
    return FaultyPlan(f"{name} draws {field} that no loader can follow: {problem}")
