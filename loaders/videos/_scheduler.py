"""Who decodes which clip of a batch: the device, or worker processes.

A unit is a clip with those of its views that lie together in a batch. What the device's decoders are not
exact for goes to the workers. Of the rest a worker that is free takes one that the device comes to only when
the worker is done with it; what no worker has taken when a batch is begun is the device's. So both sides are
busy but for the end of an epoch, and who decodes a clip changes neither its frames nor the order of batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from saturate.contracts import Array, Rows
from saturate.loaders.videos._worker import clips
from saturate.plan.bundles import some
from saturate.plan.geometry import upright

OPENED = 256
"""Batches that are opened, at most, before they are begun, to find work for workers: each is drawn."""
RECENT = 64
"""Units of a side over which its time for one is a mean."""
GUESS_S = {"worker": 0.5, "thread": 0.07}
"""Seconds for a unit until some are known, on a core and on an engine: 48 frames of 1080p H.264.

16 are wanted, of which three times as many are decoded.
"""
GUESS_COUNTS = 4
"""Units that the guess is worth."""
AT_ONCE = 16
"""Batches that are opened in one go, so that the device need not wait for the search."""
EARLY = 1.5, 1.0, 3.0
"""Scheduling lead of a worker in mean decode times: initial, min, max."""
LATER = 1.2
SOONER = 0.999
"""LATER and SOONER: factors of the lead after a unit that had to be waited for, and after another.

Some 1 in 200 has to be.
"""
DENSE = 0.8
"""Share of the distance between units that the workers' rate allows: no worker ever waits because of it."""


class Pace:
    """How far ahead of the device workers begin, and how far apart.

    Both follow from the last units' seconds on both sides, and from who waited for whom.
    """

    def __init__(self, *, workers: int, threads: int) -> None:
        self._hands = {"worker": workers, "thread": threads}
        self._seconds = dict(GUESS_S)
        self._known = dict.fromkeys(GUESS_S, GUESS_COUNTS)
        self._early = EARLY[0]

    def learn(self, side: str, seconds: float) -> None:
        """Take into the mean that `side`, "worker" or "thread", was busy with one unit for so long."""
        # while few are known each counts alike, later as one of RECENT: files of a data set differ
        self._known[side] += 1
        self._seconds[side] += (seconds - self._seconds[side]) / min(
            self._known[side], RECENT
        )

    def met(self, *, late: bool) -> None:
        """Move the lead: the rest of its batch was there when a worker's unit was needed; was it `late`?"""
        self._early = min(
            max(self._early * (LATER if late else SOONER), EARLY[1]), EARLY[2]
        )

    def rate(self, side: str) -> float:
        """Return the units a second that all hands of a side do together."""
        return self._hands[side] / max(self._seconds[side], 1e-9)

    @property
    def lead(self) -> float:
        """Return the number of units between those that are begun and one that a worker may take."""
        # what the device gets through while a worker does that many units
        return self._early * self._seconds["worker"] * self.rate("thread")

    @property
    def apart(self) -> float:
        """Return the least number of units from one that a worker takes to the next."""
        # while the workers do one unit the device does the rest of that many
        return DENSE * (1 + self.rate("thread") / self.rate("worker"))


@dataclass(slots=True, eq=False)
class Unit:
    """A clip of a batch."""

    places: Array  # of its rows in the batch
    able: bool  # whether the device's decoders are exact for it
    taken: bool = False  # by a worker
    done: Future[tuple[int, Any]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Dealt:
    """A batch, and who decodes its units."""

    rows: Rows
    workers: tuple[Unit, ...]
    device: tuple[Unit, ...]


class Deal:
    """Deals out the units of an epoch's batches: batches to one thread, units for workers to any thread.

    `able`: bool, by sample, what the device's decoders are exact for. `pace`: None = workers get only what
    those are not.
    """

    def __init__(
        self, rows: Sequence[Rows], views: int, able: Array, pace: Pace | None
    ) -> None:
        self._rows = rows
        self._views = views
        self._able = able
        self._pace = pace
        # batches are begun in the loader's thread, units are asked for in those of the pool's executor too
        self._lock = threading.Lock()
        self._opened: deque[tuple[Rows, list[Unit]]] = deque()  # not yet begun
        # units that no worker was offered yet, with their batch's number in the epoch
        self._coming: deque[tuple[int, Rows, Unit]] = deque()
        self._next = self._numbered = self._begun = 0
        # where the last unit that a worker took was due; the first has none
        self._last = float("-inf")

    def batch(self) -> Dealt | None:
        """Begin the next batch and return it; None behind the last."""
        with self._lock:
            if not self._opened and not self._open():
                return None
            rows, units = self._opened.popleft()
            self._begun += len(units)
            # too late for a worker; but what the device cannot do waits for one, however late
            while self._coming:
                number, _, first = self._coming[0]
                if number >= self._begun or not first.able:
                    break
                self._coming.popleft()
            device = tuple(unit for unit in units if unit.able and not unit.taken)
            workers = tuple(unit for unit in units if unit.taken or not unit.able)
            return Dealt(rows, workers, device)

    def unit(self) -> tuple[Rows, Unit] | None:
        """Return the next one for a worker, with its rows, upright; None = none for now.

        They come in the order of the batches.
        """
        with self._lock:
            for _ in range(AT_ONCE):
                while self._coming:
                    number, rows, unit = self._coming.popleft()
                    if not unit.able or self._may_take(number):
                        unit.taken = True
                        return some(rows, unit.places), unit
                if len(self._opened) >= OPENED or not self._open():
                    break
        return None

    def _may_take(self, number: int) -> bool:
        if self._pace is None:
            return False
        # however slow a worker seems, it gets some units: else nobody would see that it no longer is
        lead = min(
            self._pace.lead,
            min(OPENED, len(self._rows)) / 2 * self._numbered / max(self._next, 1),
        )
        due = max(self._begun + lead, self._last + self._pace.apart)
        if number < due:
            return False
        self._last = max(due, number - 1)  # and not `number`: 2.3 apart would be 3
        return True

    def _open(self) -> bool:
        """Look at one batch more; False behind the last."""
        if self._next == len(self._rows):
            return False
        rows = self._rows[self._next]
        units = [
            Unit(clip, bool(self._able[rows.ids[clip[0]]]))
            for clip in clips(rows, self._views)
            if rows.valid[clip[0]]
        ]
        self._next += 1
        self._opened.append((rows, units))
        decoded = upright(rows)
        self._coming.extend(
            (self._numbered + i, decoded, unit) for i, unit in enumerate(units)
        )
        self._numbered += len(units)
        return True
