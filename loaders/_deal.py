"""Who decodes which clip of a batch: the device, or worker processes.

A unit is a clip with all its views. What the device's decoders are not exact for goes to the workers; of the rest they get so many that
both sides are done at the same time. So the share changes who decodes a clip, never which frames it has, nor the order of batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from contracts import Rows
from loaders._workers import some

Array = np.ndarray[Any, Any]

AHEAD = 256
"""Batches that are dealt before they are begun, at most, in search of work for the workers: each takes 3 ms."""
NARROW = (0.05, 0.95)
"""Between which the share stays: neither side is left without work, so that its rate stays known."""
RECENT = 64
"""Units of a side over which its time for one is a mean."""
FEW = 8
"""Units of each side before its time is believed."""


class Rate:
    """Units a second that so many workers, or threads, do together: by the mean of the last ones' seconds."""

    def __init__(self, hands: int) -> None:
        self._hands, self._seconds, self.known = hands, 0.0, 0

    @property
    def value(self) -> float:
        return self._hands / max(self._seconds, 1e-9)

    def learn(self, seconds: float) -> None:
        """Of one unit."""
        self.known += 1
        self._seconds += (seconds - self._seconds) / min(self.known, RECENT)


class Share:
    """The part of the units that the workers decode, those among them that only they can: what their rate is of both."""

    def __init__(self, value: float, least: float, most: float, *, workers: int = 1, threads: int = 1) -> None:
        """`value` until both rates are known, within `least` and `most`."""
        self.value, self._least, self._most, self._rest = value, least, most, 0.0
        self._workers, self._threads = Rate(workers), Rate(threads)

    def take(self, count: int, theirs: int) -> int:
        """How many of the next `count` units, beyond the workers' own: rounded so that they add up to the share."""
        self._rest += self.value * count - theirs
        whole = min(max(int(self._rest), 0), count - theirs)
        self._rest = max(self._rest - whole, -1.0 * count)
        return whole

    def learn(self, seconds: float, *, by_worker: bool) -> None:
        """From a unit that one of them was busy with for so long."""
        (self._workers if by_worker else self._threads).learn(seconds)
        if min(self._workers.known, self._threads.known) >= FEW:
            share = self._workers.value / (self._workers.value + self._threads.value)
            self.value = min(max(share, self._least), self._most)


@dataclass(frozen=True, slots=True)
class Dealt:
    """A batch; the places of each unit's rows in it."""

    rows: Rows
    host: tuple[Array, ...]
    device: tuple[Array, ...]


class Deal(Sequence[Rows]):
    """Deals out the units of an epoch's batches, one batch after the other. As a sequence: the workers' units, for Workers.run.

    `able`: bool, by sample, what the device's decoders are exact for.
    """

    def __init__(self, rows: Sequence[Rows], views: int, able: Array, share: Share) -> None:
        self._rows, self._views, self._able, self._share = rows, views, able, share
        self._dealt: deque[Dealt] = deque()
        self._next, self._units = 0, deque[Rows]()

    def __len__(self) -> int:
        """More than are asked for: units without a clip come between the others too."""
        return 1 << 40 if len(self._rows) else 0

    @overload
    def __getitem__(self, index: int) -> Rows: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rows]: ...
    def __getitem__(self, index: int | slice) -> Rows | list[Rows]:
        """The next unit, whatever the index: they are asked for once, in order.

        A unit without a clip where there is none within AHEAD batches, and behind the last one.
        """
        assert isinstance(index, int)
        while not self._units:
            if self._next == len(self._rows) or len(self._dealt) >= AHEAD:
                return idle(self._rows[0], self._views)
            self._deal()
        return self._units.popleft()

    def batch(self) -> Dealt | None:
        """The next one; None behind the last."""
        if not self._dealt:
            if self._next == len(self._rows):
                return None
            self._deal()
        return self._dealt.popleft()

    def _deal(self) -> None:
        rows = self._rows[self._next]
        self._next += 1
        places = np.arange(len(rows))
        units = [unit for at in range(0, len(rows), self._views) if rows.valid[unit := places[at : at + self._views]].any()]
        fit = [bool(self._able[rows.ids[unit][rows.valid[unit]]].all()) for unit in units]
        # those of the workers lie spread among the others, as they are decoded at the same time
        free = [unit for unit, fits in zip(units, fit, strict=True) if fits]
        count = self._share.take(len(units), len(units) - len(free))
        taken = set(np.linspace(0, len(free), count, endpoint=False).astype(int).tolist())
        host = [unit for unit, fits in zip(units, fit, strict=True) if not fits] + [free[i] for i in sorted(taken)]
        device = [unit for i, unit in enumerate(free) if i not in taken]
        self._dealt.append(Dealt(rows, tuple(host), tuple(device)))
        self._units.extend(some(rows, unit) for unit in host)


def idle(rows: Rows, count: int) -> Rows:
    """Rows like these without a sample."""
    few = some(rows, np.arange(min(count, len(rows))))
    return replace(few, ids=np.full(len(few), -1), valid=np.zeros(len(few), bool))
