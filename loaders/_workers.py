"""Worker processes behind the torchvision and dali-fed loaders: rows in, filled slots of shared memory out, in order.

PyTorch's DataLoader with persistent workers; its sampler is the plan's rows. Workers are stateless: an epoch, a resume or a
drained ceiling is only another sequence of rows. Results do not travel through /dev/shm: slots are mapped once, before the
workers are forked, and used again, so no page is touched for the first time while training runs.

    main     rows 0..7 -> workers      takes slot 0, copies it to the device, asks for more: row 8 may go to slot 0 again
    worker   decodes row 3 into slot 3
"""

from __future__ import annotations

import mmap
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from contracts import Mistake, Rows

PREFETCH = 2
"""Batches under way a worker."""
HELD = 3
"""Slots that the consumer may still read while workers fill the others."""
QUEUES_BYTES = 16 << 20
"""What the DataLoader's own queues and semaphores take of /dev/shm, at most."""

Array = np.ndarray[Any, Any]


class Work(Protocol):
    """What a worker does with rows: fills `slot` (uint8, 1-D) and returns what else there is to say of it."""

    def __call__(self, rows: Rows, slot: Array) -> Any: ...


class Workers:
    """`run(rows)` yields (slot, rows, what the work returned) for each rows. A slot is valid until HELD more were taken."""

    def __init__(self, make_work: Callable[[], Work], *, workers: int, slot_bytes: int, pinned: bool = False) -> None:
        require_shared_memory(QUEUES_BYTES if workers else 0)
        self.in_flight = workers * PREFETCH
        self._slot_bytes = -(-max(slot_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._count = max(self.in_flight, 1) + HELD
        try:
            self._memory = mmap.mmap(-1, self._count * self._slot_bytes)
        except OSError as error:
            raise Mistake(
                f"{self._count} batches of {self._slot_bytes / 2**20:.0f} MiB for {workers} workers do not fit into memory "
                f"({error.strerror}): fewer --workers or a smaller --batch-size"
            ) from None
        self._slots = np.frombuffer(self._memory, np.uint8).reshape(self._count, self._slot_bytes)
        self._pinned, self._registered = pinned, False
        self._sampler = _SlotSampler(self._count)
        self._loader: DataLoader[Any] | None = DataLoader(
            _RowDataset(make_work, self._slots),
            sampler=self._sampler,
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH if workers else None,
            worker_init_fn=_ignore_signals if workers else None,
            multiprocessing_context="fork" if workers else None,
        )

    def run(self, rows: Sequence[Rows]) -> Iterator[tuple[Array, Rows, Any]]:
        """In the order of `rows`. Calling it again abandons the sequence before."""
        assert self._loader is not None, "closed"
        self._sampler.start(rows)
        results = iter(self._loader)
        self._pin()
        for at, (kind, value) in enumerate(results):
            if kind == "mistake":
                raise value
            yield self._slots[at % self._count], self._sampler.sent.popleft(), value

    def close(self) -> None:
        """End the worker processes: asked first, terminated after five seconds. Then give the memory back."""
        loader, self._loader = self._loader, None
        if loader is not None and (iterator := getattr(loader, "_iterator", None)) is not None:
            iterator._shutdown_workers()
        if self._registered:
            self._registered = False
            torch.cuda.cudart().cudaHostUnregister(self._slots.ctypes.data)

    def _pin(self) -> None:
        """Make the slots page-locked, so that the device copies from them directly. After the fork: workers need no part of it."""
        if self._pinned and not self._registered:
            error = torch.cuda.cudart().cudaHostRegister(self._slots.ctypes.data, self._slots.nbytes, 0)
            self._registered = int(error) == 0

    @property
    def pinned(self) -> bool:
        """Whether slots are page-locked."""
        return self._registered


class _SlotSampler:
    """The plan's rows, each with the number of the slot that it goes to."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.start(())

    def start(self, rows: Sequence[Rows]) -> None:
        self._rows = rows
        self.sent: deque[Rows] = deque()

    def __iter__(self) -> Iterator[tuple[int, Rows]]:
        sent = self.sent
        for at in range(len(self._rows)):
            rows = self._rows[at]
            sent.append(rows)
            yield at % self._slots, rows

    def __len__(self) -> int:
        return len(self._rows)


class _RowDataset(Dataset[Any]):
    """In a worker: makes the work when the first rows arrive, so that nothing of a decoder is shared over a fork."""

    def __init__(self, make_work: Callable[[], Work], slots: Array) -> None:
        self._make_work, self._slots = make_work, slots
        self._work: Work | None = None

    def __getitem__(self, slot_and_rows: tuple[int, Rows]) -> tuple[str, Any]:
        slot, rows = slot_and_rows
        if self._work is None:
            self._work = self._make_work()
        try:
            return "done", self._work(rows, self._slots[slot])
        except Mistake as mistake:  # as a value: the DataLoader would wrap it in a traceback
            return "mistake", mistake


def _ignore_signals(_worker: int) -> None:
    # Ctrl-C and torchrun's SIGTERM reach the whole process group; the main process decides when workers end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)


def require_shared_memory(needed: int) -> None:
    """Raise Mistake when /dev/shm cannot hold what worker processes need there."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return
    if needed > free:
        raise Mistake(
            f"/dev/shm has {free / 2**20:.0f} MiB free and worker processes need {needed / 2**20:.0f} MiB there: "
            f"docker run --shm-size=1g, or --workers 0"
        )
