"""Machine readings: right where they can be checked, None where they cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from report import hardware
from report.hardware import (
    GIB,
    Sampler,
    device_gib,
    host_gib,
    over_ranks,
    shm_free_bytes,
    versions,
)

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def test_versions_are_those_that_are_imported() -> None:
    import numpy as np
    import torchvision

    found = versions()
    assert (found["torch"], found["numpy"]) == (torch.__version__, np.__version__)
    assert found["torchvision"] == torchvision.__version__.split("+")[0]
    assert found["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert all(isinstance(version, str) and version for version in found.values())


def test_versions_import_nothing_heavy() -> None:
    heavy = ("nvidia.dali", "torchvision", "cv2", "decord")
    code = f"import sys, report.hardware as r; r.versions(); print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.check_output(
            [sys.executable, "-c", code], cwd=ROOT, text=True
        ).strip()
        == "[]"
    )


def test_hardware_of_a_cpu() -> None:
    found = hardware.hardware(CPU, 1.504)
    assert (found["gpu"], found["gpus"], found["gpu_gib"], device_gib(CPU)) == (
        None,
        0,
        None,
        None,
    )
    assert found["cores"] == 1.5
    assert 0 < found["ram_gib"] <= psutil.virtual_memory().total / GIB + 0.1
    assert found["cpu"]


def test_cpu_load_in_a_container_is_that_of_its_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(hardware.time, "monotonic", lambda: clock.now)
    (tmp_path / "cpu.stat").write_text("nr_periods 5\nusage_usec 1000000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    load = hardware._cpu_load(2.0)
    assert next(load) is None
    clock.now += 2.0
    (tmp_path / "cpu.stat").write_text("nr_periods 5\nusage_usec 4000000\n")
    assert next(load) == pytest.approx(3.0 / (2.0 * 2))


def test_steal_is_of_the_cores_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Core = namedtuple("Core", ("user", "idle", "irq", "steal"))
    first, other, second = (
        [Core(10, 90, 0, 0), Core(0, 0, 0, 50)],
        Core(0, 0, 0, 99),
        Core(13, 95, 0, 2),
    )
    readings: Iterator[list[Any]] = iter([first, [second, other], []])
    monkeypatch.setattr(hardware.psutil, "cpu_times", lambda percpu: next(readings))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    steal = hardware._cpu_steal()
    assert [next(steal) for _ in range(3)] == [None, pytest.approx(0.2), None]


def test_sampler_on_a_machine_without_gpu_reads_the_cpu() -> None:
    before = {thread.name for thread in threading.enumerate()}
    cores = float(len(os.sched_getaffinity(0)))
    sampler = Sampler(CPU, cores=cores, every_s=0.05).start()
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        pass  # one core is busy
    found = sampler.read()
    of_gpu = ("gpu_utilisation", "power_w", "sm_mhz", "throttled", "device_gib")
    assert set(found) == {*of_gpu, "cpu_utilisation", "cpu_steal", "host_gib"}
    assert [found[name] for name in of_gpu] == [None] * 5
    assert (
        found["cpu_utilisation"] is not None
        and 0.5 / cores < found["cpu_utilisation"] <= 1.0
    )
    assert found["cpu_steal"] is not None and 0 <= found["cpu_steal"] <= 1
    sampler.stop()
    sampler.read()
    assert sampler.read()["cpu_utilisation"] is None, "nothing since the last read"
    sampler.stop()
    assert {thread.name for thread in threading.enumerate()} == before
    bare = Sampler(CPU, cores=2.0, every_s=0.01, host=False).start()
    time.sleep(0.2)
    bare.stop()
    found = bare.read()
    assert found["host_gib"] is None and found["cpu_utilisation"] is not None


def test_a_gpu_is_found_by_uuid_and_clocks_are_those_of_a_busy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVML's GPU 0 is not torch's cuda:0 under CUDA_VISIBLE_DEVICES. Means are of what was read since the
    last one; a reading that a GPU does not give is None.
    """
    import pynvml

    uuid, handle = "GPU-aaaa-bbbb", "a GPU"
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="aaaa-bbbb")
    )
    watts = iter([100_000, 300_000, 200_000, 200_000, 500_000])
    shares, clocks, reasons = (
        iter([0, 50, 0, 100, 97]),
        iter([1980, 1500]),
        iter([0x4, 0]),
    )

    def next_or_refuse(values: Iterator[int]) -> int:
        if (value := next(values, None)) is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    for name, read in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": {uuid: handle}.__getitem__,
        "nvmlDeviceGetPowerUsage": lambda asked: next(watts) if asked == handle else 0,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=next(shares)),
        "nvmlDeviceGetClockInfo": lambda *_: next_or_refuse(clocks),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: next_or_refuse(reasons),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=3 * GIB),
    }.items():
        monkeypatch.setattr(pynvml, name, read)
    sampler = Sampler(torch.device("cuda:0"), cores=2.0)
    names = ("power_w", "gpu_utilisation", "sm_mhz", "throttled", "device_gib")
    for count, expected in (
        (4, (200.0, 0.375, 1740.0, 0.5, 3.0)),
        (1, (500.0, 0.97, None, None, 3.0)),
    ):
        for _ in range(count):
            sampler._add(sampler._sample())
        found = sampler.read()
        assert tuple(found[name] for name in names) == expected


SHARING = """
import os, sys
shared = bytearray(b"x") * (200 << 20)
own = bytearray(b"x") * (100 << 20) if os.fork() == 0 else b""
print("ready", flush=True)
sys.stdin.read()
"""


def test_host_memory_counts_children_and_shared_pages_once() -> None:
    """A process of 200 MiB, and its child that has 100 MiB of its own beside them."""
    words = [sys.executable, "-c", SHARING]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        found = host_gib(parent.pid)
    assert 0.29 < found < 0.36
    assert host_gib(parent.pid) == 0.0, "it is gone"


def test_host_memory_without_pss_is_rss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_pss", lambda _: None)
    assert host_gib() >= psutil.Process().memory_info().rss / GIB * 0.9


def test_room_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.path.isdir("/dev/shm"):
        assert shm_free_bytes() == pytest.approx(
            psutil.disk_usage("/dev/shm").free, rel=0.05
        )

    def missing(_: str) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(os, "statvfs", missing)
    assert shm_free_bytes() == 0


def test_readings_of_all_ranks_are_a_mean_of_those_that_have_one() -> None:
    ranks = [
        {"power_w": 200.0, "sm_mhz": None, "throttled": 0.0},
        {"power_w": 600.0, "sm_mhz": None, "throttled": None},
    ]
    assert over_ranks(ranks) == {"power_w": 400.0, "sm_mhz": None, "throttled": 0.0}
