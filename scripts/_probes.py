"""The questions that `scripts.doctor` asks a machine: a function each, and LANES, their table.

A probe takes nothing (those of OF_DATA: the data folder) and returns a Row. It imports what is heavy or may
crash inside itself, since doctor calls it in a child process. Each reads the machine, and leaves the verdict
to a `judge_*` function, which is a table of rules: the first whose condition holds makes the row.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import io
import os
import random
import re
import resource
import shutil
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

from system.resources import cores as usable_cores
from system.resources import memory_bytes

State = Literal["ok", "warn", "bad", "absent"]
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    ok; warn: works, but slower or not for everything; bad: a run fails; absent: not here, not needed.
    """

    what: str = ""  # filled in by doctor, which has the names
    found: str
    state: State
    consequence: str  # and what to change first


Probe = Callable[[], Row]


def judge(found: str, *rules: tuple[object, State, str]) -> Row:
    """Make the row of the first rule (condition, state, consequence) whose condition holds."""
    state, consequence = next((state, text) for holds, state, text in rules if holds)
    return Row(found=found, state=state, consequence=consequence)


def installed() -> dict[str, str]:
    """Return distribution -> version of all that is installed, named as pip writes them; imports none."""
    return {
        str(dist.metadata["Name"]).lower().replace("_", "-"): dist.version
        for dist in metadata.distributions()
        if dist.metadata
    }


def has(module: str) -> bool:
    """Whether a module could be imported; only its parents are."""
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def first_line(error: BaseException) -> str:
    """Format an error as one short line."""
    lines = str(error).strip().splitlines()
    return (
        f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
    )


# --- GPUs, NCCL, torch --------------------------------------------------------------------------------------

# nvml.h, nvmlComputeMode_t
PROHIBITED = 2
EXCLUSIVE = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """NVML's view of all GPUs, also those that CUDA_VISIBLE_DEVICES hides. Empty without a driver."""

    names: tuple[str, ...] = ()
    version: str = ""
    cuda: tuple[int, int] = (0, 0)  # the newest CUDA that it runs
    compute_modes: tuple[int, ...] = ()
    mig: bool = False


