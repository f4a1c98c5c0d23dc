"""What the device's decoders need of a clip's file, read ahead of the decoders by worker processes.

    units (a clip with those of its views in a batch), in their order
        -> [worker: check the file, read] -> a slot of shared memory -> [one of the device's threads: decode]

If those threads read, each packet would take the interpreter's lock some five times, and the training step's
launches would wait for it as often. Storage that is slow, or hangs, holds up a process that can be ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from saturate.contracts import Array, Rows, Source
from saturate.loaders._stages import lap
from saturate.loaders._workers import Work
from saturate.loaders.videos._worker import checked

MOST_BYTES = 64 << 20
"""Bytes of a slot at most. What is larger comes through a pipe, more slowly."""


class Read(NamedTuple):
    """What was read of one clip."""

    data: Array  # uint8
    about: Any  # what the ReadClip says of the data


ReadClip = Callable[[int, bytes, list[int]], Read]
"""(sample, path, frames: ascending, each once) -> Read. Raises Undecodable and OSError."""


class ReadUnit(Work):
    """Reads the file of one unit, and returns (bytes, Read).

    Data that fit into the slot are left there, and `Read.data` is empty; larger data travel in `Read.data`.
    """

    def __init__(self, source: Source, read: ReadClip) -> None:
        self._source = source
        self._read = read

    def __call__(self, rows: Rows, slot: Array) -> tuple[int, Read]:
        assert rows.frames is not None, "a plan of clips says which frames"
        sample = int(rows.ids[0])
        path = checked(self._source, sample)
        read = self._read(sample, path, np.unique(rows.frames).tolist())
        size = len(read.data)
        if size <= len(slot):
            slot[:size] = read.data
            read = read._replace(data=slot[:0])
        lap("read")
        return size, read
