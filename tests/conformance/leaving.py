"""What a loader leaves behind: processes, threads, files, folders, and memory from epoch to epoch."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from contracts import Feed
from report.hardware import device_gib
from tests.conformance.scenes import Open
from tests.left import left_after

WITHIN_S = 30.0
"""In which everything must be gone."""
MIB_AN_EPOCH = 0.5
"""Growth of memory above which an epoch leaks: between noise (0.1) and the planted leak (1)."""
WARM_EPOCHS, EPOCHS, ATTEMPTS = 4, 10, 3


@dataclass(frozen=True, slots=True)
class Traces:
    """What this process holds."""

    children: frozenset[int]
    threads: frozenset[str]  # names of ours
    os_threads: int  # of all, DALI's and PyTorch's too
    files: int  # open descriptors
    temporary: frozenset[str]

    @staticmethod
    def now(temporary: Path) -> Traces:
        process = psutil.Process()
        return Traces(
            children=frozenset(child.pid for child in process.children(recursive=True)),
            threads=frozenset(
                thread.name
                for thread in threading.enumerate()
                if thread.name.startswith("saturate")
            ),
            os_threads=process.num_threads(),
            files=process.num_fds(),
            temporary=frozenset(os.listdir(temporary)),
        )

    def beyond(self, before: Traces) -> list[str]:
        return [
            *(f"child process {pid}" for pid in self.children - before.children),
            *(f"thread {name}" for name in self.threads - before.threads),
            *(
                [f"{self.os_threads - before.os_threads} threads more"]
                if self.os_threads > before.os_threads
                else []
            ),
            *(
                [f"{self.files - before.files} open files more"]
                if self.files > before.files
                else []
            ),
            *(f"temporary {name}" for name in self.temporary - before.temporary),
        ]


def nothing_is_left(
    before: Traces, temporary: Path, within_s: float = WITHIN_S
) -> None:
    """Waits for what ends on its own within that time."""
    assert not left_after(within_s, lambda: Traces.now(temporary).beyond(before))


def host_mib() -> float:
    """Return the memory of this process and its children, MiB: shared pages count once, files' pages do not.

    What this process has freed goes back to the system first, or a leak would be served from it.
    """
    ctypes.CDLL(None).malloc_trim(0)
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(OSError):  # the process has ended
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            kib = {line.partition(":")[0]: line.split()[1] for line in lines[1:]}
            total += (int(kib["Pss_Anon"]) + int(kib["Pss_Shmem"])) / 1024
    return total


def slope(values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs (Theil and Sen): a single jump does not move it."""
    pairs = itertools.combinations(enumerate(values), 2)
    return float(np.median([(b - a) / (j - i) for (i, a), (j, b) in pairs]))


def measures(device: torch.device) -> dict[str, tuple[Callable[[], float], float]]:
    """name -> (reading, most that an epoch may add)."""
    process = psutil.Process()
    found: dict[str, tuple[Callable[[], float], float]] = {
        "host MiB": (host_mib, MIB_AN_EPOCH),
        "open files": (process.num_fds, 0.0),
        "threads": (process.num_threads, 0.0),
        "processes": (lambda: len(process.children(recursive=True)), 0.0),
    }
    if device.type == "cuda":
        found["device MiB"] = (lambda: 1024 * (device_gib(device) or 0.0), MIB_AN_EPOCH)
    return found


def epochs_are_flat(
    open_: Open, feed: Feed, attempts: int = ATTEMPTS
) -> dict[str, float]:
    """Return what an epoch adds: nothing in one of `attempts` windows, for allocators settle slowly."""
    readings = measures(feed.device)
    with open_(feed) as loader:
        epoch = 0
        for _ in range(WARM_EPOCHS):
            epoch = _pass(loader, epoch)
        for _ in range(attempts):
            values: dict[str, list[float]] = {name: [] for name in readings}
            for _ in range(EPOCHS):
                epoch = _pass(loader, epoch)
                for name, (read, _limit) in readings.items():
                    values[name].append(read())
            growth = {name: slope(value) for name, value in values.items()}
            grown = {
                name: value
                for name, value in growth.items()
                if value > readings[name][1]
            }
            if not grown:
                return growth
    raise AssertionError(f"an epoch adds {grown}: {values}")


def _pass(loader, epoch: int) -> int:
    for _ in loader.batches(epoch, 0):
        pass
    return epoch + 1
