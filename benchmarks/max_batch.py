"""`max-batch`: the largest batch that trains, per architecture, loader and precision, by a search that lives
on running out of memory.

start, x 2, x 2, ... until one does not fit; then halves of what lies between, down to the tolerance or to 8
samples

Each trial is a run of train.py in a process of its own: a few steps, and a validation of the same batch while
the training loader is open.
"""

from __future__ import annotations

import ctypes
import json
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks._loaders import expanded
from benchmarks._suite import (
    ROOT,
    Common,
    Measured,
    Point,
    Suite,
    crossed,
    figures_of,
    in_own_process,
    measuring,
)
from benchmarks.train import (
    BY_HAND,
    MEASURED_ONLY,
    SET_HERE,
    by_hand_flags,
    check,
    require_data,
    words,
)
from saturate.contracts import UserError
from saturate.engine.distributed import cores
from saturate.engine.precision import choose
from saturate.report import hardware
from saturate.run.trial import ending_on_signals, ran
from saturate.settings.cli import FolderOrUrl
from saturate.settings.model import Precision
from saturate.settings.types import Share
from saturate.tasks import architecture
from saturate.tasks.classification import KIND

GRID = 8
"""Batches above it are multiples of it."""


class MaxBatch(Common):
    """The largest batch that trains and validates, per architecture, loader and precision."""

    data: FolderOrUrl = None
    """Folder with train/<class>/* and val/<class>/*. Not needed with --loaders synthetic, which then trains
    without a validation."""
    archs: tuple[str, ...] = ("resnet18", "resnet50")
    """Classification architectures of torchvision.models."""
    loaders: tuple[str, ...] = ("auto",)
    """Names as in --loader of train.py; auto = all that read files and run here."""
    precisions: tuple[Precision, ...] = ("auto",)
    """auto = fp16 on a GPU."""
    start: PositiveInt = 64
    """First batch that is tried; near the answer the search is short."""
    largest: PositiveInt = 16384
    """Largest that is tried; one that is larger than the data set does not train."""
    tolerance: Share = 0.05
    """End when the largest that fits and the smallest that does not are this close, as a share; or 8 samples
    apart."""
    steps: PositiveInt = 6
    """Training steps of each trial."""
    by_hand: tuple[Literal["dali", "dali-cpu"], ...] = ()
    """Also search with the loop that one writes by hand with DALI (benchmarks/baselines/train.py), in fp16 on
    a GPU: dali decodes there, dali-cpu on the CPU."""
    memory_limit_gib: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Measure as if the GPU had no more memory than this, in GiB: the rest is held."""
    flags: str = ""
    """More flags of train.py, for every trial; better written last, after a bare --."""


def points(settings: MaxBatch) -> list[Point]:
    """Return a point for each search. Raises UserError."""
    for arch in settings.archs:
        architecture(KIND, arch, "--archs")
    if settings.memory_limit_gib and not torch.cuda.is_available():
        raise UserError("--memory-limit-gib holds memory of a GPU, and none is here")
    config = check(settings.flags, {*SET_HERE, "val_batch_size"})
    require_data(settings.data, settings.loaders, config, validates=True)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    precisions = [
        choose(name, device, on_cpu=KIND.cpu_precision) for name in settings.precisions
    ]
    loaders = expanded("--loaders", settings.loaders, torch.cuda.device_count())
    theirs = [BY_HAND + library for library in settings.by_hand]
    return [
        {"arch": arch, **point}
        for arch in settings.archs
        for point in (
            *crossed(loader=loaders, precision=precisions),
            *({"loader": loader, "precision": "fp16"} for loader in theirs),
        )
    ]


# --- a search -----------------------------------------------------------------------------------------------


def search(
    outcome: Callable[[int], str], *, start: int, largest: int, tolerance: float
) -> tuple[int, int | None]:
    """Return the largest batch that trains, 0 for none, and the smallest that does not, of what was tried.

    `outcome` tries a batch and returns its status. Where one trains, a larger one that fails for any reason
    is too large. A failure other than for memory before any batch has trained is a mistake, and ends it.
    """
    fits, fails = 0, None
    batch: int | None = min(start, largest)
    while batch is not None:
        status = outcome(batch)
        if status == "ok":
            fits = batch
        else:
            fails = batch
            if not fits and status != "oom":
                break  # a smaller batch would fail for the same reason
        batch = _following(fits, fails, largest, tolerance)
    return fits, fails


def _following(
    fits: int, fails: int | None, largest: int, tolerance: float
) -> int | None:
    if fails is None:
        return min(2 * fits, largest) if fits < largest else None
    if fails - fits <= tolerance * fits:
        return None
    grid = GRID if fails > GRID else 1
    middle = max((fits + fails) // 2 // grid, fits // grid + 1) * grid
    return middle if middle < fails else None


def command(settings: MaxBatch, point: Point, folder: Path) -> list[str]:
    """Return the command of a trial: train.py, or the loop by hand, for a few steps."""
    flags: dict[str, Any] = {"data": settings.data, "steps": settings.steps}
    if point["loader"].startswith(BY_HAND):
        flags |= by_hand_flags("classification", settings.flags, point)
        return [sys.executable, "-m", "benchmarks.baselines.train", *words(flags)]
    flags |= {**point, "val_batch_size": point["batch_size"], "val_every": 1}
    flags |= {"ceilings": False, **MEASURED_ONLY, "output": folder}
    more = shlex.split(settings.flags)
    return [sys.executable, str(ROOT / "train.py"), *words(flags), *more]


def measure(settings: MaxBatch, point: Point, folder: Path) -> Measured:
    """Search in this process, which holds the memory that a trial may not have."""
    device = (
        torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    )
    if settings.memory_limit_gib:
        limit(device, settings.memory_limit_gib)
    beside_gib = hardware.device_gib(device) or 0.0
    tried: dict[int, tuple[str, str]] = {}
    figures: dict[int, dict[str, Any]] = {}

    def outcome(batch: int) -> str:
        trial, log = folder / str(batch), folder / f"{batch}.txt"
        words = command(settings, point | {"batch_size": batch}, trial)
        with peak(device) as peak_gib:
            status, why = ran(words, log, settings.limit_s)
        path = trial / "summary.json"
        told = json.loads(path.read_text()) if path.exists() else {}
        # which a small set makes a little smaller, so that no sample is left out
        size = told.get("batch_size", batch)
        if status == "ok" and size > 0.8 * batch:
            figures[batch] = dict(told.get("memory", {}))
            figures[batch]["device_gib"] = (
                max(peak_gib) - beside_gib if peak_gib else None
            )
        elif status == "ok":
            status, why = "failed", f"too few samples, batches were {size},"
        tried[batch] = (status, why)
        for weights in trial.glob("*.pt"):
            weights.unlink()  # of a network that has learned nothing
        print(f"{batch}: {tried[batch]}", flush=True)
        return status

    how = {name: getattr(settings, name) for name in ("start", "largest", "tolerance")}
    with ending_on_signals():
        fits, fails = search(outcome, **how)
    ended = f"all of --largest {fits:,}"
    if fails:
        status, why = tried[fails]
        if not fits:
            # the suite tells running out of memory from mistakes by this line
            sys.exit(f"batch {fails}: {why}")
        ended = f"{'out of memory' if status == 'oom' else why} at {fails:,}"
    return Measured(
        figures={
            **figures[fits],
            "largest": fits,
            "ended": ended,
            "trials": len(tried),
        },
        versions=hardware.versions(),
        hardware=hardware.hardware(device, cores()),
    )


def limit(device: torch.device, gib: float) -> None:
    """Leave so much memory to a trial, its CUDA context included. Raises UserError when there is less."""
    free, _ = torch.cuda.mem_get_info(device)
    # by the driver: PyTorch would take whole segments
    place, size = ctypes.c_void_p(), ctypes.c_size_t(max(free - int(gib * 2**30), 0))
    if ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(place), size):
        raise UserError(f"--memory-limit-gib {gib:g}: {free / 2**30:.1f} GiB are free")


@contextmanager
def peak(device: Any, every_s: float = 0.05) -> Iterator[list[float]]:
    """Note GiB in use on the device whenever that was more than before, whoever uses it; nothing on a CPU.
    The validation is in it.
    """
    peaks: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            now = hardware.device_gib(device)
            if now is not None and now > max(peaks, default=0.0):
                peaks.append(now)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


COLUMNS = {
    "largest": ("largest batch", "{:,}"),
    "ended": ("limit", "{}"),
    "device_gib": ("GPU GiB", "{:.1f}"),
}
DETAILS = {
    "allocated_gib": ("PyTorch's GiB", "{:.1f}"),
    "host_gib": ("host GiB", "{:.1f}"),
    "trials": ("trials", "{}"),
}

SUITE = Suite(
    name="max-batch",
    about="the largest batch of a GPU that trains, a validation of the same batch included, and the device's "
    "memory there at its peak",
    settings=MaxBatch,
    points=points,
    command=in_own_process("benchmarks.max_batch"),
    read=figures_of,
    columns=COLUMNS,
    details=DETAILS,
    rate="largest",
    searches=True,
)

if __name__ == "__main__":
    measuring(MaxBatch, measure)