def driver() -> Driver:
    """Ask NVML for the driver and its GPUs; never raises."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index)
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        mig = False
        for handle in handles:
            with contextlib.suppress(pynvml.NVMLError):  # most GPUs have no such mode
                mig = mig or bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
        newest = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return Driver(
            names=tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles),
            version=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=(newest // 1000, newest % 1000 // 10),
            compute_modes=tuple(
                pynvml.nvmlDeviceGetComputeMode(handle) for handle in handles
            ),
            mig=mig,
        )
    except (
        Exception
    ):  # no package, no library, no driver, no permission: to us all the same
        return Driver()


def gpu() -> Row:
    import torch

    visible: list[str] = []
    failure = ""
    try:
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            visible.append(
                f"{properties.name}, {properties.total_memory / GIB:.0f} GiB"
            )
            # runs only where this build of torch has a kernel for this GPU
            torch.ones(1, device=f"cuda:{index}").add_(1).item()
        if not visible:
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        failure = first_line(error)
    return judge_gpu(driver(), visible, failure, torch.version.cuda)


def judge_gpu(
    nvml: Driver, visible: Sequence[str], failure: str, torch_cuda: str | None
) -> Row:
    """Judge the GPUs. `visible`: torch's; `failure`: torch's error where it cannot use one, or has none."""
    if not visible and not nvml.names:
        text = "runs train on the CPU. If there should be one: docker run --gpus all, or NVIDIA's driver"
        return Row(found="no GPU, or no driver", state="absent", consequence=text)
    major, minor = nvml.cuda
    driven = (
        f"driver {nvml.version} (CUDA {major}.{minor})"
        if nvml.version
        else "driver unknown to NVML"
    )
    kinds = " + ".join(
        f"{visible.count(kind)} x {kind}" for kind in dict.fromkeys(visible)
    )
    found = (
        f"{kinds or ', '.join(nvml.names) + ', not usable'}; {driven}, torch's CUDA "
    )
    found += f"{torch_cuda or 'none: a CPU build'}{failure and f'; {failure}'}"
    unusable = failure or not visible
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    needs = int((torch_cuda or "0").partition(".")[0])
    ranks = f"one rank each: torchrun --nproc-per-node {len(visible)}"
    some_hidden = len(visible) < len(
        nvml.names
    )  # NVML's modes are then of the hidden ones too
    return judge(
        found,
        (
            not torch_cuda,
            "bad",
            "torch cannot use the GPU: install a torch with CUDA, and its torchvision",
        ),
        (
            not visible and hidden is not None and hides(hidden, len(nvml.names)),
            "warn",
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU: unset it",
        ),
        (
            unusable and 0 < major < needs,
            "bad",
            f"the driver is too old: one for CUDA {needs}, or a torch for CUDA {major}",
        ),
        (
            unusable and PROHIBITED in nvml.compute_modes,
            "bad",
            "compute mode is prohibited: nvidia-smi --compute-mode 0",
        ),
        (
            unusable,
            "bad",
            "torch cannot use the GPU: see what it said; then nvidia-smi",
        ),
        (
            any("MIG" in name for name in visible) or (nvml.mig and not some_hidden),
            "warn",
            "MIG is on: a slice has a part of the SMs, memory and decoders, and NCCL does not join slices; "
            "one rank a slice, alone",
        ),
        (
            {*EXCLUSIVE} & {*nvml.compute_modes} and not some_hidden,
            "warn",
            "compute mode is exclusive: one process a GPU, a second run on it fails; nvidia-smi "
            "--compute-mode 0",
        ),
        (
            some_hidden,
            "ok",
            f"{ranks}; {len(visible)} of {len(nvml.names)} are visible",
        ),
        (True, "ok", ranks),
    )


def hides(visible_devices: str, gpus: int) -> bool:
    """Whether this CUDA_VISIBLE_DEVICES leaves no GPU: CUDA stops at the first that is not there."""
    first = visible_devices.partition(",")[0].strip()
    return not first or (first.lstrip("-").isdigit() and not 0 <= int(first) < gpus)


def nccl() -> Row:
    import torch
    from torch import distributed

    known = distributed.is_available() and distributed.is_nccl_available()
    gpus = torch.cuda.device_count()
    version = ".".join(map(str, torch.cuda.nccl.version())) if known else ""
    return judge_nccl(version, gpus, summed(gpus) if known and gpus else [])


def summed(gpus: int) -> list[float] | str:
    """Sum 1, 2, ... over all GPUs in this process, and return each one's result.

    NCCL's error comes as a str; [] where a GPU is short of memory.
    """
    import torch

    try:
        if min(torch.cuda.mem_get_info(index)[0] for index in range(gpus)) < GIB:
            return []
        each = [
            torch.full((1024,), index + 1.0, device=f"cuda:{index}")
            for index in range(gpus)
        ]
        torch.cuda.nccl.all_reduce(each)
        return [float(one.mean().item()) for one in each]
    except RuntimeError as error:
        return first_line(error)


P2P = (
    "NCCL_P2P_DISABLE=1 works around it; whoever runs the machine can look at ACS and the IOMMU; "
    "NCCL_DEBUG=INFO says more"
)
NOT_TOGETHER = "several GPUs cannot train together"
IF_LOST = {"NCCL": f"{NOT_TOGETHER}: {P2P}"}
"""Probe -> the consequence where it ends its process, or gets no answer in time."""


def judge_nccl(version: str, gpus: int, sums: list[float] | str) -> Row:
    """Judge NCCL. `version`: "" where torch has none; `sums`: of summed(), [] where it was not tried."""
    state: State = "bad" if gpus > 1 else "warn"
    right = gpus * (gpus + 1) / 2
    outcome = (
        f"; {sums}"
        if isinstance(sums, str)
        else f"; a sum that is {right:g} is {sums}"
        if sums
        else ""
    )
    return judge(
        f"{version or 'not in this torch'}{outcome}",
        (not version and gpus > 1, "bad", f"{NOT_TOGETHER}: a torch built with NCCL"),
        (not version, "absent", "needed from two GPUs on"),
        (not gpus, "ok", "not tried without a GPU: it is needed from two on"),
        (
            not sums,
            "warn",
            "not tried: a GPU has less than 1 GiB free; ask again when nothing runs",
        ),
        (isinstance(sums, str), state, f"{NOT_TOGETHER}: NCCL_DEBUG=INFO says more"),
        ({*sums} != {right}, state, f"several GPUs get wrong gradients: {P2P}"),
        (gpus == 1, "ok", "needed from two GPUs on"),
        (
            True,
            "ok",
            "they reach each other; ranks are processes of their own, which in a container need "
            "--shm-size=1g too",
        ),
    )


def torch_and_torchvision() -> Row:
    found = "torch"
    text = "nothing runs: pip install -r requirements.txt"
    try:
        import torch

        found = f"torch {torch.__version__}, torchvision"
        text = "it is missing or was built for another torch: install the two together, from one index"
        import torchvision

        torchvision.ops.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1), 0.5)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return Row(found=f"{found}: {first_line(error)}", state="bad", consequence=text)
    found += f" {torchvision.__version__}, its operators work"
    return Row(found=found, state="ok", consequence="every --arch can be built")


# --- decoders -----------------------------------------------------------------------------------------------

COLOUR = (200, 100, 50)
LUMA = (
    16
    + sum(
        weight * level
        for weight, level in zip((65.481, 128.553, 24.966), COLOUR, strict=True)
    )
    / 255
)
"""COLOUR's brightness as videos have it, ITU-R BT.601."""
TOLERANCE = 4.0
"""Grey levels between a decoded image of one colour and that colour."""
VIDEO = "in a container: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
NO_GPU = Row(
    found="no GPU",
    state="absent",
    consequence="images and videos are decoded by the CPU",
)
NO_DALI = Row(found="no DALI", state="absent", consequence="see the row of DALI")


