"""What `scripts.doctor` looks at: PROBES, a table with a function for each row.

`python -m saturate.run._probes NAME` prints the row of this name as JSON. doctor calls it as a child process, since
a probe imports what may crash or hang.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata, util
from typing import Any, Literal

from saturate.system import bytecode

State = Literal["ok", "warn", "bad", "absent"]
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """One line of doctor's table.

    ok; warn: works, but slower or not for everything; bad: a run fails; absent: not here, not needed.
    """

    state: State
    found: str
    # what it means for a run, and what to change first
    consequence: str


def has(module: str) -> bool:
    """Whether a module could be imported; only its parents are."""
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def builds(prefix: str) -> list[str]:
    """Return name and version of each installed distribution whose name begins with `prefix`."""
    installed = [one.metadata for one in metadata.distributions() if one.metadata]
    names = [f"{one['Name']} {one['Version']}".lower() for one in installed]
    return sorted(name for name in names if name.startswith(prefix))


def driver() -> tuple[int, str]:
    """Return how many GPUs NVIDIA's driver has, and its version; (0, "") without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount(), str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no package, no library, no driver, no permission
        return 0, ""


# --- torch and GPUs -----------------------------------------------------------


def torch_and_torchvision() -> Row:
    """Call one of torchvision's operators, which fails where it was built for another torch."""
    import torch
    import torchvision

    torchvision.ops.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1), 0.5)
    python = sys.version.partition(" ")[0]
    versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    if anew := bytecode.compiled_anew(torch):
        return Row("warn", f"Python {python}, {versions}", anew)
    return Row("ok", f"Python {python}, {versions}", "every --arch can be built")


def gpu() -> Row:
    """Run a small kernel on each GPU."""
    import torch

    gpus, version = driver()
    if not gpus and not torch.cuda.is_available():
        text = "runs train on the CPU; else docker run --gpus all, or NVIDIA's driver"
        return Row("absent", "no GPU, or no driver", text)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and not torch.cuda.device_count():
        text = "hides every GPU: unset it"
        return Row("warn", f"CUDA_VISIBLE_DEVICES={hidden!r}", text)
    torch.cuda.init()
    names = []
    # sm_75, sm_90a, ...: the compute capability without its dot
    built = [int(re.sub(r"\D", "", kind)) for kind in torch.cuda.get_arch_list()]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        if built and 10 * properties.major + properties.minor < min(built):
            found = f"{properties.name}, of compute capability {properties.major}.{properties.minor}"
            text = f"torch {torch.__version__} needs {min(built) / 10}: docs/install.md, Older GPUs"
            return Row("bad", found, text)
        names.append(f"{properties.name}, {properties.total_memory / GIB:.0f} GiB")
        # runs only where this build of torch has a kernel for this GPU
        torch.ones(1, device=f"cuda:{index}").add_(1).item()
    kinds = " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    found = f"{kinds}; driver {version}, torch's CUDA {torch.version.cuda}"
    if any("MIG" in name for name in names):
        text = "MIG is on: a slice has a part of the SMs and decoders; one rank, alone"
        return Row("warn", found, text)
    text = f"one rank each: torchrun --nproc-per-node {len(names)}"
    return Row("ok", found, text)


def nccl() -> Row:
    """Sum 1, 2, ... over all GPUs in this process."""
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return Row("absent", "no GPU", "needed from two GPUs on")
    version = ".".join(map(str, torch.cuda.nccl.version()))
    if min(torch.cuda.mem_get_info(index)[0] for index in range(gpus)) < GIB:
        text = "not tried: a GPU has less than 1 GiB free; ask again when nothing runs"
        return Row("warn", version, text)
    each = [
        torch.full((1024,), index + 1.0, device=f"cuda:{index}")
        for index in range(gpus)
    ]
    torch.cuda.nccl.all_reduce(each)
    sums = [float(one.mean().item()) for one in each]
    right = gpus * (gpus + 1) / 2
    if {*sums} != {right}:
        raise RuntimeError(f"NCCL {version}: a sum that is {right:g} is {sums}")
    text = "GPUs reach each other; in a container ranks need --shm-size=1g too"
    return Row("ok", version, text)


