"""The machine of a run and how busy it is: versions, hardware, GPU and CPU load, memory.

A reading that cannot be had is None: nothing here raises for a missing GPU, driver or library.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from saturate.system import neighbours
from saturate.system.resources import CGROUP, memory_bytes

GIB = 1 << 30
SAME_NAME = (
    "torchvision triton numpy tensorboard decord av pycocotools pillow pillow-simd timm"
)
DISTRIBUTIONS = {
    **{name: name for name in SAME_NAME.split()},
    "opencv": "opencv-python-headless opencv-python",
    "dali": "nvidia-dali-cuda120 nvidia-dali-cuda130",
    "nccl": "nvidia-nccl-cu12 nvidia-nccl-cu13",
    "nvimgcodec": "nvidia-nvimgcodec-cu12 nvidia-nvimgcodec-cu13",
    "nvjpeg": "nvidia-nvjpeg-cu12 nvidia-nvjpeg",
}
"""Name in `versions` -> its distributions, of which the first that is installed counts."""


def versions() -> dict[str, str]:
    """Return the versions of what is installed and can change a figure; imports none of it."""
    result: dict[str, str | None] = {"python": platform.python_version()}
    for name, distributions in DISTRIBUTIONS.items():
        for distribution in reversed(distributions.split()):
            with contextlib.suppress(metadata.PackageNotFoundError):
                result[name] = metadata.version(distribution)
    result["torch"] = torch.__version__
    result["cuda"] = torch.version.cuda
    if torch.backends.cudnn.is_available():
        result["cudnn"] = str(torch.backends.cudnn.version())
    with contextlib.suppress(Exception):  # no package, no library, no driver
        import pynvml

        pynvml.nvmlInit()
        result["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    return {name: version for name, version in result.items() if version}


ROOMS = "dataset engine loaders models plan report run settings system tasks why"
"""The folders of saturate/ that have code."""
PACKAGE = Path(__file__).resolve().parents[1]


def sources(package: Path = PACKAGE) -> str:
    """Return a digest of the modules of saturate/, to tell whether two machines run the same program.

    Raises FileNotFoundError for a room without modules: with nothing to compare, any two hosts would agree.
    """
    modules = sorted(package.glob("*.py"))
    for room in ROOMS.split():
        # of a checkout loaders/ and models/ are links, which are followed only where a path begins
        of_room = sorted((package / room).rglob("*.py"))
        if not of_room:
            raise FileNotFoundError(f"{package / room} has no modules")
        modules += of_room
    digest = hashlib.sha256()
    for path in modules:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def hardware(device: torch.device, cores: float) -> dict[str, Any]:
    """Describe the machine as this process may use it; gpu and gpu_gib are None without one."""
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


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# --- memory -------------------------------------------------------------------


def host_gib(pid: int | None = None) -> float:
    """Return the memory of the process and all its children, GiB. Takes milliseconds.

    It is the PSS, so that shared pages count once; the RSS where the kernel has no PSS.
    """
    total = 0
    for each in neighbours.tree(pid or os.getpid()):
        with contextlib.suppress(psutil.Error):
            memory = psutil.Process(each).memory_full_info()
            total += getattr(memory, "pss", 0) or memory.rss
    return total / GIB


def device_memory(device: torch.device) -> dict[str, float | None]:
    """Return the most that torch has had of a device's memory, and what is used, GiB; None on a CPU."""
    cuda = device.type == "cuda"
    return {
        "allocated_gib": torch.cuda.max_memory_allocated() / GIB if cuda else None,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB if cuda else None,
        "device_gib": device_gib(device),
    }


def device_gib(device: torch.device) -> float | None:
    """Return the memory in use on the device by everything on it, other processes too, GiB."""
    if device.type != "cuda":
        return None
    # the driver's figures: torch's own leave out what decoders and other libraries take
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / GIB


def shm_free_bytes() -> int:
    """Return the free bytes in /dev/shm, which worker processes use; 0 where there is none."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize


# --- load ---------------------------------------------------------------------

LOADS = (
    "cpu_utilisation",
    "cpu_steal",
    "other_cores",
    "gpu_utilisation",
    "power_w",
    "sm_mhz",
    "throttled",
)
"""Readings of a Sampler that say how busy the machine is, and at which clocks."""
SECTIONS = {
    "gpu": {
        "utilisation": "gpu_utilisation",
        "power_w": "power_w",
        "sm_mhz": "sm_mhz",
        "throttled": "throttled",
    },
    "cpu": {
        "utilisation": "cpu_utilisation",
        "steal": "cpu_steal",
        "others": "other_cores",
    },
}
"""Sections of summary.json: a name there -> one of LOADS."""
SLOWED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""nvml.h, nvmlClocksEventReason*: power cap, hardware slowdown, thermal (software, hardware), power brake."""
HOST_EVERY = 4
"""Samples between two readings of the process tree: its memory, and what other programs take."""