def dali() -> Row:
    builds = {
        name: version
        for name, version in installed().items()
        if name.startswith("nvidia-dali-cuda")
    }
    nvml = driver()
    return judge_dali(builds, has("nvidia.dali"), len(nvml.names), nvml.cuda[0])


def judge_dali(
    builds: Mapping[str, str], importable: bool, gpus: int, driver_cuda: int
) -> Row:
    """Judge which DALI is installed. `driver_cuda`: its major version, 0 where it is unknown."""
    found = ", ".join(f"{name} {version}" for name, version in sorted(builds.items()))
    needs = max(
        (int(name.removeprefix("nvidia-dali-cuda")[:2] or 0) for name in builds),
        default=0,
    )
    missing = (
        "no dali-* loader: pip install nvidia-dali-cuda120, or --loader torchvision"
    )
    return judge(
        found
        or (
            "bundled with the image, unknown to pip" if importable else "not installed"
        ),
        (
            len(builds) > 1,
            "bad",
            "they own one folder and have overwritten each other: pip uninstall "
            f"{' '.join(sorted(builds))}, then install one",
        ),
        (not importable, "bad" if gpus or found else "absent", missing),
        (
            gpus and 0 < driver_cuda < needs,
            "bad",
            f"the driver runs CUDA {driver_cuda}: pip uninstall it, then install nvidia-dali-cuda120, "
            "which runs on both",
        ),
        (True, "ok", "the dali-* loaders can run; see the next rows"),
    )


def dali_cpu() -> Row:
    if not has("nvidia.dali"):
        return NO_DALI
    return judge_pixels(
        decode(None), "--loader dali-cpu", "--loader torchvision; reinstall DALI"
    )


def dali_gpu() -> Row:
    import torch

    if not torch.cuda.is_available():
        return NO_GPU
    if not has("nvidia.dali"):
        return NO_DALI
    instead = f"--loader dali-cpu or torchvision; {VIDEO}"
    return judge_pixels(decode(0), "--loader dali-gpu", instead)


def judge_pixels(decoded: tuple[float, ...] | str, loader: str, instead: str) -> Row:
    """Judge the mean colour that was decoded of an image that is COLOUR, or the decoder's error."""
    if isinstance(decoded, str):
        right, found = False, decoded
    else:
        right = (
            max(abs(got - sent) for got, sent in zip(decoded, COLOUR, strict=True))
            <= TOLERANCE
        )
        found = f"a JPEG of colour {COLOUR}, decoded and resized, is {decoded}"
    return judge(
        found,
        (right, "ok", f"{loader} works"),
        (True, "bad", f"{loader} fails: {instead}"),
    )


