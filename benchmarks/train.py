"""`train`: runs of train.py over a table of axes, each with its two ceilings and the parts of a step.

Times nothing itself: every figure is of a run's summary.json, or of the loop by hand.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt

from benchmarks._suite import (
    RATE,
    REPEAT,
    ROOT,
    Common,
    Measured,
    Point,
    Row,
    Suite,
    crossed,
    ranks,
    ratio,
    require_gpus,
)
from saturate.contracts import RateWindow
from saturate.engine import precision
from saturate.engine.distributed import default_workers
from saturate.report.facts import PHASES
from saturate.report.meter import bound, spread, steady
from saturate.run.trial import (
    GENTLER,
    MEASURED_ONLY,
    behind_dashes,
    require_data,
    words,
)
from saturate.settings.cli import FolderOrUrl, one_of
from saturate.settings.config import Config, parse
from saturate.settings.model import Precision
from saturate.tasks import TASKS, architecture, kind_named, kind_of

BY_HAND = "by hand: "
LOOPS = {
    "classification": ("dali", "dali+compile", "dali-cpu", "torchvision"),
    "detection": ("torchvision",),
    "superres": ("torchvision",),
}
"""--task -> the loops of benchmarks/baselines/train.py; another task has none."""
SET_HERE = frozenset(
    [
        "task",
        "data",
        "arch",
        "batch_size",
        "loader",
        "precision",
        "seconds",
        "steps",
        "epochs",
        "seed",
        "output",
        "resume",
    ]
)
"""Settings of train.py that are a point's, or the suite's."""
AXES: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "workers": ("workers", lambda count: {"workers": count}),
    "memory": ("memory", lambda kind: {"pin_memory": kind == "pinned"}),
    "step": (
        "steps",
        lambda step: {"compile": "compile" in step, "graphs": "graphs" in step},
    ),
}
"""Axis that is left to train.py where nothing is asked -> setting of the suite, settings of train.py."""
MIXED = "--mixup 0.2 --cutmix 1 --erase 0.25 --auto-augment rand-m7-mstd0.5-inc1"
RECIPES = {
    "plain": "",
    "augmented": "--auto-augment rand-m9-mstd0.5-inc1 --mixup 0.8 --cutmix 1 --erase 0.25 --erase-mode pixel",
    "ema": "--ema 0.9999",
    "none": "--train-window center --flip 0",
    "mixed": MIXED,
    "regularised": f"{MIXED} --mix-prob 0.5 --label-smoothing 0.1 --ema 0.99",
}
"""Recipe -> its flags of train.py."""
CEILINGS = ("compute_ceiling", "loader_ceiling")


class Train(Common):
    """Rate, ceilings, bound and the parts of a step, over every combination of what is asked for."""

    task: str = "classification"
    """Task of the run, as --task of train.py."""
    data: FolderOrUrl = None
    """Folder as --data of train.py for the task. Not needed with --loaders synthetic."""
    sets: tuple[str, ...] = ()
    """Folders below --data, each of which is trained on, as `scripts.pack` and `patch-set` make them."""
    archs: tuple[str, ...] | None = None
    """Architectures of the task, by torchvision's names. Default: train.py's."""
    batch_sizes: tuple[PositiveInt, ...] | None = None
    """Samples a rank and step. Default: train.py's."""
    loaders: tuple[str, ...] = ("auto",)
    """Names as in --loader of train.py."""
    precisions: tuple[Precision, ...] = ("auto",)
    """auto = fp16 on a GPU."""
    recipes: tuple[
        Literal["plain", "augmented", "ema", "none", "mixed", "regularised"], ...
    ] = ("plain",)
    """plain crops and flips; augmented adds RandAugment, mixup or cutmix, and erasing; ema plain's average of
    weights; none neither crops nor flips; mixed and regularised are those of docs/recipes.md."""
    gpus: tuple[PositiveInt, ...] = (1,)
    """Processes, one a GPU (on a CPU: gloo)."""
    workers: tuple[NonNegativeInt, ...] = ()
    """A rank, for our loaders and the loop by hand. Default: CPU cores / ranks, less one."""
    memory: tuple[Literal["pinned", "pageable"], ...] = ()
    """Host memory that the GPU copies from: page-locked or not. Default: pinned with a GPU."""
    steps: tuple[Literal["eager", "graphs", "compile", "compile+graphs"], ...] = ()
    """How a step is launched: kernel by kernel (eager), as one CUDA graph, with torch.compile, with both.
    Default: as train.py does."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 10.0
    """Seconds of steady windows to measure at each point, after the warm-up."""
    epochs: PositiveInt | None = None
    """Train for so many epochs and validate at the end, to compare top-1 and not rates; each of --repeats has
    its own seed, and what is learned by is behind the bare --."""
    by_hand: tuple[Literal["dali", "dali+compile", "dali-cpu", "torchvision"], ...] = ()
    """Also time the loop that one writes by hand with these libraries (benchmarks/baselines/train.py): in
    fp16 on one GPU, in fp32 without. dali decodes on the GPU, dali-cpu on the CPU, dali+compile has the
    network compiled; other tasks: torchvision. Of the flags behind -- it takes --workers and --image-size alone."""
    flags: str = ""
    """More flags of train.py, for every point; better written last, after a bare --."""


# --- what is asked ----------------------------------------------------------------------------------------------


def check(
    flags: str, taken: Collection[str], *, task: str = "classification"
) -> Config:
    """Return the settings of these flags of train.py. Raises UserError."""
    given, _ = behind_dashes(flags, taken)
    config = parse(["--task", task, *given])
    kind_of(config)
    return config


def data_of(settings: Train, name: str) -> str | None:
    """Return --data of a point: the whole, or the folder `name` below it."""
    if settings.data is None or not name:
        return settings.data
    return f"{settings.data.rstrip('/')}/{name}"


def points(settings: Train) -> list[Point]:
    """Return the points; those that are compared follow each other, for a machine's speed drifts."""
    task = one_of("--task", settings.task, TASKS)
    kind = kind_named(task)
    archs = (kind.arch,) if settings.archs is None else settings.archs
    default = (Config().loading.batch_size,)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    auto = kind.default_loader(gpu=gpu)
    for arch in archs:
        architecture(kind, arch, "--archs")
    for name in settings.by_hand:
        one_of(f"--by-hand with --task {task}", name, LOOPS.get(task, ()))
    loaders = [
        one_of("--loaders", name, kind.loaders, auto=auto) for name in settings.loaders
    ]
    require_gpus(settings.gpus, torch.cuda.device_count())
    axes = {axis: getattr(settings, name) for axis, (name, _) in AXES.items()}
    asked = {axis: values for axis, values in axes.items() if values}
    taken = {*SET_HERE, *(name for axis in asked for name in AXES[axis][1](""))}
    config = check(settings.flags, taken, task=task)
    validates = settings.epochs is not None
    for place in settings.sets or ("",):
        data = data_of(settings, place)
        require_data(data, loaders, config, validates=validates)
    precisions = [
        precision.choose(name, device, on_cpu=kind.cpu_precision)
        for name in settings.precisions
    ]
    ours = crossed(
        loader=loaders,
        precision=precisions,
        gpus=settings.gpus,
        recipe=settings.recipes,
        **asked,
    )
    alone = {"precision": "fp16" if gpu else "fp32", "gpus": 1, "recipe": "plain"}
    theirs = [
        {"loader": BY_HAND + library, **alone, **point}
        for library in settings.by_hand
        for point in crossed(workers=settings.workers)
    ]
    return [
        {**first, **point}
        for first in crossed(
            arch=archs, batch_size=settings.batch_sizes or default, set=settings.sets
        )
        for point in (*ours, *theirs)
        if archs and loaders
    ]


