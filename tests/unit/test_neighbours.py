"""What others take of cores and GPU: by recorded texts of the kernel, a busy program, and readings of NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saturate.system import neighbours
from saturate.system.neighbours import cores_taken, cpu_time, shared, tree

SECOND = os.sysconf("SC_CLK_TCK")


def recorded(
    proc: Path, cores: list[list[float]], processes: dict[int, list[float]]
) -> Path:
    """Write /proc: seconds of each core, and of each process its parent, then utime, stime, cutime and cstime."""
    lines = ["cpu  9 9 9 9 9 9 9 9 9 9"]
    for index, seconds in enumerate(cores):
        lines.append(f"cpu{index} " + " ".join(f"{s * SECOND:.0f}" for s in seconds))
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text("\n".join([*lines, "intr 5 0", "ctxt 7\n"]))
    for pid, (parent, *seconds) in processes.items():
        (proc / str(pid)).mkdir(exist_ok=True)
        times = " ".join(f"{s * SECOND:.0f}" for s in seconds)
        # the name is whatever a program likes
        text = f"{pid} (a) 1 (b) S {parent} 1 1 0 -1 4194560 9 9 0 0 {times} 20 0 4 0\n"
        (proc / str(pid) / "stat").write_text(text)
    return proc


def test_what_others_take_is_what_is_busy_less_the_whole_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child with a lower number, one that ends, one that ends unseen, a neighbour, a core that is not ours."""
    # user nice system idle iowait irq softirq steal
    core = [10.0, 1.0, 2.0, 50.0, 3.0, 0.0, 0.0, 0.0]
    before = recorded(
        tmp_path / "before",
        [core, core, core],
        {
            20: [1, 4, 1, 0, 0],
            9: [20, 2, 0, 0, 0],
            21: [9, 1, 0, 0, 0],
            7: [1, 3, 0, 0, 0],
        },
    )
    (before / "22").mkdir()
    # of ten seconds: the first core is busy for 8, the second for 5, and 21 has ended
    now = recorded(
        tmp_path / "now",
        [[16, 1, 4, 51, 3, 0.5, 0.5, 0], [13, 2, 3, 53, 5, 0, 0, 0], [99] * 8],
        {20: [1, 5, 1, 0, 0], 9: [20, 4, 1, 2, 0], 7: [1, 11, 0, 0, 0]},
    )
    assert tree(20, before) == {20: 5.0, 9: 2.0, 21: 1.0}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    first, last = (cpu_time(20, proc)[1] for proc in (before, now))
    assert (first, last) == (26.0 - 8.0, 39.0 - 13.0)
    assert cores_taken((5.0, first), (15.0, last)) == pytest.approx(0.8)
    # ranks of this run that are bound to other cores
    assert cores_taken((5.0, first), (15.0, first - 9.0)) == 0.0


BURN = "import time\nwhile time.process_time() < 0.6: pass"


def test_a_busy_program_is_anothers_or_ones_own() -> None:
    """By the real clocks of this machine, where other programs only add."""
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with sleeper:
        before, own = cpu_time(sleeper.pid), sum(tree(os.getpid()).values())
        subprocess.run([sys.executable, "-c", BURN], check=True)
        now = cpu_time(sleeper.pid)
        assert sum(tree(os.getpid()).values()) - own > 0.5
        sleeper.communicate(b"\n")
    assert cores_taken(before, now) * (now[0] - before[0]) > 0.4


def test_ranks_of_one_host_are_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, root in (("1", os.getpid()), ("8", os.getppid())):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", count)
        assert neighbours.root() == root


OWN, OTHER = os.getpid(), os.getppid()


@pytest.mark.parametrize(
    ("readings", "pids", "busy", "known"),
    [
        ([0.6, 0.62, 0.61], [OWN, OTHER], 0.61, True),
        # in a container: the host's numbers, or none
        ([0.6, 0.62, 0.61], [OTHER], 0.61, False),
        ([1.0, 1.0, 1.0], [], 1.0, False),
        # a process that has memory there and does nothing
        ([0.0, 0.0, 0.0], [OWN, OTHER], None, False),
        # the rest of this run's own work
        ([0.9, 0.4, 0.0], [OWN], None, False),
    ],
)
def test_who_shares_a_gpu(
    readings: list[float], pids: list[int], busy: float | None, known: bool
) -> None:
    found = shared(readings, pids, {OWN})
    if busy is None:
        assert found is None
        return
    assert found and found["busy"] == pytest.approx(busy)
    assert found["who"] == ([OTHER] if known else [])


def test_a_gpu_is_looked_at_for_a_second_in_which_nothing_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pynvml

    slept: list[float] = []
    monkeypatch.setattr(neighbours.time, "sleep", slept.append)
    assert neighbours.gpu_shared(None, OWN) is None and not slept

    def busy(_: Any) -> Any:
        # what this run did is in the first readings
        return SimpleNamespace(gpu=100 if sum(slept) < 0.45 else 40)

    pids = [SimpleNamespace(pid=OWN)]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", busy)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda _: pids)
    found = neighbours.gpu_shared("a GPU", OWN)
    assert found == {"busy": pytest.approx(0.4), "who": []}
    assert sum(slept) == pytest.approx(1.0)
    slept.clear()

    def refused(_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", refused)
    assert neighbours.gpu_shared("a part of a GPU", OWN) is None
    assert sum(slept) < 0.2
