"""Worker processes behind torchvision, dali-fed and the loaders of clips on the CPU: rows in, filled slots of
shared memory out, in order.

PyTorch's DataLoader with persistent workers; its sampler is the plan's rows. Workers are stateless: an epoch,
a resume or a drained ceiling is only another sequence of rows. Results do not travel through /dev/shm: slots
are mapped once, before the workers are forked, and used again, so no page is touched for the first time while
training runs.

A batch is cut into parts (of PART rows, unless said otherwise), so that all workers fill one batch together:
the first batch of an epoch is there after a fraction of a second, and memory holds a few batches instead of
two a worker.

    slot 0   [part 0: worker 0][part 1: worker 1][part 2: worker 2]     -> batch 0 once its last part is there
    slot 1   [part 0: worker 0] ...
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from saturate.contracts import Array, Rows, UserError
from saturate.loaders._read_retry import NONE, Marks, mark
from saturate.loaders._stages import Laps, Stages, lap, use
from saturate.plan.bundles import some
from saturate.plan.geometry import upright
from saturate.system.processes import (
    LOOK_S,
    Fork,
    Stop,
    begin,
    killed_if_late,
    starting,
)
from saturate.system.resources import memory_bytes

PREFETCH = 4
"""Parts under way a worker."""
PART = 32
"""Most rows of a task: about 30 ms of decoding."""
HELD = 3
"""Slots that the consumer may still read while workers fill the others."""
FEWER = "ask for fewer (--workers, --batch-size), or for smaller ones: --image-size, of clips --clip-frames"
QUEUES_BYTES = 16 << 20
"""What the DataLoader's own queues and semaphores take of /dev/shm, at most."""


class Work:
    """What a worker does with upright rows."""

    def __call__(self, rows: Rows, slot: Array) -> Any:
        """Fill a slot (uint8, 1-D), and return what else there is to say."""
        raise NotImplementedError

    def ask(self, samples: Array) -> None:
        """Begin to read samples, int64 ids: of the rows that come now, and of those behind them."""


