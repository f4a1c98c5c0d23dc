"""How samples that lie far away are read: several at once, and kept on a disk; must not know formats."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from saturate.contracts import Source
from saturate.dataset.stores import remote
from saturate.dataset.stores.disk_cache import Kept
from saturate.dataset.stores.entries import EntrySource

REMOTE_READS = 16
"""Reads that a worker has under way together where samples lie behind URLs."""
LOCAL_READS = 8
"""Reads that a worker has under way together in a store of this machine, while they wait for the disk."""


def read_ahead(
    source: Source, threads: int | None, cache_dir: Path | None, cache_gib: float
) -> bool:
    """Tell a source how many reads a worker has under way, and where it keeps what came from far away.

    Returns whether it comes from far away. Raises UserError where the folder cannot be written.
    """
    if not isinstance(source, EntrySource):
        return False
    far = source.remote
    source.reads_at_once = threads or (REMOTE_READS if far else LOCAL_READS)
    source.alone_while_fast = not far and threads is None
    if source.alone_while_fast and source.read_delay_s:
        source.reads_at_once = 1  # what a delay costs is to be seen
    if far and cache_dir is not None:
        source.cache = Kept(cache_dir, int(cache_gib * 2**30))
    return far


def size_note(read_bytes: int, samples: int, memory: int, *, far: bool = False) -> str:
    """Return a line where data of so many bytes do not fit the memory, so that no epoch finds them there.

    "" where they do. `far`: they come from servers.
    """
    if read_bytes <= memory:
        return ""
    needed = 1000 * read_bytes / samples / 2**20
    return (
        f"the set is {read_bytes / 2**30:,.0f} GiB, memory {memory / 2**30:,.0f}: every epoch reads the "
        f"{'servers' if far else 'disk'}, and 1,000 images/s need {needed:,.0f} MiB/s of it"
    )


def latency_note(source: Source) -> str:
    """Return a line that says how fast reads from far away can be. Raises UserError and OSError."""
    latency_s = remote.apart(partial(_latency_s, source))
    return (
        f"a read of the data takes {latency_s * 1e3:.0f} ms, so {source.reads_at_once} at once give at most "
        f"{source.reads_at_once / latency_s:,.0f} images/s a worker (rate = reads in flight / latency); "
        "--read-threads and --workers raise it, --cache-dir keeps what was read on a disk"
    )


def _latency_s(source: Source) -> float:
    """Return the seconds of a read: the least of three, of which the first connects."""
    if isinstance(source, EntrySource):
        source.cache = None  # in this process alone
    times = []
    for sample in range(min(3, len(source))):
        began = time.perf_counter()
        source.read(sample)
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-6)
