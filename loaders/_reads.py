"""Reading a sample, with patience for storage that fails; and which sample a worker process is busy with.

A worker that hangs or is killed tells nobody what it was doing, so it marks that in shared memory before.
"""

from __future__ import annotations

import mmap
from functools import partial

import numpy as np

import storage
from contracts import Array, Source, UserError

NONE = -1
"""The mark of a worker that is busy with no single sample."""


def read(source: Source, sample: int) -> bytes:
    """Return a sample's bytes. Raises UserError where they cannot be had, whoever is to blame."""
    mark(sample)
    try:
        return storage.patiently(partial(source.read, sample), partial(source.name, sample))
    except OSError as error:  # no storage's
        raise UserError(f"{source.name(sample)} cannot be read any more: {error.strerror or error}") from None


class Marks:
    """What each worker process is busy with, in memory that is mapped before they are forked."""

    def __init__(self, workers: int) -> None:
        self._samples: Array = np.frombuffer(mmap.mmap(-1, 8 * max(workers, 1)), np.int64)
        self._samples[:] = NONE

    def own(self, worker: int) -> None:
        """Let `mark` write into the place of this process, which is the worker of that number."""
        global _mine
        _mine = self._samples[worker : worker + 1]

    def of(self, worker: int) -> int:
        """Return the sample that a worker is busy with, NONE for no single one."""
        return int(self._samples[worker])


_mine: Array = np.zeros(1, np.int64)  # of a process that is no worker, nobody looks at it


def mark(sample: int) -> None:
    """Say which sample this process is busy with from now on."""
    _mine[0] = sample
