"""Worker processes behind the torchvision and dali-fed loaders: rows in, whatever `work(rows)` returns out, in order.

PyTorch's DataLoader with persistent workers; its sampler is the plan's rows. Workers are stateless: an epoch, a resume or a
drained ceiling is only another sequence of rows.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from contracts import Mistake, Rows

PREFETCH = 2
"""Batches under way a worker."""


class Workers:
    """`run(rows)` iterates over work(row) for each row. `bytes_a_batch` is what a result takes in shared memory."""

    def __init__(self, make_work: Callable[[], Callable[[Rows], Any]], *, workers: int, bytes_a_batch: int) -> None:
        self.in_flight = workers * PREFETCH
        self._sampler = _RowSampler()
        require_shared_memory(self.in_flight * bytes_a_batch)
        self._loader: DataLoader[Any] | None = DataLoader(
            _RowDataset(make_work),
            sampler=self._sampler,
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH if workers else None,
            worker_init_fn=_ignore_signals if workers else None,
            multiprocessing_context="fork" if workers else None,
        )

    def run(self, rows: Sequence[Rows]) -> Iterator[Any]:
        """Results in the order of `rows`. Calling it again abandons the sequence before."""
        assert self._loader is not None, "closed"
        self._sampler.rows = rows
        try:
            for kind, value in self._loader:
                if kind == "mistake":
                    raise value
                yield value
        except RuntimeError as error:
            if "Bus error" in str(error) or "shared memory" in str(error):
                raise Mistake(f"/dev/shm is full: {self._needs()}") from error
            raise

    def close(self) -> None:
        """End the worker processes: asked first, terminated after five seconds."""
        loader, self._loader = self._loader, None
        if loader is not None and (iterator := getattr(loader, "_iterator", None)) is not None:
            iterator._shutdown_workers()

    def _needs(self) -> str:
        return "give it more (docker run --shm-size=8g) or use fewer --workers or a smaller --batch-size"


class _RowSampler:
    rows: Sequence[Rows] = ()

    def __iter__(self) -> Iterator[Rows]:
        return (self.rows[i] for i in range(len(self.rows)))

    def __len__(self) -> int:
        return len(self.rows)


class _RowDataset(Dataset[Any]):
    """In a worker: makes the work function when the first rows arrive, so that nothing of it is shared over a fork."""

    def __init__(self, make_work: Callable[[], Callable[[Rows], Any]]) -> None:
        self._make_work = make_work
        self._work: Callable[[Rows], Any] | None = None

    def __getitem__(self, rows: Rows) -> tuple[str, Any]:
        if self._work is None:
            self._work = self._make_work()
        try:
            return "done", self._work(rows)
        except Mistake as mistake:  # as a value: the DataLoader would wrap it in a traceback
            return "mistake", mistake


def _ignore_signals(_worker: int) -> None:
    # Ctrl-C and torchrun's SIGTERM reach the whole process group; the main process decides when workers end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def shared_bytes(shape: Sequence[int]) -> torch.Tensor:
    """An uninitialised uint8 tensor that travels to another process without a copy."""
    return torch.empty(*shape, dtype=torch.uint8).share_memory_()


def require_shared_memory(needed: int) -> None:
    """Raise Mistake when /dev/shm cannot hold what the workers will have under way."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return
    if needed > free:
        raise Mistake(
            f"/dev/shm has {free / 2**20:.0f} MiB free, the workers need {needed / 2**20:.0f} MiB: "
            f"docker run --shm-size={-(-2 * needed // 2**30)}g, or fewer --workers, or a smaller --batch-size"
        )