# --- a point ----------------------------------------------------------------------------------------------------


def command(settings: Train, point: Point, folder: Path) -> list[str]:
    """Return the command of train.py, or of the loop by hand."""
    data = data_of(settings, point.get("set", ""))
    flags: dict[str, Any] = {"task": settings.task, "data": data}
    if point["loader"].startswith(BY_HAND):
        flags |= by_hand_flags(settings.task, settings.flags, point)
        flags |= {"seconds": settings.seconds, "output": folder / "figures.json"}
        return [sys.executable, "-m", "benchmarks.baselines.train", *words(flags)]
    if settings.epochs is None:
        flags |= {"seconds": settings.seconds, "val_every": 0, **MEASURED_ONLY}
        flags |= GENTLER.get(settings.task, {})
    else:
        flags |= {"epochs": settings.epochs, "val_every": settings.epochs}
        flags |= {"seed": point.get(REPEAT, 0), "ceilings": False}
        flags |= {"save_every_minutes": 0}
    for name in ("arch", "batch_size", "loader", "precision"):
        flags[name] = point[name]
    for axis, (_, settings_of) in AXES.items():
        flags |= settings_of(point[axis]) if axis in point else {}
    return [
        sys.executable,
        *ranks(point["gpus"]),
        str(ROOT / "train.py"),
        *words({**flags, "output": folder}),
        *shlex.split(RECIPES[point["recipe"]]),
        *shlex.split(settings.flags),
    ]


def by_hand_flags(task: str, flags: str, point: Point) -> dict[str, Any]:
    """Return the settings of a loop by hand: the point's, with the pixels and the workers that ours has."""
    asked = parse(["--task", task, *shlex.split(flags)]).flat()
    workers = asked["workers"]
    if workers is None:
        workers = default_workers(gpu=torch.cuda.is_available())
    found = {"arch": point["arch"], "batch_size": point["batch_size"]}
    found["loader"] = point["loader"].removeprefix(BY_HAND)
    found["workers"] = point.get("workers", workers)
    if task == "classification":
        registry, _ = architecture(kind_named(task), point["arch"])
        native = registry.native(point["arch"]).size
        found["image_size"] = asked["image_size"] or native
    return found


