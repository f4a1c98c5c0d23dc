"""The plan: which sample, which frames, which window, which turn, in which order, for one rank.

Knows no loader, no label, no device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np

from saturate.contracts import Array, BatchSpec, Columns, Rows, UserError, counted
from saturate.plan import bundles, checks, order
from saturate.plan.balance import Balance
from saturate.plan.draws import Purpose, bits, key
from saturate.plan.lazy import Lazy

COMING_ROWS = 4096
"""How many upcoming rows have their sizes prefetched, where sizes are read while training runs."""
REPEAT_BIT = 40
"""Repeat r draws with counter id + (r << 40); repeat 0 draws what a run without --repeats draws."""
NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class EpochPlan(ABC):
    """The base of all plans: a rank's share of an epoch's order.

    An *item* is one view of a sample, as the number sample * views + view. `policy` says how samples are
    framed.
    """

    columns: Columns
    policy: Any  # of each plan's own class, with `image_size`
    _: KW_ONLY
    seed: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    accumulate: int = 1
    training: bool = True
    # training: in another order each epoch; else in that of the data
    shuffled: bool = True
    # training: rows of a sample in an epoch, which shows as many samples fewer
    repeats: int = 1
    # training: classes come alike, in place of every sample once
    balance: Balance | None = None
    # training: the last step of an epoch is filled up, not dropped
    keeps_tail: bool = False
    batches: BatchSpec = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # the dataclass is frozen; it is asked for in every batch
        object.__setattr__(self, "batches", self.batch_spec())

    def batch_spec(self) -> BatchSpec:
        """Return what the batches have in common: by default images of policy.image_size."""
        side = self.policy.image_size
        turned = self.columns.exif is not None
        return BatchSpec(rows=self.batch_size, canvas=(side, side), transposed=turned)

    @property
    def samples(self) -> int:
        """Return the number of samples in the whole data set."""
        return len(self.columns.height)

    @property
    def first_epochs(self) -> tuple[int, ...]:
        return (0,)

    def pixels(self, epoch: int) -> int:
        return 1

    @property
    def views(self) -> int:
        """Return how many rows a sample has in an epoch; in training at most."""
        return self.max_repeats if self.training else 1

    @property
    def max_repeats(self) -> int:
        """Return how often an epoch of training shows a sample, at most."""
        return self.repeats if self.balance is None else self.balance.most

    @property
    def stored(self) -> tuple[Array, Array]:
        """Return heights and widths, pixels [n], that regions lie in."""
        return self.columns.height, self.columns.width

    def _stored(self, ids: Array) -> tuple[Array, Array]:
        """Return heights and widths of samples `ids`, pixels [B]."""
        heights, widths = self.stored
        return np.asarray(heights[ids]), np.asarray(widths[ids])

    @property
    def segments(self) -> tuple[Array, Array] | None:
        """Return the first frame of each sample in its video, and how many it has, [n]; None of images."""
        return None

    @property
    def batches_per_draw(self) -> int:
        """Return how many micro-batches are drawn at once."""
        return max(bundles.ROWS // self.batch_size, 1)

    @property
    def ordering(self) -> str:
        order = f"seed {self.seed}" if self.shuffled else "sequential"
        repeated = f", {self.repeats} repeats" if self.repeats > 1 else ""
        return order + repeated + (", classes alike" if self.balance else "")

    def rng_counters(self, ids: Array, views: Array) -> Array:
        """Return int64 [B], what the random numbers of a row are drawn by: its sample, and which repeat."""
        return ids + (views << REPEAT_BIT) if self.training else ids

    @abstractmethod
    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        """Return the fields of Rows for views of samples, but `ids` and `valid`.

        Sizes may be left out where all are those of the canvas.
        """

    @property
    def global_batch_size(self) -> int:
        return self.world_size * self.batch_size * self.accumulate

    def steps(self, first: int = 0) -> int:
        """Return the optimiser steps left in an epoch after `first` samples (validation: micro-batches).

        Of the last one not all rows may count, where the plan keeps the tail of an epoch.
        """
        if self.training:
            return order.steps(
                self.samples, first, self.global_batch_size, keeps_tail=self.keeps_tail
            )
        return len(self.rows(0, first))

    def require_a_step(self) -> None:
        """Raise UserError when not even one step fits, naming the largest batch that would."""
        if self.training and self.steps() == 0:
            largest = self.samples // (self.world_size * self.accumulate)
            fits = f"the largest that fits is --batch-size {largest}"
            fewer = "take fewer ranks, or a smaller --global-batch-size or --accumulate"
            raise UserError(
                f"--batch-size {self.batch_size} x {counted(self.world_size, 'rank')} "
                f"x --accumulate {self.accumulate} = {self.global_batch_size} samples a step, "
                f"but the data has {counted(self.samples, 'training sample')}; "
                f"{fits if largest else fewer}"
            )

    def rows(self, epoch: int, first: int) -> Lazy:
        """Return this rank's micro-batches behind `first` samples (validation: items) of the epoch."""
        return _EpochRows(self, epoch, first)

    def ordered(self, epoch: int) -> Array:
        """Return int64, the items of an epoch in their order."""
        if not self.training:
            return np.arange(self.samples * self.views, dtype=np.int64)
        if self.balance is not None:
            return self.balance.ordered(self.seed, epoch)
        samples = np.arange(self.samples, dtype=np.int64)
        if self.shuffled:
            samples = order.order(self.seed, epoch, self.samples)
        return order.repeated(samples, self.repeats)

    def draw(
        self,
        epoch: int,
        items: Array,
        count: int = 0,
        coming: Array = NONE,
        fillers: int = 0,
    ) -> Rows:
        """Return the rows of any items, padded with id -1 to `count`, or to the batch size.

        `coming` are items that will be drawn next, and the last `fillers` items count elsewhere. Raises
        FaultyPlan: here alone are rows made, and so here are they checked.
        """
        real = len(items)
        count = count or self.batch_size
        # padding repeats a real row, so that whoever decodes it finds numbers that are sound
        last = items[-1] if real else 0
        items = np.concatenate([items, np.full(count - real, last)])
        ids, views = np.divmod(items, self.views)
        # before `frame`, which reads columns at these
        checks.require_ids(self, ids[: real - fillers])
        if self.columns.fetch is not None:
            self.columns.fetch(ids[:real], coming // self.views)
        framed = self.frame(epoch, ids, views)
        if self.columns.exif is not None:
            shown = (self.columns.exif, *self.stored)
            columns = [np.asarray(column[ids], np.int64) for column in shown]
            framed = {**framed, "exif": np.stack(columns, axis=1)}
        valid = np.arange(count) < real
        sizes = np.full((count, 2), self.batches.canvas, np.int64)
        framed = {"sizes": sizes, **framed}
        rows = Rows(ids=np.where(valid, ids, -1), valid=valid, **framed)
        checks.require_sound(self, rows, ids)
        return rows


class _EpochRows(Lazy):
    """An index draws its micro-batch, small ones with their neighbours."""

    def __init__(self, plan: EpochPlan, epoch: int, first: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._first = first
        self._ordered = plan.ordered(epoch)
        # a validation drops nothing, and a step of it is one micro-batch of each rank
        keeps_tail = plan.keeps_tail or not plan.training
        accumulate = plan.accumulate if plan.training else 1
        a_step = plan.world_size * plan.batch_size * accumulate
        items = len(self._ordered)
        steps = order.steps(items, first, a_step, keeps_tail=keeps_tail)
        self._fillers = plan.training and plan.keeps_tail
        self._counted = items
        if self._fillers:
            self._ordered = order.filled_up(self._ordered, first, a_step)
        super().__init__(steps * accumulate, self._drawn_with_neighbours)
        self._drawn: tuple[range, list[Rows]] = range(0), []
        # micro-batches up to this one were named as coming
        self._prefetched_to = 0

    def _drawn_with_neighbours(self, index: int) -> Rows:
        # one read of both: another thread may put its own there
        which, drawn = self._drawn
        if index not in which:
            begin = index - index % self._plan.batches_per_draw
            which = range(begin, min(begin + self._plan.batches_per_draw, len(self)))
            self._drawn = which, drawn = which, self._draw(which)
        return drawn[index - which.start]

    def _items(self, which: range) -> Array:
        """Return the items of these micro-batches."""
        plan = self._plan
        shares = [
            order.share(
                self._ordered,
                index,
                first=self._first,
                batch_size=plan.batch_size,
                world_size=plan.world_size,
                rank=plan.rank,
            )
            for index in which
        ]
        return np.concatenate([NONE, *shares])

    def _key(self, index: int) -> np.uint64:
        """Return the key of a micro-batch: of the seed, of its place in training, and of the rank."""
        plan = self._plan
        position = self._first + index * plan.world_size * plan.batch_size
        return np.uint64(key(plan.seed, self._epoch, Purpose.MIX, position, plan.rank))

    def _to_prefetch(self, begin: int) -> range:
        """Return the micro-batches from `begin` on that are COMING_ROWS at most, and were not named before."""
        end = min(begin + -(-COMING_ROWS // self._plan.batch_size), len(self))
        begin = max(begin, self._prefetched_to) if self._prefetched_to <= end else begin
        self._prefetched_to = end
        return range(begin, end)

    def _draw(self, which: range) -> list[Rows]:
        """Draw these micro-batches; only the last of a validation may be short."""
        plan = self._plan
        size = plan.batch_size
        coming = (
            self._items(self._to_prefetch(which.stop)) if plan.columns.fetch else NONE
        )
        items = self._items(which)
        fillers = 0
        if self._fillers:
            # axes: [micro-batches], where each ends in the order
            turns = np.array(which) * plan.world_size + plan.rank + 1
            ends = self._first + turns * size
            fillers = int(np.clip(ends - self._counted, 0, size).sum())
        count = size * len(which)
        rows = plan.draw(self._epoch, items, count, coming, fillers)
        if self._fillers:
            rows = replace(rows, fillers=np.arange(count) >= count - fillers)
        if plan.training:
            # seeds are drawn by items: each repeat of a sample has its own
            seeds = np.zeros(len(rows), np.uint64)
            stream = key(plan.seed, self._epoch, Purpose.TRANSFORM)
            seeds[: len(items)] = bits(stream, items)
            keys = np.repeat([self._key(index) for index in which], size)
            rows = replace(rows, keys=keys, seeds=seeds)
        # a canvas is a batch's: a plan that gives one draws them one by one
        return [rows] if len(which) == 1 else bundles.cut(rows, size)
