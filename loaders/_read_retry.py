"""Reading a sample, with patience for storage that fails; and which sample a worker process is busy with.

A worker that hangs or is killed tells nobody what it was doing, so it marks that in shared memory before.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np

from saturate.contracts import Array, Source, UserError
from saturate.system import storage

Result = TypeVar("Result")
NAMED = 3
"""Most files that a message names."""
NONE = -1
"""The mark of a worker that is busy with no single sample."""


FAST_S = 3e-4
"""Seconds of a read for which threads are not worth it: twice what a photograph in the page cache takes."""
ENOUGH = 16
"""Reads alone that tell how fast the storage is."""
AGAIN = 64
"""Times that reads are asked for before it is looked at again."""


class Reads:
    """The reads of a worker process, several under way at once where the source has `reads_at_once`.

    They wait for the storage together, and while samples are decoded that were asked for before:

        read    [0 1 2 3 ][4 5 6 7 ]...       of the part that is decoded, and of the one that comes next
        decode            [0 1 2 3 ][4 5 6 7 ]

    A source with `alone_while_fast` has several under way only while a read alone takes longer than FAST_S.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at_once = source.reads_at_once
        self._threads: ThreadPoolExecutor | None = None
        self._asked: dict[int, Future[bytes]] = {}
        self._adapts = source.alone_while_fast
        self._slow = not self._adapts
        # times that reads were asked for, and seconds of each read alone, since the last look at the speed
        self._times = 0
        self._alone_s: list[float] = []

    def ask(self, samples: Array) -> None:
        """Begin to read samples, int64 ids in the order in which they are wanted; forget all others."""
        if self._adapts:
            self._look()
        if self._at_once < 2 or not self._slow:
            return
        if self._threads is None:  # here, and not before the fork
            self._threads = ThreadPoolExecutor(self._at_once)
        wanted = dict.fromkeys(samples.tolist())
        for sample in self._asked.keys() - wanted.keys():
            self._asked.pop(sample).cancel()
        for sample in wanted:
            if sample not in self._asked:
                task = self._threads.submit(_tried, self._source, sample)
                self._asked[sample] = task

    def read(self, sample: int) -> bytes:
        """Return a sample's bytes. Raises UserError where they cannot be had, whoever is to blame."""
        mark(sample)
        if (asked := self._asked.pop(sample, None)) is not None:
            return asked.result()
        began = time.perf_counter()
        data = _tried(self._source, sample)
        if self._adapts:
            self._alone_s.append(time.perf_counter() - began)
        return data

    def _look(self) -> None:
        """Find out whether reads wait for the storage; every AGAIN times by a few reads alone."""
        if len(self._alone_s) >= ENOUGH:
            # the median: on busy cores some reads take long for want of a core
            self._slow = median(self._alone_s) > FAST_S
            self._alone_s.clear()
            self._times = 0
        self._times += 1
        if self._times >= AGAIN:
            self._slow = False


def read(source: Source, sample: int) -> bytes:
    """Return a sample's bytes. Raises UserError where they cannot be had, whoever is to blame."""
    return patiently(source, sample, partial(source.read, sample))


def patiently(source: Source, sample: int, action: Callable[[], Result]) -> Result:
    """Return what `action` reads of a sample, as `read` does."""
    mark(sample)
    return _patiently(source, sample, action)


def _tried(source: Source, sample: int) -> bytes:
    return _patiently(source, sample, partial(source.read, sample))


def _patiently(source: Source, sample: int, action: Callable[[], Result]) -> Result:
    try:
        return storage.patiently(action, partial(source.name, sample))
    except OSError as error:  # no storage's
        raise UserError(
            f"{source.name(sample)} cannot be read any more: {error.strerror or error}"
        ) from None


class Marks:
    """What each worker process is busy with, in memory that is mapped before they are forked.

    `name_of(id)` is the sample's name in messages.
    """

    def __init__(self, workers: int, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        memory = np.frombuffer(mmap.mmap(-1, 16 * max(workers, 1)), np.int64)
        self._samples, self._pids = np.split(memory, 2)
        self._samples[:] = NONE

    def own(self, worker: int) -> None:
        """Let `mark` write into the place of this process, which is the worker of that number."""
        global _mine
        _mine = self._samples[worker : worker + 1]
        self._pids[worker] = os.getpid()

    def place(self, pid: int) -> int:
        """Return the number of the worker that is this process."""
        return int(np.argmax(self._pids == pid))

    def awaited(self) -> str:
        """Return what some of the workers are busy with; "" where none is. For any thread."""
        busy = np.flatnonzero(self._samples != NONE)[:NAMED].tolist()
        files = [f"{self.file(worker)} (pid {self._pids[worker]})" for worker in busy]
        return f"workers busy with {', '.join(files)}" if files else ""

    def file(self, worker: int) -> str:
        """Return the name of what a worker is busy with."""
        sample = int(self._samples[worker])
        return "no single file" if sample == NONE else self._name_of(sample)


# where `mark` writes; nobody looks at that of a process that is no worker
_mine: Array = np.zeros(1, np.int64)


def mark(sample: int) -> None:
    """Say which sample this process is busy with from now on."""
    _mine[0] = sample