class Sampler:
    """Reads GPU and CPU load about once a second in a daemon thread; `read` gives means since the last one.

    `cores`: how many this process may use. Clocks and throttling are of the readings in which the GPU was
    busy. `host`: read the host memory of the process tree, and the cores that others take, which takes tens of
    milliseconds.
    """

    NAMES = (*LOADS, "device_gib", "host_gib")

    def __init__(
        self,
        device: torch.device,
        *,
        cores: float,
        every_s: float = 1.0,
        host: bool = True,
    ) -> None:
        self._cores = cores
        self._every_s = every_s
        self._host = host
        self._gpu = nvml_handle(device)
        self._sums: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._cpu_before = cpu_seconds(cores)
        self._root = neighbours.root()
        self._cpu_time = neighbours.cpu_time(self._root)

    def start(self) -> Sampler:
        """Start the thread."""
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

    def energy_j(self) -> float | None:
        """Return the joules that the GPU has used since its driver was loaded; None where it does not count."""
        with contextlib.suppress(Exception):  # no GPU, an older one, no permission
            import pynvml

            return pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1e3
        return None

    def read(self) -> dict[str, float | None]:
        """Return the means since the last call by NAMES, None where nothing was read.

        gpu_utilisation, cpu_utilisation, cpu_steal (a part of it) and throttled are shares, 0..1.
        """
        with self._lock:
            sums = self._sums
            self._sums = {}
        means: dict[str, float | None] = dict.fromkeys(self.NAMES)
        return means | {name: total / count for name, (total, count) in sums.items()}

    def _run(self) -> None:
        rounds = 0
        # where memory runs out the step says so in one line, which a traceback of this thread would hide
        with contextlib.suppress(MemoryError):
            while not self._end.wait(self._every_s):
                # without a file descriptor to be had nothing is read this time
                with contextlib.suppress(OSError):
                    self._add(self._gpu_load() | self._cpu_load())
                # the kernel walks each process's page tables
                if self._host and rounds % HOST_EVERY == 0:
                    with contextlib.suppress(OSError):
                        self._add({"host_gib": host_gib()} | self._other_cores())
                rounds += 1

    def _add(self, sample: Mapping[str, float]) -> None:
        with self._lock:
            for name, value in sample.items():
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = (total + value, count + 1)

    def _gpu_load(self) -> dict[str, float]:
        load: dict[str, float] = {}
        if self._gpu is None:
            return load
        import pynvml as nvml

        gpu = self._gpu
        # a GPU need not have a reading, nor an older package its name
        refused = contextlib.suppress(nvml.NVMLError, AttributeError)
        with refused:
            load["power_w"] = nvml.nvmlDeviceGetPowerUsage(gpu) / 1000
        with refused:
            load["device_gib"] = nvml.nvmlDeviceGetMemoryInfo(gpu).used / GIB
        with refused:
            busy = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu
            load["gpu_utilisation"] = busy / 100
        # an idle GPU's clock says nothing of what ran
        if load.get("gpu_utilisation") == 0:
            return load
        with refused:
            clock = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
            load["sm_mhz"] = float(clock)
        with refused:
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
            load["throttled"] = float(bool(reasons & SLOWED))
        return load

    def _cpu_load(self) -> dict[str, float]:
        before = self._cpu_before
        self._cpu_before = now = cpu_seconds(self._cores)
        busy, room, stolen, total = (
            after - earlier for after, earlier in zip(now, before, strict=True)
        )
        load = {}
        if room > 0:
            load["cpu_utilisation"] = min(max(busy / room, 0.0), 1.0)
        if total > 0:
            load["cpu_steal"] = min(max(stolen / total, 0.0), 1.0)
        return load

    def _other_cores(self) -> dict[str, float]:
        """Return what others take of the cores that this process may use, on the mean since the last call."""
        # below a container's quota others may be busy on these cores, and take none of what is ours
        if self._cores < len(os.sched_getaffinity(0)):
            return {}
        before = self._cpu_time
        self._cpu_time = now = neighbours.cpu_time(self._root)
        return {"other_cores": neighbours.cores_taken(before, now)}


def cpu_seconds(cores: float) -> tuple[float, float, float, float]:
    """Return clocks of the CPU cores that this process may use, in seconds.

    They are: busy, what was there to be used, wanted while the host ran other virtual machines, all.
    """
    allowed = os.sched_getaffinity(0)
    of_cores = psutil.cpu_times(percpu=True)
    times = [core for index, core in enumerate(of_cores) if index in allowed]
    # the first eight: guest time is within user time
    total = sum(sum(core[:8]) for core in times)
    stolen = sum(core.steal for core in times)
    busy = total - sum(core.idle + core.iowait for core in times)
    room = total
    if cores < len(allowed):
        # a container's own clock, where it has one: /proc/stat is the whole machine's
        with contextlib.suppress(OSError):
            words = (CGROUP / "cpu.stat").read_text().split()
            busy = int(words[words.index("usage_usec") + 1]) / 1e6
            room = time.monotonic() * cores
    return busy, room, stolen, total


def is_throttled(device: torch.device) -> bool:
    """Whether power, heat or a fault holds the GPU's clock down; False where that cannot be read."""
    with contextlib.suppress(Exception):  # no GPU, an older one, no permission
        import pynvml

        gpu = nvml_handle(device)
        return bool(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & SLOWED)
    return False


def nvml_handle(device: torch.device) -> Any:
    """Return NVML's handle of the device, or None."""
    if device.type != "cuda":
        return None
    # NVML counts GPUs in its own order and does not know CUDA_VISIBLE_DEVICES: match by UUID
    return neighbours.gpu_handle(str(torch.cuda.get_device_properties(device).uuid))
