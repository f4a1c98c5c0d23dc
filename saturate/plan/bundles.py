"""Several micro-batches as one: what a loader draws, decodes and copies together where batches are small.

    micro-batches   [8][8][8][8] ... [8]      what a step trains on, and what the order counts
    bundle          [      512 rows     ]     what a loader works on: one task, one copy, a few kernels

Knows no loader and no device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial

import numpy as np

from saturate.contracts import Array, Plan, Rows
from saturate.plan.lazy import Lazy

ROWS = 512
"""Most rows that are drawn at once, or that a bundle has: calls and launches take as long for 8 rows."""
PIXELS = 128 * 224 * 224
"""Most pixels of a bundle's outputs: as many as a batch of 128 images has, and so no more memory."""
LEAST_BUNDLES = 32
"""Fewest bundles that a rank's epoch is cut into: the first step waits for a whole one."""


def count(plan: Plan, most: int, world_size: int) -> int:
    """Return how many micro-batches of `plan` a bundle has; 1 where the loader works on each by itself.

    They are `most` at most, which the plan draws at once. Bundled are batches of one shape, of still
    images or pairs, where an epoch has enough of them.
    """
    spec = plan.batches
    if most == 1 or not spec.filled or spec.varies or spec.frames:
        return 1
    pixels = math.prod(spec.canvas) * (1 + spec.scale**2) * spec.rows
    # not samples * views: repeats and balance make several rows of a sample, and leave others out
    epoch = plan.steps() * plan.global_batch_size // (spec.rows * world_size)
    return max(min(most, epoch // LEAST_BUNDLES, PIXELS // pixels), 1)


def _arrays(rows: Rows) -> dict[str, Array]:
    """Return the arrays that rows have, by the names of their fields."""
    columns = {column.name: getattr(rows, column.name) for column in fields(Rows)}
    del columns["canvas"]
    return {name: column for name, column in columns.items() if column is not None}


def some(rows: Rows, which: slice | Array) -> Rows:
    """Return some rows of a batch, on its canvas."""
    taken = {name: column[which] for name, column in _arrays(rows).items()}
    return Rows(**taken, canvas=rows.padded)


def joined(batches: Sequence[Rows]) -> Rows:
    """Return the rows of micro-batches of one canvas as those of one batch, in their order."""
    columns = {
        name: np.concatenate([getattr(rows, name) for rows in batches])
        for name in _arrays(batches[0])
    }
    return Rows(**columns, canvas=batches[0].canvas)


def cut(rows: Rows, size: int) -> list[Rows]:
    """Return the micro-batches of `size` rows each that `joined` has made `rows` of."""
    arrays = _arrays(rows)
    cuts = (slice(begin, begin + size) for begin in range(0, len(rows), size))
    return [
        Rows(
            **{name: column[span] for name, column in arrays.items()},
            canvas=rows.canvas,
        )
        for span in cuts
    ]


class Bundled:
    """A contracts.Plan that gives bundles of `count` micro-batches of another plan.

    The last bundle of an epoch is filled up with rows that are not valid.
    """

    def __init__(self, plan: Plan, count: int) -> None:
        self.plan = plan
        self.count = count
        batches = plan.batches
        same_images = max(batches.same_images // count, 1)
        self.batches = replace(
            batches, rows=batches.rows * count, same_images=same_images
        )
        self.samples = plan.samples
        self.views = plan.views
        self.global_batch_size = plan.global_batch_size
        self.first_epochs = plan.first_epochs
        self.pixels = plan.pixels
        self.ordering = plan.ordering
        self.steps = plan.steps
        # micro-batches that the last call of `rows` returned, as bundles
        self.bundled = 0

    def rows(self, epoch: int, first: int) -> Sequence[Rows]:
        """Return the bundles of this rank behind `first` samples, drawn on access."""
        drawn = self.plan.rows(epoch, first)
        self.bundled = len(drawn)
        return Lazy(-(-len(drawn) // self.count), partial(self._bundle, drawn))

    def _bundle(self, drawn: Sequence[Rows], index: int) -> Rows:
        batches = drawn[index * self.count : (index + 1) * self.count]
        last = batches[-1]
        none = np.zeros_like(last.valid)
        padding = replace(last, ids=np.full_like(last.ids, -1), valid=none)
        return joined([*batches, *[padding] * (self.count - len(batches))])


def rows_of_part(plan: Plan, workers: int, most: int) -> int:
    """Return how many rows a worker's task has: `most`, or fewer where all workers are to share a bundle."""
    if not isinstance(plan, Bundled):
        return most
    return min(
        most, max(plan.plan.batches.rows, -(-plan.batches.rows // max(workers, 1)))
    )