def jpeg(width: int = 64, height: int = 48) -> bytes:
    """Encode a small JPEG of COLOUR."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (width, height), COLOUR).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def decode(device_id: int | None) -> tuple[float, ...] | str:
    """Return the mean colour of `jpeg()` through the operators of the dali-* loaders, or the error as a str.

    `device_id` None: DALI on the CPU.
    """
    try:
        import numpy as np
        from nvidia.dali import fn, pipeline_def

        @pipeline_def(batch_size=1, num_threads=1, device_id=device_id)
        def graph() -> Any:
            encoded = fn.external_source(
                source=lambda: [np.frombuffer(jpeg(), np.uint8)]
            )
            device = "cpu" if device_id is None else "mixed"
            image = fn.decoders.image_slice(
                encoded, start=(0, 0), shape=(48, 64), axes=(0, 1), device=device
            )
            return fn.resize(image, size=(16, 16))

        (images,) = graph().run()
        mean = np.asarray(images.as_cpu().as_tensor()).mean((0, 1, 2))
    except (RuntimeError, OSError, ImportError) as error:
        return first_line(error)
    return tuple(round(float(value), 1) for value in mean)


def nvdec() -> Row:
    if not driver().names:
        return NO_GPU
    loads = True
    try:
        ctypes.CDLL("libnvcuvid.so.1")
    except OSError:
        loads = False
    import torch

    codec = installed().get("pynvvideocodec")
    tried = loads and codec and has("av") and torch.cuda.is_available()
    return judge_nvdec(loads, codec, luma() if tried else None)


def luma() -> float | str | None:
    """Return the mean brightness of a video of COLOUR that NVDEC has decoded, or the error as a str.

    None where PyAV's FFmpeg has no encoder to make the video.
    """
    import torch
    from av import VideoFrame
    from av.codec import CodecContext
    from av.error import FFmpegError

    from contracts import UserError
    from loaders.videos._engines import Decoder, import_codec

    side = 256
    try:
        encoder = CodecContext.create("libx264", "w")
        encoder.width = encoder.height = side
        encoder.pix_fmt = "yuv420p"
        encoder.framerate = Fraction(25)
        picture = VideoFrame(side, side, "rgb24")
        picture.planes[0].update(
            bytes(COLOUR) * (side * picture.planes[0].line_size // 3)
        )
        packets = [
            *encoder.encode(picture.reformat(format="yuv420p")),
            *encoder.encode(None),
        ]
    except (FFmpegError, ValueError):
        return None
    try:
        if torch.cuda.is_available():
            torch.cuda.init()
        decoder = Decoder(import_codec(), 0, "h264", 0, (side, side))
        decoder.begin(side, side)
        fed = [
            decoder.feed(packet.buffer_ptr, packet.buffer_size, index, shown=True)
            for index, packet in enumerate(packets)
        ]
        surfaces = [surface for batch in fed for _, surface in batch]
        surfaces += [surface for _, surface in decoder.finish()]
        return float(surfaces[0][:side].float().mean().item())
    except (
        UserError,
        RuntimeError,
        ValueError,
        IndexError,
    ) as error:  # Undecodable is a ValueError
        return first_line(error)


def judge_nvdec(loads: bool, codec: str | None, luma: float | str | None = None) -> Row:
    """Judge video decoding on the GPU.

    `loads`: whether libnvcuvid does; `codec`: PyNvVideoCodec's version; `luma`: of luma(), None if not tried.
    """
    found = f"libnvcuvid {'loads' if loads else 'does not load'}, PyNvVideoCodec {codec or 'not installed'}, "
    if isinstance(luma, float):
        found += f"made a video of brightness {luma:.0f} of one of {LUMA:.0f}"
    return judge(
        found if isinstance(luma, float) else found + (luma or "not tried"),
        (not loads, "warn", f"videos cannot be decoded on the GPU; {VIDEO}"),
        (
            codec is None,
            "ok",
            "--loader dali-video can run; for nvdec: pip install PyNvVideoCodec",
        ),
        (luma is None, "ok", "--loader nvdec can run, with PyAV"),
        (
            isinstance(luma, str),
            "warn",
            "no videos on the GPU: --loader pyav; see what it said",
        ),
        (
            isinstance(luma, float) and abs(luma - LUMA) > TOLERANCE,
            "bad",
            "--loader nvdec has wrong pixels: --loader pyav; reinstall PyNvVideoCodec",
        ),
        (True, "ok", "--loader nvdec and nvdec+pyav work"),
    )


def reader() -> Row:
    from loaders.images.decoders import choose

    builds = [
        " ".join(item)
        for item in installed().items()
        if item[0].startswith("nvidia-nvimgcodec-cu")
    ]
    return judge_reader(choose("auto"), ", ".join(sorted(builds)))


def judge_reader(chosen: str, codec: str) -> Row:
    """Judge the decoder of JPEGs on the CPU: what `--reader auto` takes; `codec`: nvImageCodec's builds."""
    fastest = chosen == "nvimgcodec"
    why = (
        f"{codec} fails or has other pixels than PIL"
        if codec
        else "nvImageCodec is not installed"
    )
    return judge(
        f"--reader auto takes {chosen}; "
        + ("it decodes regions, with PIL's pixels on a probe" if fastest else why),
        (fastest, "ok", "the fastest that --loader torchvision has"),
        (
            True,
            "warn",
            "the torchvision loader is up to 1.8 times slower: pip install --upgrade nvidia-nvimgcodec-cu12",
        ),
    )


PACKAGES: dict[str, tuple[str, str, str]] = {
    "decord": (
        "refuses AV1; wrong frames after edit lists, in MPEG-TS and open GOPs: re-encode such files, or PyAV",
        "needed for videos only; it has no build for ARM",
        "no videos through decord: pip install --force-reinstall decord",
    ),
    "av": (
        "the reference for videos: what other decoders are not exact for goes to it",
        "needed for videos only: pip install av",
        "pip install --force-reinstall av",
    ),
    "torchcodec": (
        "--loader torchcodec works, as pyav does for the same files",
        "not needed",
        "it needs the system's FFmpeg (apt install ffmpeg) and its own torch",
    ),
}
"""Module -> the consequence where it works, where it is not installed, and where it cannot be imported."""


