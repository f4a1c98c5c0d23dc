"""What a loader leaves behind: processes, threads, files, folders, and memory from epoch to epoch."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks import soak
from saturate.contracts import Feed
from tests.conformance.scenes import Open
from tests.left import left_after

WITHIN_S = 30.0
"""In which everything must be gone."""
MIB_AN_EPOCH = 0.5
"""Growth of memory above which an epoch leaks: between noise (0.1) and the planted leak (1)."""
WARM_EPOCHS, EPOCHS, ATTEMPTS = 4, 10, 3


def traces(temporary: Path) -> Counter[str]:
    """Count what this process holds: by name, but for open files, and threads of libraries."""
    process = psutil.Process()
    ours = [one for one in threading.enumerate() if one.name.startswith("saturate")]
    named = [
        *(f"child process {child.pid}" for child in process.children(recursive=True)),
        *(f"thread {thread.name}" for thread in ours),
        *(f"temporary {name}" for name in os.listdir(temporary)),
    ]
    counts = {"threads": process.num_threads(), "open files": process.num_fds()}
    return Counter(named) + Counter(counts)


def nothing_is_left(
    before: Counter[str], temporary: Path, within_s: float = WITHIN_S
) -> None:
    """Waits for what ends on its own within that time."""
    assert not left_after(within_s, lambda: [*(traces(temporary) - before)])


@contextmanager
def old_left_alone() -> Iterator[None]:
    """Have no collection of garbage look at what is there by now, which would take most of the time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def epochs_are_flat(
    open_: Open, feed: Feed, attempts: int = ATTEMPTS
) -> dict[str, float]:
    """Return what an epoch adds: nothing in one of `attempts` windows, for allocators settle slowly."""
    # what a loader forks as it opens thaws what was frozen before
    with open_(feed) as loader, old_left_alone():
        epoch = 0
        for _ in range(WARM_EPOCHS):
            epoch = _pass(loader, epoch)
        for _ in range(attempts):
            values: dict[str, list[float]] = {}
            for _ in range(EPOCHS):
                epoch = _pass(loader, epoch)
                for name, value in soak.reading(feed.device).items():
                    values.setdefault(name, []).append(value)
            growth = {name: soak.slope(value) for name, value in values.items()}
            grown = {
                name: value
                for name, value in growth.items()
                if value > (MIB_AN_EPOCH if name in soak.MIB else 0.0)
            }
            if not grown:
                return growth
    raise AssertionError(f"an epoch adds {grown}: {values}")


def _pass(loader, epoch: int) -> int:
    for _ in loader.batches(epoch, 0):
        pass
    return epoch + 1
