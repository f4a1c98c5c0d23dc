"""The plan: which sample, which frames, which window, which turn, in which order, for one rank.

Knows no loader, no label, no device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np

from saturate.contracts import Array, Fetch, Rows, UserError, counted
from saturate.plan import bundles, checks, order
from saturate.plan.balance import Balance
from saturate.plan.draws import Purpose, bits, key
from saturate.plan.lazy import Lazy

COMING_ROWS = 4096
"""How many upcoming rows have their sizes prefetched, where sizes are read while training runs."""
REPEAT_BIT = 40
"""A repeat counts so many bits above the sample's id: the first is drawn as if it were the only one."""
NONE = np.zeros(0, np.int64)


def exif_of(columns: Any) -> Array | None:
    """Return uint8 [n], the turns that show stored images; None of columns that know nothing of EXIF."""
    return getattr(columns, "exif", None)


@dataclass(frozen=True, slots=True)
class EpochPlan(ABC):
    """The base of all plans: a rank's share of an epoch's order.

    An *item* is one view of a sample, as the number sample * views + view. `columns` have the sizes of all
    samples, `height` and `width`, pixels [n]: as stored, of videos as displayed; with `exif`, the column of
    EXIF's turns, as viewers show them. `policy` says how they are framed.
    """

    columns: Any
    policy: Any
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

    @property
    def samples(self) -> int:
        """Return the number of samples in the whole data set."""
        return len(self.columns.height)

    @property
    def image_size(self) -> int:
        """Return the largest side of an output, in pixels."""
        side: int = self.policy.image_size
        return side

    @property
    def fetch(self) -> Fetch | None:
        """Return what makes the columns hold the sizes of samples; None where all are there."""
        return getattr(self.columns, "fetch", None)

    @property
    def first_epochs(self) -> tuple[int, ...]:
        return (0,)

    @property
    def views(self) -> int:
        """Return how many rows a sample has in an epoch; in training at most."""
        return self.shows if self.training else 1

    @property
    def shows(self) -> int:
        """Return how often an epoch of training shows a sample, at most."""
        return self.repeats if self.balance is None else self.balance.most

    @property
    def resident(self) -> int:
        return 1

    @property
    def filled(self) -> bool:
        return True

    @property
    def operates(self) -> bool:
        return False

    @property
    def exif(self) -> Array | None:
        """Return uint8 [n], the turns that show stored images; None where they are taken as stored."""
        return exif_of(self.columns)

    @property
    def transposes(self) -> bool:
        return self.exif is not None

    @property
    def same_frames(self) -> int:
        return 1

    @property
    def upscale(self) -> int:
        return 0

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
    def together(self) -> int:
        """Return how many micro-batches are drawn at once."""
        return max(bundles.ROWS // self.batch_size, 1)

    @property
    def ordering(self) -> str:
        order = f"seed {self.seed}" if self.shuffled else "sequential"
        repeated = f", {self.repeats} repeats" if self.repeats > 1 else ""
        return order + repeated + (", classes alike" if self.balance else "")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape that a model gets for one row: 3, of a clip its frames, height, width."""
        return (3, self.image_size, self.image_size)

    def counters(self, ids: Array, views: Array) -> Array:
        """Return int64 [B], what the random numbers of a row are drawn by: its sample, and which repeat."""
        return ids + (views << REPEAT_BIT) if self.training else ids

    @abstractmethod
    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        """Return the fields of Rows for views of samples, but `ids` and `valid`.

        Sizes may be left out where all are image_size x image_size.
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
        if self.fetch is not None:
            self.fetch(ids[:real], coming // self.views)
        framed = self.frame(epoch, ids, views)
        if self.exif is not None:
            shown = (self.exif, *self.stored)
            columns = [np.asarray(column[ids], np.int64) for column in shown]
            framed = {**framed, "exif": np.stack(columns, axis=1)}
        valid = np.arange(count) < real
        sizes = np.full((count, 2), self.image_size, np.int64)
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
        self._named = 0

    def _drawn_with_neighbours(self, index: int) -> Rows:
        # one read of both: another thread may put its own there
        which, drawn = self._drawn
        if index not in which:
            begin = index - index % self._plan.together
            which = range(begin, min(begin + self._plan.together, len(self)))
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

    def _coming(self, begin: int) -> range:
        """Return the micro-batches from `begin` on that are COMING_ROWS at most, and were not named before."""
        end = min(begin + -(-COMING_ROWS // self._plan.batch_size), len(self))
        begin = max(begin, self._named) if self._named <= end else begin
        self._named = end
        return range(begin, end)

    def _draw(self, which: range) -> list[Rows]:
        """Draw these micro-batches; only the last of a validation may be short."""
        plan = self._plan
        size = plan.batch_size
        coming = self._items(self._coming(which.stop)) if plan.fetch else NONE
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