def package(module: str) -> Row:
    """Import a package that only some loaders need."""
    works, absent, broken = PACKAGES[module]
    if not has(module):
        return Row(found="not installed", state="absent", consequence=absent)
    try:
        return Row(
            found=str(importlib.import_module(module).__version__),
            state="ok",
            consequence=works,
        )
    except (
        Exception
    ) as error:  # OSError for a library, torchcodec's RuntimeError without FFmpeg, ...
        return Row(found=first_line(error), state="warn", consequence=broken)


# --- what the system and the container grant ----------------------------------------------------------------

CORES_FOR_CPU_LOADERS = 12
"""Cores for each GPU that loaders on the CPU need, a rule of thumb from docs/benchmarks/train.md: 16 cores
feed a ResNet-50 on one H200."""
CORES_FOR_DALI_GPU = 4
"""Cores for each GPU that dali-gpu needs, by the same rule of thumb."""
LOW_RAM_GIB = 8.0
"""Memory of a rank below which there is a warning: the page cache wants what workers leave."""
LOW_SHM_MIB = 256
"""Docker's default is 64 MB: enough for us, not for NCCL on several GPUs or anyone else's DataLoader."""
LOW_FILES = 256
"""Open files of a process below which a run fails: a worker has a handful of pipes and sockets."""
FEW_FILES = 1024
"""Open files of a process below which there is a warning: decoders open their own beside those."""


def cores() -> Row:
    import torch

    return judge_cores(usable_cores(), os.cpu_count() or 0, torch.cuda.device_count())


def judge_cores(usable: float, of_machine: int, gpus: int) -> Row:
    """Judge the CPU cores. `usable`: affinity or the container's quota."""
    each = usable / max(gpus, 1)
    return judge(
        f"{usable:.3g} usable of the machine's {of_machine}"
        + (f", {each:.3g} a GPU" if gpus else ""),
        (not gpus and usable >= 2, "ok", "one worker a core, less one, is the default"),
        (
            not gpus,
            "warn",
            "one core for the step and its workers: a larger quota or affinity",
        ),
        (each >= CORES_FOR_CPU_LOADERS, "ok", "enough for any loader"),
        (
            each >= CORES_FOR_DALI_GPU,
            "ok",
            f"--loader dali-gpu is content; the CPU loaders want {CORES_FOR_CPU_LOADERS} or more a GPU",
        ),
        (
            True,
            "warn",
            f"few, even for dali-gpu (about {CORES_FOR_DALI_GPU} a GPU): a larger quota, or an affinity of "
            "more cores",
        ),
    )


def memory() -> Row:
    import psutil
    import torch

    return judge_memory(
        memory_bytes() / GIB,
        psutil.virtual_memory().total / GIB,
        torch.cuda.device_count(),
    )


def judge_memory(ram_gib: float, of_machine_gib: float, gpus: int) -> Row:
    """Judge the main memory. `ram_gib`: the machine's, or the container's limit."""
    limit = f", the container's limit (the machine has {of_machine_gib:.1f})"
    return judge(
        f"{ram_gib:.1f} GiB" + limit * (ram_gib < of_machine_gib - 0.1),
        (
            ram_gib / max(gpus, 1) < LOW_RAM_GIB,
            "warn",
            f"less than {LOW_RAM_GIB:.0f} GiB a rank: fewer --workers, a smaller --batch-size, or a higher "
            "limit (docker run --memory)",
        ),
        (
            True,
            "ok",
            "enough for workers; what is left is page cache, which holds files for the second epoch",
        ),
    )


def shm() -> Row:
    import torch

    from loaders._workers import QUEUES_BYTES
    from report.hardware import shm_free_bytes

    return judge_shm(
        shm_free_bytes() / MIB, QUEUES_BYTES / MIB, torch.cuda.device_count()
    )


def judge_shm(free_mib: float, needed_mib: float, gpus: int) -> Row:
    """Judge /dev/shm. `needed_mib`: what one rank with worker processes needs of it."""
    return judge(
        f"{free_mib:,.0f} MiB free",
        (
            free_mib < needed_mib * max(gpus, 1),
            "bad",
            f"worker processes need {needed_mib:.0f} MiB a rank: docker run --shm-size=1g, or --workers 0",
        ),
        (
            free_mib < LOW_SHM_MIB,
            "warn",
            "enough for saturate, whose batches do not travel through it; little for NCCL: docker run "
            "--shm-size=1g",
        ),
        (
            True,
            "ok",
            "enough also for NCCL and other DataLoaders: decoded batches do not travel through it",
        ),
    )


