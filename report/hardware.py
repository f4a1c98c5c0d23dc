"""What a run stood on and how busy it was: versions, machine, GPU and CPU load, memory. A reading that cannot
be had is None.

Must not know: what trains, the figures' use. Nothing here raises for a missing GPU, driver or library.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from system.resources import CGROUP, memory_bytes

GIB = 1 << 30
SAME_NAME = "torch torchvision triton numpy tensorboard decord av torchcodec pycocotools pillow pillow-simd"
# name told -> distribution; the first that is installed, by prefix, for NVIDIA's carry the CUDA version
DISTRIBUTIONS = {
    **{name: name for name in SAME_NAME.split()},
    "opencv": "opencv-python",
    "dali": "nvidia-dali-cuda",
    "nccl": "nvidia-nccl-cu",
    "nvimgcodec": "nvidia-nvimgcodec-cu",
    "nvjpeg": "nvidia-nvjpeg-cu",
}
READINGS = {
    "utilisation": "gpu_utilisation",
    "power_w": "power_w",
    "sm_mhz": "sm_mhz",
    "throttled": "throttled",
}
"""Name in the summary's `gpu` -> name of the Sampler's reading."""


def versions() -> dict[str, str]:
    """Return the versions of what is installed and can change a figure. Imports none of it (torch is imported
    already).
    """
    # a file of metadata is parsed whenever it is asked for
    contents = [
        content for one in metadata.distributions() if (content := one.metadata)
    ]
    installed = {
        str(one["Name"]).lower().replace("_", "-"): str(one["Version"])
        for one in contents
    }
    result: dict[str, str | None] = {"python": platform.python_version()}
    for name, distribution in DISTRIBUTIONS.items():
        family = distribution[-1].isalpha() and distribution.startswith(
            ("nvidia-", "opencv-")
        )
        members = {
            known for known in installed if family and known.startswith(distribution)
        }
        names = sorted(members | ({distribution} & installed.keys()))
        result[name] = installed[names[0]] if names else None
    result["torch"] = torch.__version__
    result["cuda"] = torch.version.cuda
    cudnn = (
        torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    )
    result["cudnn"] = str(cudnn) if cudnn else None
    result["driver"] = _nvml(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))
    return {name: version for name, version in result.items() if version}


def hardware(device: torch.device, cores: float) -> dict[str, Any]:
    """Describe the machine as this process may use it: gpu gpus gpu_gib (None without one) cpu cores ram_gib
    shm_gib.
    """
    cuda = device.type == "cuda" and torch.cuda.is_available()
    gpu = torch.cuda.get_device_properties(device) if cuda else None
    return {
        "gpu": gpu.name if gpu else None,
        "gpus": torch.cuda.device_count() if cuda else 0,
        "gpu_gib": round(gpu.total_memory / GIB, 1) if gpu else None,
        "cpu": _cpu_model(),
        "cores": round(cores, 2),
        "ram_gib": round(memory_bytes() / GIB, 1),
        "shm_gib": round(shm_free_bytes() / GIB, 2),
    }


def host_gib(pid: int | None = None) -> float:
    """Return the memory of the process and all its children, GiB. Takes milliseconds.

    It is the PSS, so that shared pages count once; the RSS where the kernel has no PSS.
    """
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += _pss(process.pid) or process.memory_info().rss
    return total / GIB


def device_memory(device: torch.device) -> dict[str, float | None]:
    """Return the most that torch has had of a device's memory, and what is used, GiB; None on a CPU."""
    cuda = device.type == "cuda"
    return {
        "allocated_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if cuda else None,
        "device_gib": device_gib(device),
    }


def device_gib(device: torch.device) -> float | None:
    """Return the memory in use on the device by everything on it, other processes and libraries too, GiB."""
    if device.type != "cuda":
        return None
    # from the driver: torch's own figures leave out what decoders and other libraries take
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / GIB