# --- decoders -----------------------------------------------------------------

COLOUR = (200, 100, 50)
TOLERANCE = 4.0
"""Grey levels between a decoded image of one colour and that colour."""


def dali(device: Literal["cpu", "gpu"]) -> Row:
    """Decode and resize a JPEG through the operators of the dali-* loaders."""
    found = ", ".join(builds("nvidia-dali-cuda"))
    if not has("nvidia.dali"):
        text = "no dali-* loader: pip install nvidia-dali-cuda120"
        return Row("absent", "not installed", text)
    if "," in found:
        raise RuntimeError(f"{found} own one folder and overwrite each other")
    if device == "gpu" and not driver()[0]:
        return Row("absent", "no GPU", "images are decoded by the CPU")
    import numpy as np
    from nvidia.dali import fn, pipeline_def

    encoded = np.frombuffer(jpeg(), np.uint8)

    @pipeline_def(batch_size=1, num_threads=1, device_id=0 if device == "gpu" else None)
    def graph() -> Any:
        images = fn.decoders.image_slice(
            fn.external_source(source=lambda: [encoded]),
            start=(0, 0),
            shape=(48, 64),
            axes=(0, 1),
            device="mixed" if device == "gpu" else "cpu",
        )
        return fn.resize(images, size=(16, 16))

    (images,) = graph().run()
    mean = np.asarray(images.as_cpu().as_tensor()).mean((0, 1, 2))
    if np.abs(mean - COLOUR).max() > TOLERANCE:
        raise RuntimeError(f"a JPEG of colour {COLOUR} is {mean.round(1).tolist()}")
    return Row("ok", found or "bundled with the image", f"--loader dali-{device} works")


def jpeg() -> bytes:
    """Encode a small JPEG of COLOUR."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), COLOUR).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def nvdec() -> Row:
    """Load the driver's video decoder, which a container has only with the capability, and its package."""
    if not driver()[0]:
        return Row("absent", "no GPU", "videos are decoded by the CPU")
    ctypes.CDLL("libnvcuvid.so.1")
    if not has("PyNvVideoCodec") or not has("av"):
        text = "for --loader nvdec: pip install PyNvVideoCodec av"
        return Row("absent", "PyNvVideoCodec or PyAV is not installed", text)
    importlib.import_module("PyNvVideoCodec")
    found = ", ".join(builds("pynvvideocodec"))
    return Row("ok", found, "--loader nvdec and nvdec+pyav can run")


def reader() -> Row:
    """Ask what `--reader auto` takes: the fastest decoder of JPEGs with PIL's pixels."""
    from saturate.loaders.images.decoders import choose

    chosen = choose("auto")
    codec = ", ".join(builds("nvidia-nvimgcodec-cu")) or "no nvImageCodec"
    found = f"--reader auto takes {chosen}; {codec}"
    if chosen == "nvimgcodec":
        return Row("ok", found, "the fastest that --loader torchvision has")
    remedy = "pip install --upgrade nvidia-nvimgcodec-cu12"
    return Row("warn", found, f"--loader torchvision can be 1.8 times faster: {remedy}")


def loaders() -> Row:
    """Say which loaders of the table find their packages and a GPU here."""
    from saturate.loaders import LOADERS

    gpu = bool(driver()[0])
    here, absent = [], []
    for name, spec in LOADERS.items():
        lacking = [package for package in spec.packages if not has(package)]
        lacking += ["a GPU"] * (spec.gpu == "must" and not gpu)
        if lacking:
            absent.append(f"{name} (lacks {' and '.join(lacking)})")
        else:
            here.append(name)
    return Row("ok", ", ".join(here), f"not here: {', '.join(absent) or 'none'}")


# --- what the system and the container grant ----------------------------------


