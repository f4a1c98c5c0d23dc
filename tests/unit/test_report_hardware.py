"""Machine readings: right where they can be checked, None where they cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from saturate.report import hardware
from saturate.report.hardware import (
    ROOMS,
    SECTIONS,
    Sampler,
    host_gib,
    is_throttled,
    sources,
)
from tests.unit.drills import copied

CPU = torch.device("cpu")


def test_cpu_load_is_of_the_cores_that_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container it is that of the quota."""
    Core = namedtuple("Core", ("user", "idle", "iowait", "steal"))
    other = Core(0, 0, 0, 99)
    readings = iter([[Core(10, 90, 0, 0), other], [Core(13, 94, 1, 2), other]] * 2)
    now = [10.0]
    monkeypatch.setattr(hardware.psutil, "cpu_times", lambda percpu: next(readings))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    monkeypatch.setattr(hardware.time, "monotonic", lambda: now[0])
    for cores, busy in ((1.0, 5 / 10), (0.5, 0.75)):
        (tmp_path / "cpu.stat").write_text("nr_periods 5\nusage_usec 1000000\n")
        sampler = Sampler(CPU, cores=cores)
        now[0] += 4.0
        (tmp_path / "cpu.stat").write_text("nr_periods 5\nusage_usec 2500000\n")
        load = sampler._cpu_load()
        assert load == pytest.approx({"cpu_utilisation": busy, "cpu_steal": 0.2})


def test_what_others_take_is_not_told_below_a_quota() -> None:
    """They may be busy on the same cores, and take none of what a container may use."""
    cores = len(os.sched_getaffinity(0))
    for share, told in ((1.0, True), (0.5, False)):
        sampler = Sampler(CPU, cores=share * cores)
        assert ("other_cores" in sampler._other_cores()) == told


def test_a_gpu_is_found_by_uuid_and_clocks_are_those_of_a_busy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVML's GPU 0 is not torch's cuda:0 under CUDA_VISIBLE_DEVICES. Means are of what was read since the
    last one; a reading that a GPU does not give is None.
    """
    import pynvml

    uuid, handle = "GPU-aaaa-bbbb", "a GPU"
    properties = SimpleNamespace(uuid="aaaa-bbbb")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    # share of its time in which it is busy, watts, clock, what holds the clock down
    readings = iter([(0, 100, 210, 1), (50, 300, 1980, 4), (100, 200, 1500, 1)])
    now = [next(readings)]

    def refused(_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name, read in {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": {uuid: handle}.__getitem__,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=now[0][0]),
        "nvmlDeviceGetPowerUsage": lambda gpu: now[0][1] * 1000 * (gpu == handle),
        "nvmlDeviceGetClockInfo": lambda *_: now[0][2],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: now[0][3],
        "nvmlDeviceGetMemoryInfo": refused,
    }.items():
        monkeypatch.setattr(pynvml, name, read)
    sampler = Sampler(torch.device("cuda:0"), cores=2.0)
    sampler._add(sampler._gpu_load())
    for now[0] in readings:
        sampler._add(sampler._gpu_load())
    found = sampler.read()
    mean = (0.5, 200.0, 1740.0, 0.5)
    assert tuple(found[name] for name in SECTIONS["gpu"].values()) == mean
    assert found["device_gib"] is None
    held = []
    for reasons in (
        0x1,
        0x2,
        0x4,
        0x40,
        0x100,
    ):  # idle, asked for, power, heat, display
        now[0] = 100, 200, 1500, reasons
        held.append(is_throttled(torch.device("cuda:0")))
    assert held == [False, False, True, True, False]
    assert not is_throttled(CPU)


SHARING = """
import os, sys
shared = bytearray(b"x") * (200 << 20)
own = bytearray(b"x") * (100 << 20) if os.fork() == 0 else b""
print("ready", flush=True)
sys.stdin.read()
"""


def test_host_memory_counts_children_and_shared_pages_once() -> None:
    """A process of 200 MiB, and its child that has 100 MiB of its own beside them."""
    words, pipe = [sys.executable, "-c", SHARING], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        found = host_gib(parent.pid)
    assert 0.29 < found < 0.36
    assert host_gib(parent.pid) == 0.0, "it is gone"


def test_the_digest_of_the_code_sees_every_room(tmp_path: Path) -> None:
    """Rooms are named, and two are links: a digest of nothing would be alike on all hosts."""
    tree = copied(tmp_path / "tree")
    package = tree / "saturate"
    digests = {sources(package)}
    # a module of each folder
    found = {
        path.parent: path
        for room in ROOMS.split()
        for path in (package / room).rglob("*.py")
    }
    for path in found.values():
        path.write_bytes(path.read_bytes() + b"#")
        digests.add(sources(package))
    (package / "contracts.py").write_text("#")
    digests.add(sources(package))
    assert len(digests) == len(found) + 2 > 20
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert folders == {*ROOMS.split()}
    (package / "models").unlink()
    with pytest.raises(FileNotFoundError, match="models has no modules"):
        sources(package)