def shm_free_bytes() -> int:
    """Return the free bytes in /dev/shm, where worker processes hand batches over; 0 where there is none."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize


def over_ranks(
    readings: Sequence[Mapping[str, float | None]],
) -> dict[str, float | None]:
    """Return the means of what each rank has read of its own GPU; a rank without a reading is left out."""
    means: dict[str, float | None] = {}
    for name in readings[0]:
        known = [value for local in readings if (value := local[name]) is not None]
        means[name] = sum(known) / len(known) if known else None
    return means


LOADS = (
    "cpu_utilisation",
    "cpu_steal",
    "gpu_utilisation",
    "power_w",
    "sm_mhz",
    "throttled",
)
"""Those of a Sampler's readings that say how busy the machine is, and at which clocks."""
SLOWED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""nvml.h, nvmlClocksEventReason*: power cap, hardware slowdown, thermal (software, hardware), power brake."""
HOST_EVERY = 4
"""Samples between two readings of the host memory of the process tree."""


class Sampler:
    """Reads GPU and CPU load about once a second in a daemon thread. `read()` gives the means since the last
    one.

    `cores`: how many this process may use. Clocks and throttling are of the readings in which the GPU was
    busy. `host`: read the host memory of the process tree too, which takes tens of milliseconds.
    """

    NAMES = (
        "gpu_utilisation",
        "power_w",
        "sm_mhz",
        "throttled",
        "device_gib",
        "cpu_utilisation",
        "cpu_steal",
        "host_gib",
    )

    def __init__(
        self,
        device: torch.device,
        *,
        cores: float,
        every_s: float = 1.0,
        host: bool = True,
    ) -> None:
        self._every_s = every_s
        self._host = host
        self._handle = _nvml_handle(device)
        self._sums: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._cpu = _cpu_load(cores)
        self._steal = _cpu_steal()

    def start(self) -> Sampler:
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._end.clear()
            for load in (self._cpu, self._steal):
                next(load)  # it is counted from here
            self._thread = threading.Thread(
                target=self._run, name="load-sampler", daemon=True
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    def read(self) -> dict[str, float | None]:
        """Return the means since the last call by NAMES, None where nothing was read.

        gpu_utilisation, cpu_utilisation, cpu_steal (a part of it) and throttled are shares, 0..1.
        """
        with self._lock:
            sums = self._sums
            self._sums = {}
        return {
            name: sums[name][0] / sums[name][1] if name in sums else None
            for name in self.NAMES
        }

    def _run(self) -> None:
        rounds = 0
        # where memory runs out the step says so in one line, which a traceback of this thread would hide
        with contextlib.suppress(MemoryError):
            while not self._end.wait(self._every_s):
                self._add(self._sample())
                if (
                    self._host and rounds % HOST_EVERY == 0
                ):  # the kernel walks each process's page tables
                    self._add({"host_gib": host_gib()})
                rounds += 1

    def _add(self, sample: dict[str, float | None]) -> None:
        with self._lock:
            for name, value in sample.items():
                if value is not None:
                    total, count = self._sums.get(name, (0.0, 0))
                    self._sums[name] = (total + value, count + 1)

    def _sample(self) -> dict[str, float | None]:
        at = self._handle
        busy = at and _nvml(
            lambda nvml: nvml.nvmlDeviceGetUtilizationRates(at).gpu / 100
        )
        at_work = (
            at if busy != 0 else None
        )  # an idle GPU's clock says nothing of what ran
        return {
            "gpu_utilisation": busy,
            "power_w": at
            and _nvml(lambda nvml: nvml.nvmlDeviceGetPowerUsage(at) / 1000),
            "sm_mhz": at_work and _nvml(lambda nvml: _sm_mhz(nvml, at)),
            "throttled": at_work and _nvml(lambda nvml: _is_slowed(nvml, at)),
            "device_gib": at
            and _nvml(lambda nvml: nvml.nvmlDeviceGetMemoryInfo(at).used / GIB),
            "cpu_utilisation": next(self._cpu),
            "cpu_steal": next(self._steal),
        }


def _sm_mhz(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))


def _is_slowed(nvml: Any, handle: Any) -> float:
    return float(bool(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & SLOWED))


def _nvml(read: Callable[[Any], Any]) -> Any:
    """Return what `read(pynvml)` gives, or None. nvmlInit counts its calls and is cheap after the first."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return read(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no library, driver, permission or such a reading on this GPU: all the same here
        return None


def _nvml_handle(device: torch.device) -> Any:
    """Return NVML's handle of the device, or None."""
    # NVML counts GPUs in its own order and does not know CUDA_VISIBLE_DEVICES: match by UUID
    if device.type != "cuda":
        return None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()  # kept open, or the handle would die
        return pynvml.nvmlDeviceGetHandleByUUID(
            uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        )
    return None


def _cpu_load(cores: float) -> Iterator[float | None]:
    """Yield the busy share of the cores that this process may use, each time since the time before."""
    allowed = os.sched_getaffinity(0)

    def read() -> tuple[float, float] | None:
        used = [
            microseconds / 1e6 for microseconds in _cgroup("cpu.stat", "usage_usec")
        ]
        used += [nanoseconds / 1e9 for nanoseconds in _cgroup("cpuacct/cpuacct.usage")]
        if (
            cores < len(allowed) and used
        ):  # a container's own clock: /proc/stat is the whole machine's
            return used[0], time.monotonic() * cores
        if not (times := _cpu_times(allowed)):
            return None
        room = sum(sum(core[:8]) for core in times)  # guest time is within user time
        return room - sum(
            core.idle + getattr(core, "iowait", 0.0) for core in times
        ), room

    return _shares(read)


def _cpu_steal() -> Iterator[float | None]:
    """Yield, likewise, the share of their time in which they were wanted and the host ran other virtual
    machines on them.
    """
    allowed = os.sched_getaffinity(0)

    def read() -> tuple[float, float] | None:
        if not (times := _cpu_times(allowed)):
            return None
        return sum(getattr(core, "steal", 0.0) for core in times), sum(
            sum(core[:8]) for core in times
        )

    return _shares(read)


def _shares(read: Callable[[], tuple[float, float] | None]) -> Iterator[float | None]:
    """Yield the growth of the first number that `read` returns over that of the second, since the time
    before, in 0..1.

    It is None the first time, and where nothing can be read.
    """
    before: tuple[float, float] | None = None
    while True:
        if (now := read()) is None:
            yield None
            continue
        share = (
            (now[0] - before[0]) / (now[1] - before[1])
            if before and now[1] > before[1]
            else None
        )
        before = now
        yield share if share is None else min(max(share, 0.0), 1.0)


def _cpu_times(cores: set[int]) -> list[Any]:
    """Return psutil's times of each of these cores; none where they cannot be read."""
    try:
        return [
            core
            for index, core in enumerate(psutil.cpu_times(percpu=True))
            if index in cores
        ]
    except OSError:  # no descriptor for it, say
        return []


def _cgroup(name: str, key: str = "") -> list[int]:
    """Return the file's numbers, of the lines that start with `key`; none where it is missing or 'max'."""
    try:
        lines = (CGROUP / name).read_text().splitlines()
    except OSError:
        return []
    words = [word for line in lines if line.startswith(key) for word in line.split()]
    return (
        []
        if "max" in words
        else [int(word) for word in words if word.lstrip("-").isdigit()]
    )


def _pss(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None
    )


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