def open_files() -> Row:
    return judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def judge_open_files(soft: int, hard: int) -> Row:
    unlimited = resource.RLIM_INFINITY
    limits = ("unlimited" if limit == unlimited else limit for limit in (soft, hard))
    change = "docker run --ulimit nofile=65536" + f", or ulimit -n {hard}" * (
        soft < hard != unlimited
    )
    return judge(
        "soft {}, hard {}".format(*limits),
        (
            soft != unlimited and soft < LOW_FILES,
            "bad",
            f"'Too many open files' ends workers: {change}",
        ),
        (
            soft != unlimited and soft < FEW_FILES,
            "warn",
            f"few for many --workers: {change}",
        ),
        (True, "ok", "enough for any --workers"),
    )


def locked_memory() -> Row:
    import torch

    infiniband = any(Path("/sys/class/infiniband").glob("*"))
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return judge_locked_memory(soft, torch.cuda.device_count(), infiniband)


def judge_locked_memory(soft: int, gpus: int, infiniband: bool) -> Row:
    """Judge the limit of locked memory: CUDA's own does not count, what InfiniBand registers does."""
    unlimited = soft == resource.RLIM_INFINITY
    return judge(
        "unlimited" if unlimited else f"{soft / MIB:,.3g} MiB",
        (
            gpus and infiniband and not unlimited,
            "warn",
            "NCCL over InfiniBand registers more: docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity",
        ),
        (True, "ok", "matters for NCCL over InfiniBand alone"),
    )


def _on(value: str) -> bool:
    return value.lower() not in ("", "0", "false")


def _in_pieces(value: str) -> bool:
    from engine.distributed import SEGMENTS_GROW

    return SEGMENTS_GROW not in value


PIECES = "without expandable_segments:True a step that is a graph needs more of the GPU's memory"
FIGHTS: dict[str, tuple[Callable[[str], bool], str]] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        lambda value: value.isdigit() and int(value) < 32,
        "decoder and training share hardware queues, a fifth of ResNet-18's rate on an H200",
    ),
    "CUDA_LAUNCH_BLOCKING": (_on, "every launch waits for the GPU"),
    "GOMP_CPU_AFFINITY": (_on, "binds the process, and so all workers, to few cores"),
    "NCCL_GRAPH_REGISTER": (
        _on,
        "NCCL up to 2.30.7 may read wrong addresses in a graph's all-reduce",
    ),
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
SHOWN = (*FIGHTS, "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def environment() -> Row:
    return judge_environment(os.environ)


def judge_environment(variables: Mapping[str, str]) -> Row:
    """Judge the environment variables.

    OMP_NUM_THREADS never fights: a run sets its own number of threads, and torchrun's 1 is meant for others.
    """
    shown = ", ".join(
        f"{name}={variables[name]}" for name in SHOWN if name in variables
    )
    fights = [
        name
        for name, (fight, _) in FIGHTS.items()
        if name in variables and fight(variables[name])
    ]
    effects = "; ".join(f"{name}: {FIGHTS[name][1]}" for name in fights)
    return judge(
        shown or "none of ours is set",
        (fights, "warn", f"unset {' '.join(fights)}. {effects}"),
        (True, "ok", "nothing works against what a run sets for itself"),
    )


# --- what the data lies on ----------------------------------------------------------------------------------

NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|fuse\..+|lustre|ceph|glusterfs|beegfs|gpfs|wekafs|afs|ocfs2|gfs2|9p|virtiofs|pvfs2"
    r"|orangefs"
)
"""File systems whose reads leave this machine, or may: FUSE stands for sshfs, s3fs, gcsfuse and others."""
FILES = 200
FOLDERS = 40
MOST_BYTES = 8 << 20
"""Bytes read of one file at most: a video is not read to its end."""
LIMIT_S = 3.0
"""Seconds for each of the two passes, and for looking for files."""
SLOW_MS = 3.0
"""A read from the disk, one reader. A local NVMe disk needs some tenths of it."""
FAST_MIB_S = 500
"""A disk that reads at this rate or faster is not slow: a slow read is then of a large file."""
REMOTE_BYTES = 128 << 10
"""Bytes of a read over the network: an image of ImageNet's."""
REMOTE_READS = 4
"""Reads over the network, of which the first connects."""
LOW_ROOM_MIB = 1024
"""ImageNet's manifest is some 100 MB."""


def file_system(data: Path) -> Row:
    """Name the file system of the files, where symbolic links lead: a network's if any lies on one."""
    import psutil

    mounts = [
        (part.mountpoint, part.fstype, part.device)
        for part in psutil.disk_partitions(all=True)
    ]
    folders = {
        os.path.dirname(os.path.realpath(path)): None for path in some_files(data)
    }
    rows = [judge_mount(folder, mounts) for folder in folders or [str(data.resolve())]]
    return max(rows, key=lambda row: row.state == "warn")


