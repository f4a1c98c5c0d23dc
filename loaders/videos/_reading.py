"""What the device's decoders need of a clip's file, read ahead of them by worker processes.

    units, in their order -> [worker: check the file, read] -> a slot of shared memory -> [one of the device's
    threads: decode]

In those threads each packet would take the interpreter's lock some five times, and the training step's
launches would wait for it as often. Storage that is slow, or hangs, holds up a process that can be ended.
Without workers the threads read for themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from contracts import Array, Feed, Rows, Source
from loaders._workers import some
from loaders.videos._pool import Pool
from loaders.videos._scheduler import Unit
from loaders.videos._worker import checked

MOST_BYTES = 64 << 20
"""Bytes of a slot at most. What is larger comes through a pipe, more slowly."""


class Read(NamedTuple):
    """What was read of one clip."""

    data: Array  # uint8
    about: Any  # what the reader says of it


ReadClip = Callable[[int, bytes, list[int]], Read]
"""(sample, path, frames: ascending, each once) -> Read. Raises Undecodable and OSError.

Without workers several threads share one.
"""


class _Reading:
    """loaders._workers.Work, for the rows of one unit: returns a Read.

    Its data are empty where they lie in the slot; they come along where they have no room there.
    """

    def __init__(self, source: Source, make: Callable[[], ReadClip]) -> None:
        self._source = source
        self._read = make()

    def clip(self, rows: Rows) -> Read:
        assert rows.frames is not None, "a plan of clips says which frames"
        sample = int(rows.ids[0])
        path = checked(self._source, sample)
        return self._read(sample, path, np.unique(rows.frames).tolist())

    def __call__(self, rows: Rows, slot: Array) -> tuple[int, Read]:
        read = self.clip(rows)
        size = len(read.data)
        if size <= len(slot):
            slot[:size] = read.data
            read = read._replace(data=slot[:0])
        return size, read


class ReadAhead:
    """Reads clips ahead. `make` builds the reader in the process that reads; `threads` take clips at once."""

    def __init__(
        self, feed: Feed, make: Callable[[], ReadClip], *, workers: int, threads: int
    ) -> None:
        make_work = partial(_Reading, feed.source, make)
        self._here = None if workers else make_work()
        self._coming: deque[tuple[Rows, Unit]] = deque()
        self._pool: Pool | None = None
        if workers:
            self._pool = Pool(
                make_work,
                workers=workers,
                # that threads decode from, that wait for them, that workers fill
                slots=2 * threads + workers,
                slot_bytes=min(int(feed.columns.size.max(initial=1)), MOST_BYTES),
                pinned=False,
                name_of=feed.source.name,
            )

    def begin(self) -> None:
        """Begin a new sequence; nobody may be inside `of` any more."""
        self._coming = deque()
        if self._pool is not None:
            self._pool.serve(self._next)

    def add(self, rows: Rows, units: Sequence[Unit]) -> None:
        """Add the units of a batch; they are read in this order."""
        if self._pool is not None:
            self._coming.extend((rows, unit) for unit in units)
            self._pool.fill()

    @contextmanager
    def of(self, rows: Rows, unit: Unit) -> Iterator[Read]:
        """Give what was read of a unit of a batch, valid inside. Raises what reading has raised."""
        if self._here is not None:
            yield self._here.clip(some(rows, unit.places))
            return
        assert self._pool is not None
        slot, (size, read) = self._pool.result(unit)
        unit.done = Future()  # it would hold what is large until its batch is over
        try:
            if not len(read.data):
                read = read._replace(data=self._pool.slots[slot][:size])
            yield read
        finally:
            self._pool.release(slot)

    def awaited(self) -> str:
        """Return what the workers are busy with."""
        return "" if self._pool is None else self._pool.awaited()

    def stop(self) -> None:
        """Tell the workers to end; whoever waits for one then meets an error within seconds."""
        if self._pool is not None:
            self._pool.stop()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _next(self) -> tuple[Rows, Unit] | None:
        coming = self._coming
        if not coming:
            return None
        rows, unit = coming.popleft()
        return some(rows, unit.places), unit
