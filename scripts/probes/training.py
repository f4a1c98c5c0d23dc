"""Probes of what a training step stands on: the GPUs and their driver, NCCL, torch with its torchvision,
apex."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from scripts.probes import Row, State, first_line, has, installed

GIB = 1 << 30
# compute modes: nvml.h, nvmlComputeMode_t
PROHIBITED = 2
EXCLUSIVE = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """NVML's view: all GPUs of the machine, also those that CUDA_VISIBLE_DEVICES hides. Empty without a
    driver."""

    names: tuple[str, ...] = ()
    version: str = ""
    cuda: tuple[int, int] = (0, 0)  # the newest CUDA that it runs
    compute_modes: tuple[int, ...] = ()
    mig: bool = False


def driver() -> Driver:
    """Return what NVML says of driver and GPUs; never raises."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        mig = False
        for handle in handles:
            with contextlib.suppress(pynvml.NVMLError):  # most GPUs have no such mode
                mig = mig or bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
        newest = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return Driver(
            names=tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles),
            version=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=(newest // 1000, newest % 1000 // 10),
            compute_modes=tuple(pynvml.nvmlDeviceGetComputeMode(handle) for handle in handles),
            mig=mig,
        )
    except Exception:  # no package, no library, no driver, no permission: to us all the same
        return Driver()


def gpu() -> Row:
    import torch

    visible: list[str] = []
    failure = ""
    try:
        for index in range(torch.cuda.device_count()):
            of = torch.cuda.get_device_properties(index)
            visible.append(f"{of.name}, {of.total_memory / GIB:.0f} GiB")
            # a kernel that this build of torch has for this GPU
            torch.ones(1, device=f"cuda:{index}").add_(1).item()
        if not visible:
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        failure = first_line(error)
    return judge_gpu(driver(), visible, failure, torch.version.cuda)


