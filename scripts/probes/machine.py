"""Probes of what the operating system and the container grant this process: cores, memory, limits, and
variables that work against ours."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.probes import Row

GIB = 1 << 30
MIB = 1 << 20
CORES_FOR_CPU_LOADERS = 12
"""Cores for each GPU that loaders on the CPU need, a rule of thumb from docs/benchmarks/image.md: 16 cores
feed a ResNet-50 on one H200."""
CORES_FOR_DALI_GPU = 4
"""Cores for each GPU that dali-gpu needs, by the same rule of thumb."""
LOW_RAM_GIB = 8.0
"""Memory of a rank below which there is a warning: workers share what they can, and the page cache wants the
rest."""
LOW_SHM_MIB = 256
"""Docker's default is 64 MB: enough for us, not for NCCL on several GPUs or anyone else's DataLoader."""
LOW_FILES = 256
"""Open files of a process below which a run fails: a worker has a handful of pipes and sockets."""
FEW_FILES = 1024
"""Open files of a process below which there is a warning: decoders open their own beside those."""


def cores() -> Row:
    import torch

    from engine import distributed

    return judge_cores(distributed.cores(), os.cpu_count() or 0, torch.cuda.device_count())


def judge_cores(usable: float, of_machine: int, gpus: int) -> Row:
    """Judge the CPU cores. `usable`: affinity or the container's quota."""
    found = f"{usable:.3g} usable" + (f" of the machine's {of_machine}" if of_machine > usable else "")
    if not gpus:
        said = (
            "one worker a core, less one, is the default"
            if usable >= 2
            else "one core for the step and its workers: a larger quota or affinity"
        )
        return Row(found=found, state="ok" if usable >= 2 else "warn", consequence=said)
    each = usable / gpus
    found += f", {each:.3g} a GPU"
    if each >= CORES_FOR_CPU_LOADERS:
        return Row(found=found, state="ok", consequence="enough for any loader")
    if each >= CORES_FOR_DALI_GPU:
        said = f"--loader dali-gpu is content; the CPU loaders want {CORES_FOR_CPU_LOADERS} or more a GPU"
        return Row(found=found, state="ok", consequence=said)
    said = (
        f"few, even for dali-gpu (about {CORES_FOR_DALI_GPU} a GPU): a larger quota, or an affinity of "
        "more cores"
    )
    return Row(found=found, state="warn", consequence=said)


def memory() -> Row:
    import psutil
    import torch

    from report.hardware import hardware

    ram_gib = float(hardware(torch.device("cpu"), 0)["ram_gib"])
    return judge_memory(ram_gib, psutil.virtual_memory().total / GIB, torch.cuda.device_count())


def judge_memory(ram_gib: float, of_machine_gib: float, gpus: int) -> Row:
    """Judge the main memory. `ram_gib`: the machine's, or the container's limit."""
    limited = ram_gib < of_machine_gib - 0.1
    found = f"{ram_gib:.1f} GiB" + (
        f", the container's limit (the machine has {of_machine_gib:.1f})" if limited else ""
    )
    if ram_gib / max(gpus, 1) < LOW_RAM_GIB:
        said = (
            f"less than {LOW_RAM_GIB:.0f} GiB a rank: fewer --workers, a smaller --batch-size, or a "
            "higher limit (docker run --memory)"
        )
        return Row(found=found, state="warn", consequence=said)
    return Row(
        found=found,
        state="ok",
        consequence="enough for workers; what is left is page cache, which holds files for the second epoch",
    )


def shm() -> Row:
    import torch

    from loaders._workers import QUEUES_BYTES
    from report.hardware import shm_free_bytes

    return judge_shm(shm_free_bytes() / MIB, QUEUES_BYTES / MIB, torch.cuda.device_count())


def judge_shm(free_mib: float, needed_mib: float, gpus: int) -> Row:
    """Judge /dev/shm. `needed_mib`: what is needed of it by one rank with worker processes."""
    found = f"{free_mib:,.0f} MiB free"
    if free_mib < needed_mib * max(gpus, 1):
        said = f"worker processes need {needed_mib:.0f} MiB a rank: docker run --shm-size=1g, or --workers 0"
        return Row(found=found, state="bad", consequence=said)
    if free_mib < LOW_SHM_MIB:
        said = (
            "enough for saturate, whose batches do not travel through it; little for NCCL: docker run "
            "--shm-size=1g"
        )
        return Row(found=found, state="warn", consequence=said)
    return Row(
        found=found,
        state="ok",
        consequence="enough also for NCCL and other DataLoaders: decoded batches do not travel through it",
    )


