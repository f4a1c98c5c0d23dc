"""What other programs on this machine take from a run: CPU cores, and its GPU. Needs neither torch nor psutil.

A reading that cannot be had is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
"""A second, in the clocks of the kernel."""
HELD_S = 1.0
"""Seconds for which a run is held idle, to see whether its GPU is: NVML's figure is of the last one at most."""
READINGS = 10
"""Readings of the GPU meanwhile; those of the later half count."""
BUSY = 0.05
"""Share of that time from which on a GPU is shared."""


def root() -> int:
    """Return the process that has begun all of this run on this host: of several ranks the one that started them."""
    several = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    return os.getppid() if several else os.getpid()


def tree(root_pid: int, proc: Path = PROC) -> dict[int, float]:
    """Return the CPU seconds of a process and its descendants, by pid, with those of their children that have ended."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in proc.glob("[0-9]*"):
        # it has ended meanwhile, or is another user's; any other error would make the run's own time too small
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            # the name before may have spaces and brackets
            words = (path / "stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)] = int(words[1])
            seconds[int(path.name)] = sum(map(int, words[11:15])) / TICKS
    members = {root_pid}
    # a child may have a lower number than its parent
    while more := {pid for pid in parents if parents[pid] in members} - members:
        members |= more
    return {pid: seconds[pid] for pid in members & seconds.keys()}


def cpu_time(root_pid: int, proc: Path = PROC) -> tuple[float, float]:
    """Return the time, and the CPU seconds so far of all programs but the tree of a process, on the cores that this
    process may use. In a container the kernel tells those of the whole machine's programs.
    """
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = map(str.split, (proc / "stat").read_text().splitlines())
    # user, nice, system: interrupts are nobody's, and what the host took away is told as cpu.steal
    ticks = sum(sum(map(int, words[1:4])) for words in lines if words[0] in names)
    return time.monotonic(), ticks / TICKS - sum(tree(root_pid, proc).values())


def cores_taken(before: tuple[float, float], now: tuple[float, float]) -> float:
    """Return how many cores other programs have taken between two of `cpu_time`.

    They are too few where ranks of this run are bound to other cores.
    """
    return max(now[1] - before[1], 0.0) / (now[0] - before[0])


def gpu_handle(uuid: str) -> Any:
    """Return NVML's handle of the GPU that torch knows by this uuid, or None."""
    if not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    with suppress(Exception):  # no package, no library, no permission
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return None


def gpu_shared(gpu: Any, root_pid: int) -> dict[str, Any] | None:
    """Return by whom a GPU is used while this run, the tree of a process, is held idle: see `shared`.

    Takes HELD_S, and no time without a GPU. The run's own work on the GPU has to have ended.
    """
    if gpu is None:
        return None
    import pynvml as nvml

    # of a part of a GPU (MIG) there is no figure
    with suppress(nvml.NVMLError):
        readings = []
        for _ in range(READINGS):
            time.sleep(HELD_S / READINGS)
            readings.append(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)
        pids = [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
        return shared(readings[READINGS // 2 :], pids, tree(root_pid))
    return None


def shared(
    readings: Sequence[float], pids: Collection[int], own: Collection[int]
) -> dict[str, Any] | None:
    """Return `busy`, the share of the time in which others were at work on the GPU, and `who`; None where it was idle.

    `readings` are those while this run, the processes `own`, was held idle, `pids` whom NVML tells of.
    """
    busy = sum(readings) / len(readings)
    # where the last one is of an idle GPU, what was before was this run's own
    if readings[-1] < BUSY or busy < BUSY:
        return None
    # in a container NVML has other numbers of processes than are here, or none
    knows = any(pid in own for pid in pids)
    others = [pid for pid in pids if pid not in own] if knows else []
    return {"busy": busy, "who": others}