def read(point: Point, folder: Path) -> Measured:
    """Return the figures of a point from the files that its program has left."""
    if point["loader"].startswith(BY_HAND):
        figures = json.loads((folder / "figures.json").read_text("utf-8"))
        windows = [
            RateWindow(samples, samples, seconds, 0)
            for samples, seconds in figures.pop("windows")
        ]
        rates = [window.rate for window in steady(windows)]  # by the rule of ours
        figures["rate"] = statistics.median(rates)
        its = spread(rates)
        return Measured(figures=figures, spread={"rate": its} if its else {})
    for weights in folder.glob("*.pt"):
        weights.unlink()  # of a network that nobody asks for
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    outcome = measured(summary)
    if (size := summary["batch_size"]) != point["batch_size"]:
        return replace(
            outcome, error=f"--data has too few samples, batches were {size}"
        )
    if summary.get("validation"):
        # it was trained for its accuracy, and may have been short
        figures = outcome.figures | {"steps": None}
        return replace(outcome, spread={}, figures=figures)
    return outcome


def measured(summary: Mapping[str, Any]) -> Measured:
    """Return the figures of a run's summary."""

    def at(path: str) -> Any:
        found: Any = summary
        for name in path.split("."):
            found = (found or {}).get(name)
        return found

    columns = FIGURES | DETAILS
    spreads = {
        name: at(f"{columns[name][0].rpartition('.')[0]}.spread")
        for name in ("rate", *CEILINGS)
    }
    return Measured(
        figures={name: at(path) for name, (path, *_) in columns.items()}
        | {"unit": at("rate.unit")}
        | {"start_s": sum(summary.get("start_s", {}).values()) or None},
        spread={name: its for name, its in spreads.items() if its},
        versions=summary["versions"],
        hardware=summary["hardware"],
    )


def derive(rows: Sequence[Row]) -> list[Row]:
    """Add efficiency and bound, which repeats have of their medians, and `of_eager`, the ratio to the rate of
    eager steps.
    """
    derived = []
    for row in rows:
        known = [row["figures"].get(key) for key in ("rate", *CEILINGS)]
        efficiency, name = bound(*known)
        figures = {
            "efficiency": efficiency,
            "bound": name or ("check failed" if efficiency else None),
            "of_eager": ratio(rows, row, "rate", step="eager"),
        }
        derived.append(row | {"figures": row["figures"] | figures})
    return derived


FIGURES = {
    "rate": ("rate.steady", "{unit}", RATE),
    "top1": ("validation.top1", "top-1", "{:.1%}"),
    "ema_top1": ("validation.ema_top1", "top-1 of the average", "{:.1%}"),
    "psnr": ("validation.psnr", "PSNR, dB", "{:.2f}"),
    "psnr_bicubic": ("validation.psnr_bicubic", "PSNR of bicubic, dB", "{:.2f}"),
    "frames_per_s": ("clips.frames_per_s", "frame/s", "{:,.0f}"),
    "instances_per_s": ("detection.instances_per_s", "box/s", "{:,.0f}"),
    "compute_ceiling": ("ceiling.compute.rate", "compute ceiling", "{:,.0f}"),
    "loader_ceiling": ("ceiling.loader.rate", "loader ceiling", "{:,.0f}"),
    "data_wait_ms": ("data_wait.ms", "data wait, ms", "{:.2f}"),
}
"""Figure -> its path in summary.json, its title and its format."""
DETAILS = {
    f"{phase}_ms": (f"split_ms.{phase}", f"{phase}, ms", "{:.2f}")
    for phase in PHASES
    if phase != "data_wait"
} | {
    "decoded_per_delivered": (
        "clips.decoded_per_delivered",
        "decoded / delivered",
        "{:.2f}",
    ),
    "step_p50_ms": ("step_ms.p50", "step p50, ms", "{:.1f}"),
    "step_p99_ms": ("step_ms.p99", "p99", "{:.1f}"),
    "steps": ("step_ms.n", "steps", "{}"),
    # the sum of its parts, to the end of the first step
    "start_s": ("start_s", "start, s", "{:.1f}"),
    "first_epoch": ("rate.first_epoch", "first epoch, {unit}", "{:,.0f}"),
    "device_gib": ("memory.device_gib", "GPU GiB", "{:.1f}"),
    "host_gib": ("memory.host_gib", "host GiB", "{:.1f}"),
    "gpu_utilisation": ("gpu.utilisation", "GPU busy", "{:.0%}"),
    "power_w": ("gpu.power_w", "W a GPU", "{:.0f}"),
    "cpu_utilisation": ("cpu.utilisation", "CPU busy", "{:.0%}"),
}
DERIVED: dict[str, Sequence[str]] = {
    "of_eager": ("times eager", "{:.2f}"),
    "efficiency": ("efficiency", "{:.1%}"),
    "bound": ("bound", "{}"),
}

SUITE = Suite(
    name="train",
    about="samples a second of all ranks while training, in windows of 2 s after the warm-up",
    settings=Train,
    points=points,
    command=command,
    read=read,
    columns=DERIVED | {key: column for key, (_, *column) in FIGURES.items()},
    details={key: column for key, (_, *column) in DETAILS.items()},
    derive=derive,
)