def least(
    name: str, amount: float, bad: float, warn: float, found: str, remedy: str
) -> Row:
    """Judge an amount by what a run cannot do without, and by what it should have."""
    if amount >= warn:
        return Row("ok", found, "enough")
    state: State = "bad" if amount < bad else "warn"
    return Row(state, found, f"{warn:g} {name} would do: {remedy}")


def cores() -> Row:
    """Count the cores for each GPU: 16 feed a ResNet-50 on one H200 (docs/benchmarks/train.md)."""
    import torch

    from saturate.system import resources

    usable = resources.cores()
    gpus = torch.cuda.device_count()
    found = f"{usable:.3g} usable of the machine's {os.cpu_count()}, {gpus} GPUs"
    remedy = "a larger quota or affinity; dali-gpu is content with 4"
    each = usable / max(gpus, 1)
    return least("cores a GPU", each, 0, 12 if gpus else 2, found, remedy)


def memory() -> Row:
    """Compare the memory, or the container's limit, with what the workers of a rank take."""
    import torch

    from saturate.system.resources import memory_bytes

    gib = memory_bytes() / GIB
    remedy = "fewer --workers, or a higher limit (docker run --memory)"
    each = gib / max(torch.cuda.device_count(), 1)
    return least("GiB a rank", each, 0, 8, f"{gib:.1f} GiB", remedy)


def shm() -> Row:
    """Compare /dev/shm with what the queues of workers take, and with what NCCL does."""
    import torch

    from saturate.loaders._workers import QUEUES_BYTES
    from saturate.report.hardware import shm_free_bytes

    mib = shm_free_bytes() / MIB
    needed = QUEUES_BYTES / MIB * max(torch.cuda.device_count(), 1)
    remedy = "docker run --shm-size=1g, or --workers 0"
    return least("MiB", mib, needed, 256, f"{mib:,.0f} MiB free", remedy)


# --- the table ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probe:
    """A row of the table: what is asked, and what it means when that raises, crashes or hangs."""

    ask: Callable[[], Row]
    remedy: str
    state: State = "warn"


VIDEO = "in a container: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
LIMITS = "could not be looked at: mend the rows above first"
PROBES: dict[str, Probe] = {
    "torch, torchvision": Probe(
        torch_and_torchvision, "install the two together, from one index", "bad"
    ),
    "GPU": Probe(gpu, "a torch of the driver's CUDA; then see nvidia-smi", "bad"),
    "NCCL": Probe(
        nccl,
        "GPUs cannot train together: NCCL_DEBUG=INFO says more, NCCL_P2P_DISABLE=1 may "
        "work around it",
        "bad",
    ),
    "DALI decodes, CPU": Probe(
        partial(dali, "cpu"), "uninstall all builds of DALI, then install one", "bad"
    ),
    "DALI decodes, GPU": Probe(
        partial(dali, "gpu"), f"--loader dali-cpu or torchvision; {VIDEO}", "bad"
    ),
    "CPU reader": Probe(reader, "reinstall torchvision and nvImageCodec"),
    "NVDEC": Probe(nvdec, f"no videos on the GPU: --loader pyav; {VIDEO}"),
    "loaders": Probe(loaders, LIMITS),
    "CPU cores": Probe(cores, LIMITS),
    "memory": Probe(memory, LIMITS),
    "/dev/shm": Probe(shm, LIMITS),
}


def lost(probe: Probe, error: str) -> Row:
    """Make the row of a probe that gave none."""
    return Row(probe.state, error, probe.remedy)


def main(name: str) -> None:
    """Print the row of this name as JSON. What libraries print goes to stderr."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    probe = PROBES[name]
    try:
        row = probe.ask()
    except Exception as error:
        text = next(iter(str(error).strip().splitlines()), "")[:200]
        row = lost(probe, f"{type(error).__name__}: {text}")
    print(json.dumps(asdict(row)), file=output, flush=True)
    # a library that hangs at its end has answered
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
