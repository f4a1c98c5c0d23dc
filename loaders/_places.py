"""Where the images of a batch lie on its canvas, as numbers. Must not know how they are decoded, nor the device."""

from __future__ import annotations

from contracts import Plan, Rows
from plan import geometry


def filled(rows: Rows) -> bool:
    """Whether every window fills all of the canvas, so that nothing is left to be 0."""
    height, width = rows.padded
    return bool((geometry.places(rows) == (0, 0, width, height)).all())


def placing(plan: Plan) -> bool:
    """Whether a plan's images leave parts of their canvas free, or differ in size; its first batch stands for all."""
    rows = plan.rows(0, 0)
    return plan.resident > 1 or (len(rows) > 0 and (rows[0].places is not None or not filled(rows[0])))


def colouring(plan: Plan) -> bool:
    """Whether a plan distorts colours; its first batch stands for all."""
    rows = plan.rows(0, 0)
    return len(rows) > 0 and rows[0].colour is not None
