"""Worker processes that read or decode one unit of rows at a time, done in any order.

    next_unit() -> (rows, unit) -> [a worker: work(rows, slot)] -> unit.done: (slot, what the work returned)

The pool asks for the next unit only when a worker is about to be free, so what is done next is decided then.
loaders/_workers.py keeps an order instead: it hands out rows in that order, and yields them in it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from typing import Any, Protocol

from saturate.contracts import Array, Rows, UserError
from saturate.loaders._read_retry import NONE, Marks, mark
from saturate.loaders._stages import Stages, lap, use
from saturate.loaders._workers import Shared, Work, begin_worker, died, first_ended
from saturate.system.processes import LOOK_S, Fork, Stop, killed_if_late, starting

QUEUED = 2
"""Units that wait for a worker, so that no worker waits for this process."""
SLOTS = 4
"""Slots for each worker: it fills one, and the others hold units that are done and wait for their batch."""


class Unit(Protocol):
    """What one worker does at a time; `done` gets its slot and what its work has returned."""

    done: Future[tuple[int, Any]]


NextUnit = Callable[[], tuple[Rows, Unit] | None]
"""Returns the rows of the next unit and the unit; None = there is nothing to do now."""


class Pool:
    """Worker processes, and the slots of shared memory that they fill.

    The pool takes units from `next_unit` and gives each one a slot, `slots[i]`, which the unit has until
    `release`.
    """

    def __init__(
        self,
        make_work: Callable[[], Work],
        *,
        workers: int,
        slot_bytes: int,
        pinned: bool,
        slots: int | None = None,
        name_of: Callable[[int], str] = str,
        stages: Stages | None = None,
        first: int = 0,
    ) -> None:
        """Fork the workers. `slots`: how many; by default SLOTS for each worker, and QUEUED more.

        `name_of(id)` is the sample's name in messages. `stages` get the workers' times, as those of workers from
        number `first` on.
        """
        self._limit = workers + QUEUED
        count = slots or SLOTS * workers + QUEUED
        asked = f"--workers {workers}"
        self._memory = Shared(count, slot_bytes, asked, pinned=pinned)
        self._free = deque(range(count))
        # reentrant: a job that is done at once calls `_done`, and so `fill`, from within `fill`
        self._lock = threading.RLock()
        self._none_runs = threading.Condition(self._lock)
        self._running = 0
        self._next_unit: NextUnit | None = None
        self._stop = Stop()
        self._error: BaseException | None = None
        self._marks = Marks(workers, name_of)
        fork = Fork(self._stop)
        shared = self._memory, self._marks, fork.Value("i"), self._stop
        counted = stages or Stages(first + workers), first
        with starting(self._stop, asked):
            self._executor = ProcessPoolExecutor(
                workers, fork, _enter, (make_work, *shared, *counted, os.getpid())
            )
            # the first task has the executor fork all workers
            self._executor.submit(_ready)
        # kept here: the executor forgets its processes once it ends, and then `died` asks how one has ended
        self._processes = list(self._executor._processes.values())
        self._memory.pin()

    @property
    def slots(self) -> Array:
        """Return the slots, uint8 [slots, bytes]."""
        return self._memory.slots

    def serve(self, next_unit: NextUnit) -> None:
        """Take units of `next_unit` from now on. Nothing may still read slots of units of an earlier `next_unit`.

        It waits first for the units of the earlier one that workers have begun.
        """
        with self._lock:
            self._next_unit = None
            while self._running and not self._stop.is_set:
                self._none_runs.wait(LOOK_S)
            self._free = deque(range(len(self.slots)))
            self._next_unit = next_unit
        self.fill()

    def fill(self) -> None:
        """Give the workers what there is to do; to be called when there may be new units.

        A unit that is done calls it too.
        """
        with self._lock:
            while (
                self._next_unit is not None
                and self._running < self._limit
                and self._free
                and not self._stop.is_set
            ):
                if (task := self._next_unit()) is None:
                    return
                rows, unit = task
                slot = self._free.popleft()
                try:
                    job = self._executor.submit(_do, rows, slot)
                except RuntimeError as error:  # a worker has died
                    self._give_up(error)
                    return
                self._running += 1
                job.add_done_callback(partial(self._done, unit, slot))

    def result(self, unit: Unit) -> tuple[int, Any]:
        """Return what the unit was answered with.

        Raises what its work has raised, UserError when a worker was killed, and RuntimeError when no worker
        will come to it any more because all were told to end.
        """
        # looks every LOOK_S: once the workers have ended, nobody answers a unit that none of them was given
        while not wait([unit.done], LOOK_S).done and not self._stop.is_set:
            pass
        if unit.done.done():
            return unit.done.result()
        raise self._error or RuntimeError("the workers were told to end")

    def awaited(self) -> str:
        """Return what the workers are busy with; "" where none is. For any thread."""
        return self._marks.awaited()

    def release(self, slot: int) -> None:
        """Free a slot: nothing reads it any more."""
        with self._lock:
            self._free.append(slot)
        self.fill()

    def stop(self) -> None:
        """Tell the workers to end at once; whoever waits for a unit meets an error within seconds."""
        self._stop.now()

    def close(self) -> None:
        """End the worker processes. Then give the memory back."""
        self.stop()
        with killed_if_late(self._processes):
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._memory.close()

    def _give_up(self, error: BaseException) -> BaseException:
        """Tell all to end, and return the error that whoever waits is to meet."""
        if self._error is None:
            ended = None
            if isinstance(error, BrokenExecutor) and not self._stop.is_set:
                # at once: the executor ends the other workers next, and then it is unknown which one died first
                ended = first_ended(self._processes)
            if ended is not None:
                file = self._marks.file(self._marks.place(ended.pid))
                error = UserError(died(ended, file))
            self._error = error
        self._stop.now()
        return self._error

    def _done(self, unit: Unit, slot: int, job: Future[Any]) -> None:
        """Answer a unit that is done; runs in a thread of the executor's.

        Where a worker has died, that thread holds a lock of the executor that `submit` takes (Python 3.12). So
        this method then takes no lock of the pool, whose holder may be waiting in `submit`.
        """
        if job.cancelled():
            return
        error = job.exception()
        if isinstance(error, BrokenExecutor):
            unit.done.set_exception(self._give_up(error))
            return
        try:
            with self._lock:
                self._running -= 1
                self._none_runs.notify()
                if error is not None:
                    self._free.append(slot)
            if error is None:
                unit.done.set_result((slot, job.result()))
            else:
                unit.done.set_exception(error)
            self.fill()
        except BaseException as mistake:  # of `next_unit`: nobody would hear of it here
            self._give_up(mistake)


# what a worker process has; None in any other
_make: Callable[[], Work] | None = None
_work: Work | None = None
_memory: Shared | None = None


def _enter(
    make_work: Callable[[], Work],
    memory: Shared,
    marks: Marks,
    placed: Synchronized[int],
    stop: Stop,
    stages: Stages,
    first: int,
    parent: int,
) -> None:
    """Prepare a worker process. `placed`: the shared number of those that have their place in `marks`."""
    global _make, _memory
    _make = make_work
    _memory = memory
    with placed.get_lock():
        marks.own(placed.value)
        use(stages.of_worker(first + placed.value))
        placed.value += 1
    begin_worker(stop, parent)


def _ready() -> None:
    pass


def _do(rows: Rows, slot: int) -> Any:
    """Do one unit in a worker. The first unit makes the Work, after the fork, so that processes share no decoder."""
    global _work
    assert _make is not None and _memory is not None
    if _work is None:
        _work = _make()
    lap("idle")
    try:
        return _work(rows, _memory.slots[slot])
    finally:
        mark(NONE)
