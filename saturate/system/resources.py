"""The share of this machine that this process may use: cores and memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def cores() -> float:
    """Return the CPU cores that this process may use: its affinity, or the container's quota where that is
    less."""
    affinity = float(len(os.sched_getaffinity(0)))
    # cgroup v2, then v1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # a file is missing, or says 'max'
            words = " ".join((CGROUP / name).read_text() for name in names)
            quota, period = map(int, words.split())
            if quota > 0:
                return min(affinity, quota / period)
    return affinity


def memory_bytes() -> int:
    """Return the memory in bytes that this process may use: the machine's, or the container's limit where
    that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    # cgroup v2, then v1
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # the file is missing, or says 'max'
            limits.append(int((CGROUP / name).read_text()))
    return min(limits)
