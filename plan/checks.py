"""Rows that a plan has drawn, held against what every loader relies on. Knows no loader, and draws nothing.

A loader decodes what it is told. Told nonsense, one would call a good file damaged, another end inside of its
decoder, a third deliver other pixels. So EpochPlan.draw, which makes all rows, checks them once, here.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from contracts import Array, FaultyPlan, Rows
from plan.geometry import TRANSPOSE, TURNS
from plan.ops import Op

ROUNDING = 1e-6
"""Pixels by which a window may lie outside of its region: its edges are products of ratios."""


def require_ids(plan: Any, ids: Array) -> None:
    """Raise FaultyPlan unless these are int64 [B], samples of the plan, none more often than it has views."""
    samples = len(plan.stored[0])
    if ids.dtype != np.int64 or (
        ids.size and not 0 <= ids.min() <= ids.max() < samples
    ):
        _fault(
            plan, "ids", f"{ids.dtype} {ids.tolist()}; int64 0 to {samples - 1} exist"
        )
    ordered = np.sort(ids)
    if (ordered[plan.views :] == ordered[: -plan.views]).any():
        _fault(plan, "ids", f"{ids.tolist()}; a sample has {plan.views} views")


def require_sound(plan: Any, rows: Rows, ids: Array) -> None:
    """Raise FaultyPlan unless a loader can follow the rows.

    `ids`: int64 [B], the sample whose numbers a row has, of padding too.
    """
    _require_forms(plan, rows)
    heights, widths = (np.asarray(column[ids]) for column in plan.stored)
    # axes: [B], edge by edge, since NumPy is slow where the inner axis has two numbers
    x0, y0, x1, y1 = rows.regions.T
    good = (
        (x0 >= 0) & (y0 >= 0) & (x0 < x1) & (y0 < y1) & (x1 <= widths) & (y1 <= heights)
    )
    _require(plan, rows, ids, "regions", good, "not empty, inside of the stored image")
    # NaN fails every comparison
    left, top, right, bottom = rows.windows.T
    good = (left >= -ROUNDING) & (top >= -ROUNDING) & (left < right) & (top < bottom)
    good &= (right <= x1 - x0 + ROUNDING) & (bottom <= y1 - y0 + ROUNDING)
    _require(plan, rows, ids, "windows", good, "not empty, inside of the region")
    if rows.frames is not None:
        first, count = (np.asarray(column[ids]) for column in plan.segments)
        good = (rows.frames >= 0) & (rows.frames < (first + count)[:, None])
        _require(plan, rows, ids, "frames", good, "those of the video")
    _require_outputs(plan, rows, ids)
    if (rows.ops is not None) != plan.operates:
        has = "none" if rows.ops is None else "some"
        _fault(plan, "ops", f"rows have {has}, and `operates` is {plan.operates}")
    if rows.ops is not None:
        which = rows.ops[:, :, 0]
        takes = np.array([0, *(op.takes for op in Op)])[
            np.searchsorted([0, *Op], which, "right") - 1
        ]
        good = np.isin(which, [0, *Op]) & (takes < rows.ops.shape[2])
        good &= np.isfinite(rows.ops).all(axis=2)
        _require(
            plan, rows, ids, "ops", good, "operations of plan.ops.Op, finite numbers"
        )


def _require_outputs(plan: Any, rows: Rows, ids: Array) -> None:
    """Check sizes, canvas, turns and places, and what the plan says that its batches have in common."""
    largest = plan.sample_shape[-2:]
    height, width = rows.canvas or (rows.sizes[0].tolist() if plan.filled else largest)
    if height > largest[0] or width > largest[1]:
        _fault(
            plan, "canvas", f"{(height, width)}; `sample_shape` is {plan.sample_shape}"
        )
    good = (rows.sizes > 0) & (rows.sizes <= (height, width))
    if plan.filled:
        good &= rows.sizes == (height, width)
    rule = f"not empty, on {(height, width)}; `filled` is {plan.filled}"
    _require(plan, rows, ids, "sizes", good, rule)
    limit = TURNS if plan.transposes else TRANSPOSE
    _require(plan, rows, ids, "turns", rows.turns < limit, f"below {limit}")
    if rows.places is not None:
        x0, y0, x1, y1 = rows.places.T
        tall, wide = rows.sizes.T
        good = (
            (x0 >= 0) & (y0 >= 0) & (x0 < x1) & (y0 < y1) & (x1 <= wide) & (y1 <= tall)
        )
        if plan.filled:
            good &= (x1 - x0 == width) & (y1 - y0 == height)
        rule = f"not empty, inside of the output; `filled` is {plan.filled}"
        _require(plan, rows, ids, "places", good, rule)


def _require_forms(plan: Any, rows: Rows) -> None:
    """Check dtypes and shapes; from then on the fields can be compared."""
    if (rows.frames is not None) != (len(plan.sample_shape) == 4):
        _fault(plan, "frames", "only a plan of clips has them")
    forms: dict[str, tuple[type, tuple[int, ...]]] = {
        "regions": (np.int64, (4,)),
        "windows": (np.float64, (4,)),
        "sizes": (np.int64, (2,)),
        "turns": (np.uint8, ()),
        "frames": (np.int64, plan.sample_shape[1:2]),
        # slots, 1 + numbers
        "ops": (np.float32, () if rows.ops is None else rows.ops.shape[1:]),
        "places": (np.int64, (4,)),
        "exif": (np.int64, (3,)),
    }
    for name, (dtype, inner) in forms.items():
        value = getattr(rows, name)
        if value is None and name in ("frames", "ops", "places", "exif"):
            continue
        value = np.asarray(value)
        if value.dtype != dtype or value.shape != (len(rows), *inner):
            form = f"{np.dtype(dtype)} {(len(rows), *inner)}"
            _fault(plan, name, f"{value.dtype} {value.shape}, and has to be {form}")


def _require(
    plan: Any, rows: Rows, ids: Array, field: str, good: Array, rule: str
) -> None:
    """Raise FaultyPlan for the first row of which `good`, bool [B] or [B, K], is not all True."""
    # the fastest way to ask: this is done for every batch
    if np.count_nonzero(good) < good.size:
        i = int(good.reshape(len(good), -1).all(axis=1).argmin())
        value = getattr(rows, field)[i].tolist()
        where = f"row {i} of {len(good)}, id {ids[i]}"
        _fault(plan, field, f"{where}: {value}, and has to be: {rule}")


def _fault(plan: Any, field: str, problem: str) -> NoReturn:
    name = type(plan).__name__
    raise FaultyPlan(f"{name} draws {field} that no loader can follow: {problem}")
