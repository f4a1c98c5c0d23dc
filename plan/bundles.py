"""Several micro-batches as one: what a loader draws, decodes and copies together where batches are small.

    micro-batches   [8][8][8][8] ... [8]      what a step trains on, and what the order counts
    bundle          [      512 rows     ]     what a loader works on: one task, one copy, a few kernels

Knows no loader and no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from contracts import Array, Plan, Rows
from plan.lazy import Lazy

ROWS = 512
"""Rows drawn at once, and of a bundle, at most: calls and launches take as long for 8 of them."""
PIXELS = 128 * 224 * 224
"""Pixels of a bundle's outputs, at most: memory for more would be felt."""

OF_AN_EPOCH = 32
"""Bundles of a rank's epoch, at least: its first step waits for a whole one, so small sets have none."""


def count(plan: Plan, together: int, world_size: int) -> int:
    """Return how many micro-batches of `plan` make a bundle, of the `together` that it draws at once.

    1: none are made. Only batches of one shape are bundled, of still images, and none of small sets.
    """
    if together == 1 or not plan.filled or plan.resident > 1 or len(plan.sample_shape) > 3:
        return 1
    height, width = plan.sample_shape[1:]
    pixels = height * width * (1 + plan.upscale**2)
    # not samples * views: repeats and balance make several rows of a sample, and leave others out
    epoch = plan.steps() * plan.global_batch_size // (plan.batch_size * world_size)
    return max(min(together, epoch // OF_AN_EPOCH, PIXELS // pixels // plan.batch_size), 1)


def joined(batches: Sequence[Rows]) -> Rows:
    """Return the rows of micro-batches that have one canvas, behind each other."""
    columns = {column.name: [getattr(rows, column.name) for rows in batches] for column in fields(Rows)}
    canvas = columns.pop("canvas")[0]
    arrays = {name: np.concatenate(values) for name, values in columns.items() if values[0] is not None}
    return Rows(**arrays, canvas=canvas)


def cut(rows: Rows, size: int) -> list[Rows]:
    """Return micro-batches of `size` rows each: what `joined` was given."""
    columns = {column.name: getattr(rows, column.name) for column in fields(Rows)}
    canvas = columns.pop("canvas")
    arrays: dict[str, Array] = {name: column for name, column in columns.items() if column is not None}
    cuts = (slice(begin, begin + size) for begin in range(0, len(rows), size))
    return [Rows(**{name: column[its] for name, column in arrays.items()}, canvas=canvas) for its in cuts]


class Bundled:
    """A contracts.Plan whose micro-batches are bundles of `plan`'s; all else it has is that plan's.

    The last bundle of an epoch is filled up with rows that are not valid.
    """

    def __init__(self, plan: Plan, count: int) -> None:
        self.plan = plan
        self.count = count
        self.batches = 0
        """Micro-batches of the sequence that was asked for last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    @property
    def batch_size(self) -> int:
        return self.plan.batch_size * self.count

    @property
    def sharing(self) -> int:
        """Return how many bundles that follow one another show the same images; see plan.patches."""
        plan: Any = self.plan
        return max(int(plan.sharing) // self.count, 1)

    def rows(self, epoch: int, first: int) -> Sequence[Rows]:
        """Return the bundles of this rank behind `first` samples, drawn on access."""
        drawn = self.plan.rows(epoch, first)
        self.batches = len(drawn)
        return _Bundles(drawn, self.count)


def rows_of_part(plan: Plan, workers: int, most: int) -> int:
    """Return the rows of a worker's task: `most`, of a bundle fewer, so that all workers share it."""
    if not isinstance(plan, Bundled):
        return most
    return min(most, max(plan.plan.batch_size, -(-plan.batch_size // max(workers, 1))))


class _Bundles(Lazy):
    """Lazy, as the micro-batches are."""

    def __init__(self, drawn: Sequence[Rows], count: int) -> None:
        self._drawn = drawn
        self._count = count

    def __len__(self) -> int:
        return -(-len(self._drawn) // self._count)

    def _at(self, index: int) -> Rows:
        begin = index * self._count
        own = self._drawn[begin : min(begin + self._count, len(self._drawn))]
        padding = replace(own[-1], ids=np.full_like(own[-1].ids, -1), valid=np.zeros_like(own[-1].valid))
        return joined([*own, *[padding] * (self._count - len(own))])