def open_files() -> Row:
    return judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def judge_open_files(soft: int, hard: int) -> Row:
    unlimited = resource.RLIM_INFINITY
    found = ", ".join(
        f"{name} {'unlimited' if limit == unlimited else limit}"
        for name, limit in (("soft", soft), ("hard", hard))
    )
    change = "docker run --ulimit nofile=65536" + (
        f", or ulimit -n {hard}" if soft < hard != unlimited else ""
    )
    if soft != unlimited and soft < LOW_FILES:
        return Row(found=found, state="bad", consequence=f"workers fail with 'Too many open files': {change}")
    if soft != unlimited and soft < FEW_FILES:
        return Row(found=found, state="warn", consequence=f"few for many --workers: {change}")
    return Row(found=found, state="ok", consequence="enough for any --workers")


def locked_memory() -> Row:
    import torch

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return judge_locked_memory(
        soft, torch.cuda.device_count(), infiniband=any(Path("/sys/class/infiniband").glob("*"))
    )


def judge_locked_memory(soft: int, gpus: int, *, infiniband: bool) -> Row:
    """Judge the limit of locked memory: CUDA's own does not count, what InfiniBand registers does."""
    found = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / MIB:,.3g} MiB"
    if soft != resource.RLIM_INFINITY and gpus > 0 and infiniband:
        said = "NCCL over InfiniBand registers more: docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity"
        return Row(found=found, state="warn", consequence=said)
    return Row(found=found, state="ok", consequence="matters for NCCL over InfiniBand alone")


def _below_32(value: str) -> bool:
    return value.isdigit() and int(value) < 32


def _on(value: str) -> bool:
    return value.lower() not in ("", "0", "false")


def _in_pieces(value: str) -> bool:
    from engine.distributed import SEGMENTS_GROW

    return SEGMENTS_GROW not in value


PIECES = "without expandable_segments:True a step that is a graph needs more of the GPU's memory"


FIGHTS: dict[str, tuple[Callable[[str], bool], str]] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        _below_32,
        "decoder and training share hardware queues, a fifth of ResNet-18's rate on an H200",
    ),
    "CUDA_LAUNCH_BLOCKING": (_on, "every launch waits for the GPU"),
    "GOMP_CPU_AFFINITY": (_on, "binds the process, and so all workers, to few cores"),
    "NCCL_GRAPH_REGISTER": (_on, "NCCL up to 2.30.7 may read wrong addresses in a graph's all-reduce"),
    "OMP_PROC_BIND": (_on, "binds the process, and so all workers, to one core"),
    "OMP_THREAD_LIMIT": (_on, "caps torch's threads"),
    "OMP_WAIT_POLICY": (
        lambda value: value.lower() == "passive",
        "threads that sleep at once cost a CPU 6 to 25 % of its rate",
    ),
    "PYTORCH_ALLOC_CONF": (_in_pieces, PIECES),
    "PYTORCH_CUDA_ALLOC_CONF": (_in_pieces, PIECES),
}
"""Variable -> (whether this value works against ours, what it does). engine/distributed.py sets its own only
where there is none."""
TOLD = (*FIGHTS, "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def environment() -> Row:
    return judge_environment(os.environ)


def judge_environment(variables: Mapping[str, str]) -> Row:
    """Judge the environment variables. OMP_NUM_THREADS never fights: the process sets its own number of
    threads, and torchrun's 1 is meant for others."""
    found = (
        ", ".join(f"{name}={variables[name]}" for name in TOLD if name in variables) or "none of ours is set"
    )
    fights = [
        f"{name}: {what}"
        for name, (wrong, what) in FIGHTS.items()
        if name in variables and wrong(variables[name])
    ]
    if fights:
        names = " ".join(line.partition(":")[0] for line in fights)
        return Row(found=found, state="warn", consequence=f"unset {names}. {'; '.join(fights)}")
    return Row(found=found, state="ok", consequence="nothing works against what a run sets for itself")