def judge_gpu(on: Driver, visible: list[str], failure: str, torch_cuda: str | None) -> Row:
    """Judge the GPUs. `visible`: torch's GPUs; `failure`: what torch said, when it could not use one of them
    or has none."""
    driven = (
        f"driver {on.version} (CUDA {on.cuda[0]}.{on.cuda[1]})" if on.version else "driver unknown to NVML"
    )
    versions = f"{driven}, torch's CUDA {torch_cuda or 'none: a CPU build'}"
    if not visible and not on.names:
        return Row(
            found="no GPU, or no driver",
            state="absent",
            consequence="runs train on the CPU. If there should be one: docker run --gpus all, or NVIDIA's "
            "driver",
        )
    kinds = " + ".join(f"{visible.count(kind)} x {kind}" for kind in dict.fromkeys(visible))
    found = f"{kinds or ', '.join(on.names) + ', not usable'}; {versions}"
    if torch_cuda is None:
        return Row(
            found=found,
            state="bad",
            consequence="torch cannot use the GPU: install a torch with CUDA, and its torchvision",
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not visible and hidden is not None and hides(hidden, len(on.names)):
        return Row(
            found=found,
            state="warn",
            consequence=f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU: unset it",
        )
    if (not visible or failure) and 0 < on.cuda[0] < int(torch_cuda.partition(".")[0]):
        needs = torch_cuda.partition(".")[0]
        return Row(
            found=found,
            state="bad",
            consequence=f"the driver is too old: one for CUDA {needs}, or a torch for CUDA {on.cuda[0]}",
        )
    if PROHIBITED in on.compute_modes and (not visible or failure):
        return Row(
            found=found, state="bad", consequence="compute mode is prohibited: nvidia-smi --compute-mode 0"
        )
    if not visible or failure:
        return Row(
            found=f"{found}; {failure}",
            state="bad",
            consequence="torch cannot use the GPU: see what it said; then nvidia-smi",
        )
    hides_some = len(visible) < len(on.names)  # the driver tells of those too
    if any("MIG" in name for name in visible) or (on.mig and not hides_some):
        said = (
            "MIG is on: a slice has a part of the SMs, memory and decoders, and NCCL does not join "
            "slices; one rank a slice, alone"
        )
        return Row(found=found, state="warn", consequence=said)
    if any(mode in EXCLUSIVE for mode in on.compute_modes) and not hides_some:
        said = (
            "compute mode is exclusive: one process a GPU, a second run on it fails; nvidia-smi "
            "--compute-mode 0"
        )
        return Row(found=found, state="warn", consequence=said)
    some = f"; {len(visible)} of {len(on.names)} are visible" if len(on.names) > len(visible) else ""
    return Row(
        found=found, state="ok", consequence=f"one rank each: torchrun --nproc-per-node {len(visible)}{some}"
    )


def hides(visible_devices: str, gpus: int) -> bool:
    """Whether this value of CUDA_VISIBLE_DEVICES leaves none of the GPUs: CUDA stops at the first that is not
    there."""
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
    """Return each GPU's result of a sum of 1, 2, ... over all of them in this process; NCCL's error as a str;
    [] where memory is short."""
    import torch

    try:
        if min(torch.cuda.mem_get_info(at)[0] for at in range(gpus)) < GIB:
            return []
        each = [torch.full((1024,), at + 1.0, device=f"cuda:{at}") for at in range(gpus)]
        torch.cuda.nccl.all_reduce(each)
        return [float(one.mean().item()) for one in each]
    except RuntimeError as error:
        return first_line(error)


P2P = (
    "NCCL_P2P_DISABLE=1 works around it; whoever runs the machine can look at ACS and the IOMMU; "
    "NCCL_DEBUG=INFO says more"
)
NCCL_HANGS = f"several GPUs cannot train together: {P2P}"
"""The answer when the sum does not end."""


def judge_nccl(version: str, gpus: int, sums: list[float] | str) -> Row:
    """Judge NCCL. `version`: empty when torch has none; `sums`: see summed(), empty when it was not tried."""
    state: State = "bad" if gpus > 1 else "warn"
    if not version:
        said = (
            "several GPUs cannot train together: a torch built with NCCL"
            if gpus > 1
            else "needed from two GPUs on"
        )
        return Row(found="not in this torch", state="bad" if gpus > 1 else "absent", consequence=said)
    if not gpus:
        return Row(found=version, state="ok", consequence="not tried without a GPU: it is needed from two on")
    if not sums:
        return Row(
            found=version,
            state="warn",
            consequence="not tried: a GPU has less than 1 GiB free; ask again when nothing runs",
        )
    if isinstance(sums, str):
        return Row(
            found=f"{version}; {sums}",
            state=state,
            consequence="several GPUs cannot train together: NCCL_DEBUG=INFO says more",
        )
    right = gpus * (gpus + 1) / 2
    if any(one != right for one in sums):
        said = f"several GPUs get wrong gradients: {P2P}"
        return Row(
            found=f"{version}; a sum that is {right:g} came out as {sums}", state=state, consequence=said
        )
    if gpus == 1:
        return Row(found=f"{version}; it starts", state="ok", consequence="needed from two GPUs on")
    said = (
        "they reach each other; ranks are processes of their own, which in a container need --shm-size=1g too"
    )
    return Row(
        found=f"{version}; a sum over {gpus} GPUs, in one process, is right", state="ok", consequence=said
    )


def torch_and_torchvision() -> Row:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Row(
            found=first_line(error), state="bad", consequence="nothing runs: pip install -r requirements.txt"
        )
    try:
        import torchvision

        torchvision.ops.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1), 0.5)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return Row(
            found=f"torch {torch.__version__}, torchvision: {first_line(error)}",
            state="bad",
            consequence="torchvision is missing or was built for another torch: install the two together, "
            "from one index",
        )
    return Row(
        found=f"torch {torch.__version__}, torchvision {torchvision.__version__}, its operators work",
        state="ok",
        consequence="every --arch can be built",
    )


def apex() -> Row:
    spec = util.find_spec("apex")  # the folder alone: the web toolkit is not to be run
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    built = [name for name in ("amp_C", "apex_C") if has(name)]
    return judge_apex(installed().get("apex"), folders, built)


def judge_apex(version: str | None, folders: list[Path], built: list[str]) -> Row:
    """Judge apex. `folders`: of the package that `import apex` would take; `built`: NVIDIA's compiled
    extensions that are there."""
    if not folders and version is None:
        return Row(
            found="not installed",
            state="absent",
            consequence="not needed: saturate uses torch's own fused optimisers",
        )
    if not any(
        (folder / "optimizers").is_dir() and (folder / "normalization").is_dir() for folder in folders
    ):
        return Row(
            found=f"{version or 'of unknown version'}, not NVIDIA's",
            state="bad",
            consequence="the index's apex is a Pyramid web toolkit: pip uninstall apex; NVIDIA's is built "
            "from github.com/NVIDIA/apex",
        )
    if not built:
        return Row(
            found=f"NVIDIA's {version or ''}".strip() + ", without its extensions",
            state="warn",
            consequence="its fused kernels are missing; saturate does not need them",
        )
    return Row(
        found=f"NVIDIA's {version or ''}".strip() + f", with {' and '.join(built)}",
        state="ok",
        consequence="not needed: torch's own fused optimisers are used",
    )