class Shared:
    """Memory that worker processes write, mapped before they are forked: `slots`, uint8 [slots, bytes].

    There are none once it is closed. Raises UserError where there is not so much memory; `asked` says what
    took it.
    """

    def __init__(
        self, count: int, slot_bytes: int, asked: str, *, pinned: bool
    ) -> None:
        slot_bytes = -(-max(slot_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        takes = f"{asked} takes {count * slot_bytes / 2**30:,.0f} GiB of memory for {count} slots"
        # Linux gives it, and ends who uses it
        if count * slot_bytes > (available := memory_bytes()):
            raise UserError(
                f"{takes}, and there are {available / 2**30:,.0f} GiB: {FEWER}"
            )
        try:
            # anonymous and shared: only a fork hands it on, and none of it comes from /dev/shm, which has
            # 64 MB in Docker
            memory = mmap.mmap(-1, count * slot_bytes)
        except (OSError, OverflowError) as error:
            raise UserError(f"{takes} ({error}): {FEWER}") from None
        self.slots = np.frombuffer(memory, np.uint8).reshape(count, slot_bytes)
        self.pinned = False
        self._wanted = pinned

    def pin(self) -> None:
        """Make the slots page-locked, so that the device copies from them directly.

        It comes after the fork: workers need no part of it.
        """
        if self._wanted and not self.pinned:
            register = torch.cuda.cudart().cudaHostRegister
            self.pinned = not int(
                register(self.slots.ctypes.data, self.slots.nbytes, 0)
            )

    def close(self) -> None:
        if self.pinned:
            self.pinned = False
            torch.cuda.cudart().cudaHostUnregister(self.slots.ctypes.data)
        self.slots = np.empty((0, 0), np.uint8)  # nobody else holds the memory


class Workers:
    """`run(rows)` yields (slot, rows, what the work returned for each part).

    A slot is valid until HELD more were taken. A part has `part_rows` rows, and `part_bytes(count)` is the
    most room that so many take in a slot. Part p begins at p * part_rows * row_bytes(rows) of the upright rows
    of its batch; without `row_bytes` all rows have one size, and it begins at p * part_bytes(part_rows).
    """

    def __init__(
        self,
        make_work: Callable[[], Work],
        *,
        workers: int,
        batch_size: int,
        part_bytes: Callable[[int], int],
        part_rows: int = PART,
        row_bytes: Callable[[Rows], int] | None = None,
        pinned: bool = False,
        name_of: Callable[[int], str] = str,
        stages: Stages | None = None,
    ) -> None:
        """Fork the workers. `name_of(id)` is the sample's name in messages; `stages` get their times."""
        require_shared_memory(QUEUES_BYTES if workers else 0)
        stages = stages or Stages(workers)
        self.part_rows = min(part_rows, batch_size)
        self.part_bytes = part_bytes(self.part_rows)
        parts = -(-batch_size // self.part_rows)
        # batches that the parts under way belong to
        self.in_flight = -(-workers * PREFETCH // parts)
        # + 1: a batch is begun while the one before it is not complete
        self._count = self.in_flight + 1 + HELD
        self._memory = Shared(
            self._count,
            parts * self.part_bytes,
            f"--workers {workers} with {batch_size} samples at once",
            pinned=pinned,
        )
        self._stop = Stop()
        self._marks = Marks(workers, name_of)
        self._row_bytes = row_bytes
        self._sampler = _PartSampler(
            self._count,
            self.part_rows,
            self._room,
            workers=max(workers, 1),
            laps=stages.thread,
        )
        self._loader: _Loader | None = _Loader(
            _PartDataset(make_work, self._memory, stages),
            sampler=self._sampler,
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH if workers else None,
            worker_init_fn=partial(_begin, self._marks, self._stop, os.getpid())
            if workers
            else None,
            multiprocessing_context=Fork(self._stop) if workers else None,
        )
        self._loader.stop = self._stop
        if workers:
            # The thread that opens the loader forks, and not the loader's own: a child takes apart what other
            # threads have as thread-local variables, and would wait for ever for the threads that PyAV's
            # converter of pictures has there, from 19 on.
            with (
                starting(self._stop, f"--workers {workers}"),
                _without_sigchld_handler(),
                _shut_down_if_start_fails(),
            ):
                iter(self._loader)

    def run(self, rows: Sequence[Rows]) -> Generator[tuple[Array, Rows, list[Any]]]:
        """Yield in the order of `rows`, and these as they were given, though workers get them upright.

        Calling it again abandons the sequence before. Raises UserError where a worker has died.
        """
        try:
            yield from self._run(rows)
        except RuntimeError:
            if died := self._died():
                raise UserError(died) from None
            raise

    def _run(self, rows: Sequence[Rows]) -> Iterator[tuple[Array, Rows, list[Any]]]:
        assert self._loader is not None, "closed"
        self._sampler.start(rows)
        # the workers stay: PyTorch drops what is left of the sequence before, and sends them this one
        results = iter(self._loader)
        self._memory.pin()
        for at in range(len(rows)):
            slot = self._memory.slots[at % self._count]
            answers = list[Any]()
            # `sent` has this batch once one of its parts was asked for: not before the first result
            while not answers or len(answers) < self._sampler.parts(
                len(self._sampler.sent[0])
            ):
                kind, value = next(results)
                if kind == "mistake":
                    raise value
                answers.append(value)
            yield slot, self._sampler.sent.popleft(), answers

    def stop(self) -> None:
        """Tell the workers to end at once; a thread that is inside `run` meets an error within seconds."""
        self._stop.now()

    def close(self) -> None:
        """End the worker processes. Then give the memory back."""
        self.stop()
        loader = self._loader
        self._loader = None
        iterator = None if loader is None else loader._iterator
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            with killed_if_late(iterator._workers):
                # it has no public name: PyTorch calls it when the garbage collector finds the iterator
                iterator._shutdown_workers()
        self._memory.close()

    def awaited(self) -> str:
        """Return what the workers are busy with; "" where none is. For any thread."""
        return self._marks.awaited()

    def _died(self) -> str:
        """Return how a worker process ended that nobody had told to; empty where none has."""
        iterator = None if self._loader is None else self._loader._iterator
        if self._stop.is_set or not isinstance(
            iterator, _MultiProcessingDataLoaderIter
        ):
            return ""
        for worker, process in enumerate(iterator._workers):
            if process.exitcode is not None:
                return died(process, self._marks.file(worker))
        return ""

    def _room(self, rows: Rows) -> int:
        """Return the bytes that a whole part of this batch takes."""
        if self._row_bytes is None:
            return self.part_bytes
        return self.part_rows * self._row_bytes(rows)

    @property
    def pinned(self) -> bool:
        """Whether slots are page-locked."""
        return self._memory.pinned


class _Results(_MultiProcessingDataLoaderIter):
    """Looks more often than PyTorch's 5 s whether workers live, and does not wait for those told to end."""

    def __init__(self, loader: DataLoader[object], stop: Stop) -> None:
        self._stop = stop
        super().__init__(loader)

    def _try_get_data(self, timeout: float = LOOK_S) -> tuple[bool, Any]:
        if self._stop.is_set:
            raise RuntimeError("the workers were told to end")
        result: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        return result


class _Loader(DataLoader[Any]):
    stop: Stop

    def _get_iterator(self) -> Any:
        return (
            _Results(self, self.stop) if self.num_workers else super()._get_iterator()
        )

    def check_worker_number_rationality(self) -> None:
        """Do not warn of more workers than cores: those that wait for the storage need none."""


@contextmanager
def _without_sigchld_handler() -> Iterator[None]:
    """Keep PyTorch from raising a worker's end in a signal handler; around a DataLoader's start.

    It would raise it in whatever the program does at that moment: in half of a step. So it is an error of
    whoever waits for the worker's rows, at most LOOK_S later.
    """
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGCHLD, before)


@contextmanager
def _shut_down_if_start_fails() -> Iterator[None]:
    """Mark a DataLoader's iterator as shut down when the start of its workers fails.

    PyTorch (2.11) cannot take such a one apart, and says so on stderr.
    """
    try:
        yield
    except BaseException as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if isinstance(
                made := frame.f_locals.get("self"), _MultiProcessingDataLoaderIter
            ):
                made._shutdown = True  # it is taken for one that has ended
        raise


def _unchanged(result: object) -> object:
    """Return a result as it is: the default makes tensors of arrays and sends each through /dev/shm."""
    return result


class _PartSampler:
    """Cuts the plan's rows, upright, into parts, each with the number of its slot and its bytes there.

    With it go the ids of the part that its worker has next, `workers` places later: they take turns.
    """

    def __init__(
        self,
        slots: int,
        part_rows: int,
        room: Callable[[Rows], int],
        *,
        workers: int,
        laps: Laps,
    ) -> None:
        self._workers = workers
        self._laps = laps
        self._slots = slots
        self._part_rows = part_rows
        self._room = room
        self.start(())

    def start(self, rows: Sequence[Rows]) -> None:
        self._rows = rows
        self.sent: deque[Rows] = deque()  # batches that are under way

    def parts(self, batch_size: int) -> int:
        return -(-batch_size // self._part_rows)

    def __iter__(self) -> Iterator[tuple[int, int, int, Rows, Array]]:
        cut = self._cut()
        coming = deque(islice(cut, self._workers))
        while coming:
            coming.extend(islice(cut, 1))
            part = coming.popleft()
            later = np.zeros(0, np.int64)
            if len(coming) == self._workers:
                rows = coming[-1][-1]
                later = rows.ids[rows.valid]
            yield *part, later

    def _cut(self) -> Iterator[tuple[int, int, int, Rows]]:
        sent = self.sent
        self._laps.lap("workers")
        for index, batch in enumerate(self._rows):
            sent.append(batch)
            rows = upright(batch)
            self._laps.lap("plan")
            # the room of a whole part: the last one, which may be smaller, begins behind whole ones too
            room = self._room(rows)
            for part in range(self.parts(len(rows))):
                begin = part * self._part_rows
                part_rows = some(rows, slice(begin, begin + self._part_rows))
                yield index % self._slots, part * room, (part + 1) * room, part_rows
            self._laps.lap("workers")

    def __len__(self) -> int:
        rows = self._rows
        return len(rows) * self.parts(len(rows[0])) if len(rows) else 0


class _PartDataset(Dataset[Any]):
    """Makes the work in a worker, when the first rows arrive: nothing of a decoder is shared over a fork."""

    def __init__(
        self, make_work: Callable[[], Work], memory: Shared, stages: Stages
    ) -> None:
        self._make_work = make_work
        self._memory = memory
        self._stages = stages
        self._laps: Laps | None = None
        self._work: Work | None = None

    def __getitem__(self, task: tuple[int, int, int, Rows, Array]) -> tuple[str, Any]:
        slot, begin, end, rows, coming = task
        worker = get_worker_info()
        if self._work is None or self._laps is None:
            self._work = self._make_work()
            self._laps = self._stages.of_worker(worker.id if worker else 0)
        use(self._laps)
        if worker:
            lap("idle")
        else:  # with --workers 0 the thread works, another one in each epoch, and has stages of its own
            self._laps.start()
        self._work.ask(np.concatenate([rows.ids[rows.valid], coming]))
        try:
            return "done", self._work(rows, self._memory.slots[slot, begin:end])
        except UserError as mistake:
            # as a value: the DataLoader would wrap it in a traceback
            return "mistake", mistake
        finally:
            mark(NONE)


def died(process: Any, file: str) -> str:
    """Return how a worker process ended that nobody had told to, its file, and what to do."""
    code = process.exitcode
    how = (
        f"was ended by signal {-code}, {signal.strsignal(-code)}"
        if code < 0
        else f"ended with exit code {code}"
    )
    advice = "if it ends there again, take that file away"
    if code == -signal.SIGKILL:
        advice = (
            "the system kills workers when memory is short: "
            "--max-pixels leaves out files that take much, and fewer --workers need less"
        )
    elif code in (-signal.SIGBUS, -signal.SIGABRT):
        # whatever the sample: the mapping has no page there, or LMDB has met a damaged one
        advice = (
            "a store that it has mapped, an LMDB, was cut short, is damaged or cannot be read: copy it again, "
            "whole; or /dev/shm is full"
        )
    return f"a worker process (pid {process.pid}) {how}, busy with {file}; {advice}; go on with --resume auto"


def first_ended(processes: Sequence[Any]) -> Any:
    """Return the process that has ended; None if there is none within a second.

    Its pipes are closed before it can be asked how it has ended.
    """
    until = time.monotonic() + 1
    while time.monotonic() < until:
        for process in processes:
            if process.exitcode is not None:
                return process
        time.sleep(0.01)
    return None


def _begin(marks: Marks, stop: Stop, parent: int, number: int) -> None:
    marks.own(number)
    begin_worker(stop, parent)


def begin_worker(stop: Stop, parent: int) -> None:
    """Prepare a worker process; called in it before anything else."""
    # workers share the cores: threads of torch's own in each of them would only take turns
    torch.set_num_threads(1)
    begin(stop, parent)


def require_shared_memory(needed: int) -> None:
    """Raise UserError when /dev/shm cannot hold what worker processes need there."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return
    if needed > free:
        raise UserError(
            f"/dev/shm has {free / 2**20:.0f} MiB free and worker processes need "
            f"{needed / 2**20:.0f} MiB there: docker run --shm-size=1g, or --workers 0"
        )
