"""Where a loader's time goes: seconds of each stage, of all its workers and of its thread, while it runs.

Whoever works ends a stage by `lap`, as a runner ends a lap: the stage gets the time since the lap before. So
the stages of a worker add up to the time that it has been there, and nothing is sampled or switched on. A lap takes
0.7 us, and an image has one to four.

    worker   [idle][read][decode][resize][read][decode][resize]...[idle]
    thread   [workers      ][finish][full ][workers     ][finish]...
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

import numpy as np

from saturate.contracts import StageSeconds

Item = TypeVar("Item")

OF_A_WORKER = ("idle", "read", "parse", "decode", "resize", "transforms")
"""Stages of worker processes: `idle` waits for rows, or for the interpreter's lock of the process that hands them
out."""
OF_THE_THREAD = ("plan", "workers", "clips", "dali", "finish", "full")
"""Stages of the thread that fills slots: `workers` and `dali` wait for those, `clips` for the GPU's engines and
the workers beside them, `finish` copies and launches what the device does, or does it on a CPU, and `full` waits
for the training step to take a batch."""
STAGES = OF_A_WORKER + OF_THE_THREAD
_NUMBER = {name: number for number, name in enumerate(STAGES)}
_DOUBLES = 2 * len(STAGES) + 1
_BYTES = 8 * _DOUBLES


class Laps:
    """The stages of one process or thread, which alone writes them.

    `totals`: doubles, the seconds of each stage of STAGES, then the CPU seconds of each. The last one, which a
    reader writes: no time before it is counted.
    """

    def __init__(self, totals: memoryview[float]) -> None:
        self._totals = totals
        self.start()

    def start(self) -> None:
        """Begin a lap; the time before belongs to no stage."""
        self._wall = time.perf_counter()
        self._cpu = time.thread_time()

    def lap(self, stage: str) -> None:
        """End the stage: it gets the time since the lap before."""
        wall = time.perf_counter()
        cpu = time.thread_time()
        number = _NUMBER[stage]
        least = self._totals[-1]
        began = self._wall if self._wall > least else min(least, wall)
        self._totals[number] += wall - began
        self._totals[len(STAGES) + number] += cpu - self._cpu
        self._wall = wall
        self._cpu = cpu


class Stages:
    """The stages of a loader's thread and of its workers, in memory that is mapped before they are forked."""

    def __init__(self, workers: int) -> None:
        self._memory = memoryview(mmap.mmap(-1, _BYTES * (1 + max(workers, 1))))
        self.thread = self._laps(0)

    def of_worker(self, number: int) -> Laps:
        """Return the laps of the worker of that number; called in it, or in the thread that works for it."""
        return self._laps(1 + number)

    def seconds(self, *, anew: bool = False) -> StageSeconds:
        """Return (seconds, CPU seconds) of each stage so far, workers added up; those that never were are
        left out. `anew`: laps under way begin now, as if there had been nothing before.
        """
        rows = np.frombuffer(self._memory, np.float64).reshape(-1, _DOUBLES)
        if anew:
            rows[:, -1] = time.perf_counter()
        totals = rows[:, :-1].reshape(-1, 2, len(STAGES))
        wall, cpu = totals.sum(axis=0).tolist()
        return {
            name: (wall[number], cpu[number])
            for name, number in _NUMBER.items()
            if wall[number]
        }

    def waited(self, items: Generator[Item], stage: str = "workers") -> Generator[Item]:
        """Yield the items, and give the thread's time until each is there to `stage`."""
        with closing(items):
            for item in items:
                self.thread.lap(stage)
                yield item

    def _laps(self, row: int) -> Laps:
        return Laps(self._memory[_BYTES * row : _BYTES * (row + 1)].cast("d"))


_laps = Laps(memoryview(bytearray(_BYTES)).cast("d"))


def use(laps: Laps) -> None:
    """Have `lap` write there, from now on in this process: it is a worker, or works for one."""
    global _laps
    _laps = laps


def lap(stage: str) -> None:
    """End the stage of this worker."""
    _laps.lap(stage)
