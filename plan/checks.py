"""What a plan has drawn, held against what every loader relies on. Knows no loader, and draws nothing.

A loader decodes what it is told. Told nonsense, one would call a good file damaged, another end inside of its
decoder, a third deliver other pixels. So a FaultyPlan that names it stops a faulty plan where its rows are
made (EpochPlan.draw), or, where it does not derive from EpochPlan, where a loader takes them (Checked).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from contracts import Array, FaultyPlan, Plan, Rows
from plan.geometry import TRANSPOSE, TURNS
from plan.lazy import Lazy
from plan.ops import Op

ROUNDING = 1e-6
"""Pixels by which a window may lie outside of its region: its edges are products of ratios."""
DTYPES = {
    "regions": np.dtype(np.int64),
    "windows": np.dtype(np.float64),
    "sizes": np.dtype(np.int64),
    "turns": np.dtype(np.uint8),
    "frames": np.dtype(np.int64),
    "ops": np.dtype(np.float32),
    "places": np.dtype(np.int64),
    "exif": np.dtype(np.int64),
}
"""Field of Rows that `frame` may return -> its dtype."""
ALWAYS = {"regions", "windows", "turns"}
"""What `frame` has to return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the columns say of the samples: which numbers of a row can be followed."""

    heights: Array  # [n], pixels that regions lie in; of videos as displayed
    widths: Array
    # the first frame of each sample in its video, and how many it has, both [n]; None of images
    segments: tuple[Array, Array] | None = None


def require_items(plan: Plan, items: Array) -> None:
    """Raise FaultyPlan unless these are items of an epoch, as EpochPlan counts them, int64 [n]."""
    if not (
        isinstance(items, np.ndarray) and items.dtype == np.int64 and items.ndim == 1
    ):
        _fault(plan, "an order", f"it is {_form(items)}, and has to be int64 [n]")


def require_ids(plan: Plan, stored: Stored, ids: Array) -> None:
    """Raise FaultyPlan unless the columns have all of `ids`, int64 [B]."""
    if not (isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.ndim == 1):
        _fault(plan, "ids", f"they are {_form(ids)}, and have to be int64 [B]")
    samples = len(stored.heights)
    inside = (ids >= 0) & (ids < samples)
    _require(
        plan,
        ids,
        "ids",
        inside,
        lambda i: f"the columns have samples 0 to {samples - 1}",
    )


def require_once(plan: Plan, ids: Array) -> None:
    """Raise FaultyPlan for an id that comes more often than a sample has views."""
    ordered = np.sort(ids)
    again = ordered[plan.views :] == ordered[: -plan.views]
    if np.count_nonzero(again):
        sample = ordered[int(again.argmax())]
        times = np.count_nonzero(ids == sample)
        _fault(
            plan,
            "ids",
            f"sample {sample} came {times} times, and has {plan.views} views",
        )


def require_fields(plan: Plan, framed: Any) -> None:
    """Raise FaultyPlan unless this is what `frame` returns: the fields of Rows by their names."""
    if not isinstance(framed, Mapping):
        _fault(
            plan,
            "a frame",
            f"it is a {type(framed).__name__}, and has to be a mapping of fields",
        )
    if unknown := sorted(map(str, framed.keys() - DTYPES.keys() - {"canvas"})):
        _fault(plan, unknown[0], f"`frame` returns {', '.join(DTYPES)} and canvas")
    if missing := sorted(ALWAYS - framed.keys()):
        _fault(plan, missing[0], "`frame` does not return it")


def require_sound(plan: Plan, stored: Stored, rows: Rows, ids: Array) -> None:
    """Raise FaultyPlan unless a loader can follow the rows.

    `ids`: int64 [B], the sample whose numbers a row has, of padding too.
    """
    _require_forms(plan, rows)
    _require_framing(plan, stored, rows, ids)
    _require_outputs(plan, rows, ids)
    if (rows.ops is not None) != plan.operates:
        has = "none" if rows.ops is None else "some"
        _fault(
            plan,
            "ops",
            f"rows have {has}, and the plan's `operates` is {plan.operates}",
        )
    if rows.ops is not None:
        _require_operations(plan, rows.ops, ids)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A contracts.Plan whose rows are checked as they are drawn; all else it has is `plan`'s."""

    plan: Plan
    stored: Stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    def rows(self, epoch: int, first: int) -> Sequence[Rows]:
        """Return the plan's rows; drawing one raises FaultyPlan where no loader could follow it."""
        return _CheckedRows(self, self.plan.rows(epoch, first))


