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
"""Most rows that are drawn at once, or that a bundle has: calls and launches take as long for 8 rows."""
PIXELS = 128 * 224 * 224
"""Most pixels of a bundle's outputs: as many as a batch of 128 images has, and so no more memory."""
LEAST_BUNDLES = 32
"""Fewest bundles that a rank's epoch is cut into. The first step waits for a whole bundle, which in a short
epoch would be much of it."""


def count(plan: Plan, together: int, world_size: int) -> int:
    """Return how many micro-batches of `plan` a bundle has; 1 where the loader works on each by itself.

    They are `together` at most, which the plan draws at once. Bundled are batches of one shape, of still
    images or pairs, where an epoch has enough of them.
    """
    if (
        together == 1
        or not plan.filled
        or plan.resident > 1
        or len(plan.sample_shape) > 3
    ):
        return 1
    height, width = plan.sample_shape[1:]
    pixels = height * width * (1 + plan.upscale**2)
    # not samples * views: repeats and balance make several rows of a sample, and leave others out
    epoch = plan.steps() * plan.global_batch_size // (plan.batch_size * world_size)
    return max(
        min(together, epoch // LEAST_BUNDLES, PIXELS // pixels // plan.batch_size), 1
    )


def joined(batches: Sequence[Rows]) -> Rows:
    """Return the rows of micro-batches of one canvas as those of one batch, in their order."""
    columns = {
        column.name: [getattr(rows, column.name) for rows in batches]
        for column in fields(Rows)
    }
    canvas = columns.pop("canvas")[0]
    arrays = {
        name: np.concatenate(values)
        for name, values in columns.items()
        if values[0] is not None
    }
    return Rows(**arrays, canvas=canvas)


def cut(rows: Rows, size: int) -> list[Rows]:
    """Return the micro-batches of `size` rows each that `joined` has made `rows` of."""
    columns = {column.name: getattr(rows, column.name) for column in fields(Rows)}
    canvas = columns.pop("canvas")
    arrays: dict[str, Array] = {
        name: column for name, column in columns.items() if column is not None
    }
    cuts = (slice(begin, begin + size) for begin in range(0, len(rows), size))
    return [
        Rows(**{name: column[its] for name, column in arrays.items()}, canvas=canvas)
        for its in cuts
    ]


class Bundled:
    """A contracts.Plan that gives bundles of `count` micro-batches of another plan.

    Its `batch_size` is a bundle's; what is not said here is the other plan's. The last bundle of an epoch is
    filled up with rows that are not valid.
    """

    def __init__(self, plan: Plan, count: int) -> None:
        self.plan = plan
        self.count = count
        self.batches = 0
        """How many micro-batches of `plan` the last call of `rows` returned, as bundles."""

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
    """Return how many rows a worker's task has: `most`, or fewer where all workers are to share a bundle."""
    if not isinstance(plan, Bundled):
        return most
    return min(most, max(plan.plan.batch_size, -(-plan.batch_size // max(workers, 1))))


class _Bundles(Lazy):
    """The bundles of an epoch, drawn when they are asked for, as the micro-batches are."""

    def __init__(self, drawn: Sequence[Rows], count: int) -> None:
        self._drawn = drawn
        self._count = count

    def __len__(self) -> int:
        return -(-len(self._drawn) // self._count)

    def _at(self, index: int) -> Rows:
        begin = index * self._count
        own = self._drawn[begin : min(begin + self._count, len(self._drawn))]
        padding = replace(
            own[-1],
            ids=np.full_like(own[-1].ids, -1),
            valid=np.zeros_like(own[-1].valid),
        )
        return joined([*own, *[padding] * (self._count - len(own))])