def judge_mount(folder: str, mounts: Sequence[tuple[str, str, str]]) -> Row:
    """Judge the file system that holds `folder` (absolute, without links); `mounts`: point, type, device."""
    holding = [mount for mount in mounts if Path(folder).is_relative_to(mount[0])]
    # the longest holds it; of two at one point the later hides the earlier
    point, kind, device = max(
        reversed(holding), key=lambda mount: len(mount[0]), default=("", "", "")
    )
    return judge(
        f"{kind} ({device} at {point})"
        if kind
        else "in no mount that the system names",
        (not kind, "warn", "its speed is in the next row"),
        (
            NETWORK.fullmatch(kind),
            "warn",
            "a network file system: reads have latency, --loader dali-fed hides it with many --workers; a "
            "copy on a local disk is faster",
        ),
        (
            kind in ("tmpfs", "ramfs"),
            "ok",
            "it is memory, and counts towards this machine's or container's",
        ),
        (True, "ok", "on this machine; how fast is in the next row"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One reading of files, one after the other, by one reader."""

    files: int
    bytes: int
    seconds: float
    # files whose start was in the page cache already; None when the file system does not say
    cached: int | None = None

    def __str__(self) -> str:
        return f"{self.files / self.seconds:,.0f} files/s, {self.bytes / MIB / self.seconds:,.0f} MiB/s"


@cache
def some_files(data: Path) -> list[str]:
    """List at most FILES regular files below `data`, spread evenly over FOLDERS folders or more.

    Links to one file count once: read twice, it comes from the page cache. Cached, since two rows ask.
    """
    by_inode: dict[tuple[int, int], str] = {}
    visited: set[tuple[int, int]] = set()
    draw = random.Random(0)  # links to one file follow each other in their folder
    end = time.monotonic() + LIMIT_S
    filled_folders = 0
    for folder, inside, names in os.walk(data, followlinks=True):
        here = os.stat(folder)
        if (here.st_dev, here.st_ino) in visited:  # links may form a circle
            inside.clear()
            continue
        visited.add((here.st_dev, here.st_ino))
        for name in draw.sample(names, min(FILES, len(names))):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # a broken link
                status = os.stat(path)
                if not name.startswith(".") and stat.S_ISREG(status.st_mode):
                    by_inode.setdefault((status.st_dev, status.st_ino), path)
        filled_folders += bool(names)
        if (
            filled_folders >= FOLDERS and len(by_inode) >= FILES
        ) or time.monotonic() > end:
            break
    paths = list(by_inode.values())
    return (
        [paths[i * len(paths) // FILES] for i in range(FILES)]
        if len(paths) > FILES
        else paths
    )


def forget(paths: Sequence[str]) -> None:
    """Ask the kernel to drop the files from the page cache; it keeps what is dirty or mapped by others."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_cache(file: int) -> bool | None:
    """Whether the start of an open file is in the page cache; None where the file system does not say."""
    try:
        return bool(os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT))
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return None


def read(paths: Sequence[str], limit_s: float = LIMIT_S) -> Pass:
    """Read the files in order until the time is up, and at least one."""
    read_bytes = 0
    cached: list[bool | None] = []
    buffer = bytearray(MIB)
    began = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            cached.append(in_cache(file.fileno()))
            file_bytes = 0
            while file_bytes < MOST_BYTES and (count := file.readinto(buffer)):
                file_bytes += count
        read_bytes += file_bytes
        if time.perf_counter() - began > limit_s:
            break
    seconds = max(time.perf_counter() - began, 1e-9)
    known = None if None in cached else sum(map(bool, cached))
    return Pass(files=len(cached), bytes=read_bytes, seconds=seconds, cached=known)


def reading(data: Path) -> Row:
    from dataset.stores import choose_source, source_named

    for split in ("train", "train2017"):
        source = choose_source("auto", data, split)
        if not source_named(source).FILES:
            text = "this row times samples that are files: watch the first epoch's rate"
            return Row(
                found=f"{split} is read as {source}: not timed",
                state="ok",
                consequence=text,
            )
    paths = some_files(data)
    if not paths:
        text = "a run finds nothing to train on: --data FOLDER, one with train/<class>/* and val/<class>/*"
        return Row(found="no file found", state="bad", consequence=text)
    try:
        forget(paths)
        cold = read(paths)
        # the same files again, which are in the page cache now: what remains is not the disk
        return judge_reading(cold, read(paths[: cold.files]))
    except OSError as error:
        return judge(
            first_line(error),
            (error.errno == errno.EMFILE, "bad", "too many files are open"),
            (
                True,
                "bad",
                "a run fails on such a file: see its permissions, or the disk",
            ),
        )


def judge_reading(cold: Pass, warm: Pass) -> Row:
    """Judge the speed of reading. `cold`: right after the kernel was asked to drop the files' pages."""
    found = f"{cold.files} files of {cold.bytes / cold.files / 1024:,.0f} KiB, one reader; page cache: {warm}"
    unknown = cold.cached is None or cold.cached > cold.files / 2
    why = (
        "the file system does not say what is cached"
        if cold.cached is None
        else "files stay in the cache"
    )
    read_ms = 1000 * cold.seconds / cold.files
    return judge(
        f"{found}; disk: "
        + (
            f"cannot be told apart from the cache, {why} ({cold})"
            if unknown
            else f"{cold}"
        ),
        (unknown, "ok", "the disk's speed is unknown: watch the first epoch's rate"),
        (
            read_ms > SLOW_MS and cold.bytes / cold.seconds < FAST_MIB_S * MIB,
            "warn",
            f"{read_ms:.1f} ms a file: --loader dali-fed with many --workers, each waits for one; or data "
            "that fits the page cache",
        ),
        (True, "ok", "n workers read n files at once"),
    )


def behind_url(url: str) -> Row:
    """Time reads over the network, of a shard or of the list, one at a time."""
    from contracts import UserError
    from dataset.open import cache_folder
    from dataset.stores import remote
    from dataset.stores.bucket import first_object

    try:
        shard = first_object(url, cache_folder(None))
        length = min(remote.head(shard).size, REMOTE_BYTES)
        times = []
        for _ in range(REMOTE_READS):
            began = time.perf_counter()
            remote.read(shard, 0, length)
            times.append(time.perf_counter() - began)
    except (UserError, OSError) as error:
        return Row(
            found=str(error),
            state="bad",
            consequence="a run ends with that line: mend it first",
        )
    return Row(
        found=f"a read of {length / 1024:,.0f} KiB takes {1000 * min(times):.0f} ms, one reader",
        state="ok",
        consequence=f"{1 / min(times):,.0f} images/s for each read under way: --read-threads and --workers "
        "raise it, --cache-dir keeps what was read on a disk",
    )


def manifest_cache() -> Row:
    from dataset.open import cache_folder

    folder = cache_folder(None)
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_mib = shutil.disk_usage(there).free / MIB
    return judge_cache(folder, free_mib, os.access(there, os.W_OK | os.X_OK))


def judge_cache(folder: Path, free_mib: float, writable: bool) -> Row:
    return judge(
        f"{folder}, {free_mib:,.0f} MiB free{'' if writable else ', not writable'}",
        (
            not writable,
            "bad",
            "no manifest can be kept: XDG_CACHE_HOME or --manifest-dir",
        ),
        (
            free_mib < LOW_ROOM_MIB,
            "warn",
            "little room for manifests (about 100 MB for ImageNet): XDG_CACHE_HOME or --manifest-dir",
        ),
        (True, "ok", "data is scanned once; later runs open it in milliseconds"),
    )


# --- the table ----------------------------------------------------------------------------------------------


def loaders() -> Row:
    """Say which loaders of the table find their packages and a GPU here."""
    from loaders import LOADERS

    gpu = bool(driver().names)
    lacking = {
        name: [package for package in spec.packages if not has(package)]
        + ["a GPU"] * (spec.gpu == "must" and not gpu)
        for name, spec in LOADERS.items()
    }
    absent = [
        f"{name} (lacks {' and '.join(what)})" for name, what in lacking.items() if what
    ]
    return Row(
        found=", ".join(name for name, what in lacking.items() if not what),
        state="ok",
        consequence=f"not here: {', '.join(absent)}" if absent else "all can be tried",
    )


LANES: tuple[dict[str, Probe], ...] = (
    {
        "GPU": gpu,
        "NCCL": nccl,
        "DALI": dali,
        "DALI decodes, CPU": dali_cpu,
        "DALI decodes, GPU": dali_gpu,
        "CPU reader": reader,
        "NVDEC": nvdec,  # with PyAV's FFmpeg, behind all that is not to meet it
    },
    {
        "torch, torchvision": torch_and_torchvision,
        "variables": environment,  # before engine/distributed.py is imported and sets its own
        "CPU cores": cores,
        "memory": memory,
        "/dev/shm": shm,
        "open files": open_files,
        "locked memory": locked_memory,
        "loaders": loaders,
    },
    {"decord": partial(package, "decord")},
    {"PyAV": partial(package, "av")},
    {"torchcodec": partial(package, "torchcodec")},
)
"""Name -> probe, in the order of the table. Lanes are asked side by side, each in a process of its own:
decord, PyAV and torchcodec bring an FFmpeg each, and NVDEC's takes PyAV's. All that uses a GPU is in the
first: one in exclusive mode takes one process."""
OF_DATA: dict[str, Callable[[Path], Row]] = {
    "--data: file system": file_system,
    "--data: reading": reading,
}
CACHE: dict[str, Probe] = {"manifest cache": manifest_cache}
"""Asked with --data, after everything else: a speed is not taken beside other work."""