class _CheckedRows(Lazy):
    """Lazy, as the rows of the plan may be."""

    def __init__(self, checked: Checked, drawn: Sequence[Rows]) -> None:
        self._checked = checked
        self._drawn = drawn

    def __len__(self) -> int:
        return len(self._drawn)

    def _at(self, index: int) -> Rows:
        rows = self._drawn[index]
        plan = self._checked.plan
        # padding has no id by which its numbers could be held against a column, and is what a real row is
        real = rows.ids[rows.valid]
        require_ids(plan, self._checked.stored, real)
        columns: dict[str, Any] = {
            column.name: getattr(rows, column.name) for column in fields(rows)
        }
        cut: dict[str, Any] = {
            name: value[rows.valid]
            for name, value in columns.items()
            if isinstance(value, np.ndarray)
        }
        if len(real):
            require_sound(plan, self._checked.stored, replace(rows, **cut), real)
        return rows


def _require_forms(plan: Plan, rows: Rows) -> None:
    """Check dtypes and shapes; from then on the fields can be compared."""
    count = len(rows.ids)
    of_clips = len(plan.sample_shape) == 4
    if of_clips and rows.frames is None:
        _fault(plan, "frames", "a plan of clips says which frames they have")
    if rows.frames is not None and not of_clips:
        _fault(plan, "frames", "this is no plan of clips")
    inner: dict[str, tuple[int, ...]] = {
        "sizes": (2,),
        "turns": (),
        "frames": plan.sample_shape[1:2],
    }
    inner |= {"exif": (3,)}
    inner |= dict.fromkeys(("regions", "windows", "places"), (4,))
    for name, dtype in DTYPES.items():
        value = getattr(rows, name)
        if value is None and name not in ALWAYS:
            continue
        if not isinstance(value, np.ndarray):
            _fault(
                plan,
                name,
                f"they are a {type(value).__name__}, and have to be an array",
            )
        if value.dtype != dtype:
            _fault(plan, name, f"they are {value.dtype}, and have to be {dtype}")
        if name != "ops" and value.shape != (count, *inner[name]):
            _fault(
                plan,
                name,
                f"they have shape {value.shape}, and have to be {(count, *inner[name])}",
            )
        if name == "ops" and (value.ndim != 3 or len(value) != count):
            _fault(
                plan,
                name,
                f"they have shape {value.shape}, and have to be ({count}, slots, 1 + numbers)",
            )


def _require_framing(plan: Plan, stored: Stored, rows: Rows, ids: Array) -> None:
    """Check that regions lie in the stored images, and windows in their regions; neither may be empty.

    NaN fails every comparison.
    """
    require = partial(_require, plan, ids)
    heights, widths = (
        np.asarray(column[ids]) for column in (stored.heights, stored.widths)
    )
    # axes: [B], edge by edge, since NumPy is slow where the inner axis has two numbers
    x0, y0, x1, y1 = regions = rows.regions.T
    for good in (rows.regions >= 0, x0 < x1, y0 < y1, x1 <= widths, y1 <= heights):
        require(
            "regions",
            good,
            lambda i: (
                f"{_of(regions[:, i])} in an image {widths[i]} wide, {heights[i]} high"
            ),
        )
    wide = x1 - x0
    high = y1 - y0
    left, top, right, bottom = windows = rows.windows.T
    ends = right - wide <= ROUNDING, bottom - high <= ROUNDING
    for good in (rows.windows >= -ROUNDING, left < right, top < bottom, *ends):
        require(
            "windows",
            good,
            lambda i: (
                f"{_of(windows[:, i])} in a region {wide[i]} wide, {high[i]} high"
            ),
        )
    if rows.frames is not None:
        frames = rows.frames
        require(
            "frames",
            frames >= 0,
            lambda i: f"{_of(frames[i])}; the first of a video is 0",
        )
        if stored.segments is not None:
            first, count = (np.asarray(column[ids]) for column in stored.segments)
            last = first + count - 1
            require(
                "frames",
                frames <= last[:, None],
                lambda i: f"{_of(frames[i])}; the last is {last[i]}",
            )


def _require_outputs(plan: Plan, rows: Rows, ids: Array) -> None:
    """Check sizes, canvas, turns and places, and what the plan says that its batches have in common."""
    require = partial(_require, plan, ids)
    sizes = rows.sizes
    require(
        "sizes", sizes > 0, lambda i: f"{_of(sizes[i])}; a side has at least a pixel"
    )
    largest = plan.sample_shape[-2:]
    first: tuple[int, int] = tuple(sizes[0].tolist())
    canvas = rows.canvas or (first if plan.filled else largest)
    if canvas[0] > largest[0] or canvas[1] > largest[1]:
        _fault(
            plan,
            "canvas",
            f"{canvas}, and the plan's `sample_shape` is {plan.sample_shape}",
        )
    for sides, limit in zip(sizes.T, canvas, strict=True):
        require(
            "sizes",
            sides <= limit,
            lambda i: f"{_of(sizes[i])} on a canvas of {canvas}",
        )
        if plan.filled:
            require(
                "sizes",
                sides == limit,
                lambda i: f"{_of(sizes[i])} on {canvas}, and `filled` is True",
            )
    turns = rows.turns
    require("turns", turns < TURNS, lambda i: f"{turns[i]}; 0 to {TURNS - 1} are turns")
    if not plan.transposes:
        require(
            "turns",
            turns < TRANSPOSE,
            lambda i: f"{turns[i]}, and the plan's `transposes` is False",
        )
    if rows.places is not None:
        places = rows.places
        for good in (
            places[:, :2] >= 0,
            places[:, :2] < places[:, 2:],
            places[:, 2:] <= sizes[:, ::-1],
        ):
            require(
                "places",
                good,
                lambda i: f"{_of(places[i])} in an output of {_of(sizes[i])}",
            )
        if plan.filled and not rows.filled:
            _fault(
                plan,
                "places",
                "some leave a part of the canvas free, and the plan's `filled` is True",
            )


def _require_operations(plan: Plan, ops: Array, ids: Array) -> None:
    """Check that every slot has an operation that there is, with all of its numbers."""
    require = partial(_require, plan, ids)
    which = ops[:, :, 0]
    there = f"there are 1 to {len(Op)}, and 0 for none"
    require(
        "ops",
        np.isin(which, [0, *Op]),
        lambda i: f"operations {_of(which[i])}; {there}",
    )
    require(
        "ops", np.isfinite(ops), lambda i: f"{_of(ops[i].ravel())} are not all finite"
    )
    for operation in Op:
        count = operation.takes
        if count > ops.shape[2] - 1 and (which == operation).any():
            _fault(
                plan,
                "ops",
                f"operation {operation} takes {count} numbers, and has {ops.shape[2] - 1}",
            )


def _require(
    plan: Plan, ids: Array, field: str, good: Array, why: Callable[[int], str]
) -> None:
    """Raise FaultyPlan for the first row of which `good`, bool [B] or [B, K], is not all True."""
    if (
        np.count_nonzero(good) < good.size
    ):  # the fastest way to ask: this is done for every batch
        i = int(good.reshape(len(good), -1).all(axis=1).argmin())
        _fault(plan, field, f"row {i} of {len(good)}, id {ids[i]}: {why(i)}")


def _fault(plan: Plan, field: str, problem: str) -> NoReturn:
    raise FaultyPlan(
        f"{type(plan).__name__} draws {field} that no loader can follow: {problem}"
    )


def _form(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


def _of(numbers: Array) -> str:
    return f"[{', '.join(f'{number:g}' for number in numbers.tolist())}]"
