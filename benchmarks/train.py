"""`train`: architectures x batch sizes x loaders x precisions, each a run of train.py, with its two ceilings.
Times nothing itself."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _plots, _show
from benchmarks._suite import (
    LEAST,
    ROOT,
    Column,
    Common,
    Measured,
    Point,
    Rates,
    Row,
    Suite,
    ranks,
    require_gpus,
)
from benchmarks.baselines import train as loop_by_hand
from contracts import RateWindow, UserError
from dataset.open import holds, require_splits
from dataset.scan.manifest import is_url
from engine import precision
from engine.distributed import default_workers
from report.meter import bound, spread, steady
from report.tensorboard import SETTINGS, Board, metrics
from settings.cli import FolderOrUrl, one_of
from settings.config import Config, parse
from tasks import TASKS, architecture, compared, kind_named, kind_of

BY_HAND = "by hand: "
BY_HAND_OF = {
    "classification": ("dali", "dali-cpu", "torchvision"),
    "detection": ("torchvision",),
    "video": (),
}
"""--task -> the loops of benchmarks/baselines/train.py; another task has none."""
OWN = {
    f"--{name}"
    for name in (
        "task",
        "arch",
        "batch-size",
        "loader",
        "precision",
        "seconds",
        "output",
        "data",
        "resume",
        "epochs",
        "steps",
    )
}
"""Flags of train.py that are a point's, or this suite's."""
SAME_WORK = ("--min-window-s", "--log-every", "--manifest-dir", "--rescan")
"""Flags of train.py that leave the work of a step as the loop by hand does it, and which that loop does not
take."""
MEASURED_ONLY = {
    "epochs": 1_000_000,
    "save_every_minutes": 0,
    "lr": 1e-3,
    "warmup_epochs": 0,
    "schedule": "constant",
}
"""Settings of a run that is only measured: as many epochs as it takes, and a learning rate that neither
learns nor diverges."""
FULL_SIZE = {"image_size_start": None, "image_size_ramp": None}
"""Settings with which images that grow have their last size from the start: a short run stands for that."""
GENTLER = {"detection": {"lr": 1e-5}}
"""--task -> what differs: detectors start from nothing here, and their losses are sums over many boxes."""
ARCHS = {
    "classification": ("resnet18", "resnet50"),
    "detection": ("fasterrcnn_resnet50_fpn", "ssd300_vgg16"),
    "video": ("r3d_18",),
}
BATCH_SIZES = {"classification": (64, 256, 512), "detection": (16,), "video": (8, 16)}
"""--task -> what is measured where none is asked for; of another task its own default."""
RECIPES = {
    "plain": (),
    "augmented": (
        *("--auto-augment", "rand-m9-mstd0.5-inc1", "--mixup", "0.8", "--cutmix", "1"),
        *("--erase", "0.25", "--erase-mode", "pixel"),
    ),
    "ema": ("--ema", "0.9999"),
}
"""Recipe -> its flags of train.py."""
MORE = {"clips": ("frames_per_s", "decoded_per_delivered"), "detection": ("instances_per_s", "padding")}
"""Part of a summary that one task has -> its figures."""
CHECK_FAILED = "check failed"
LEAST_FOR_P99 = 200
"""Steps."""


class Train(Common):
    """Rate, ceilings, efficiency and bound of training, per architecture, batch size, loader and
    precision."""

    task: str = "classification"
    """Task of the run, as --task of train.py."""
    data: FolderOrUrl = None
    """Folder as --data of train.py for the task. Not needed with --loaders synthetic."""
    archs: tuple[str, ...] | None = None
    """Architectures of the task, by torchvision's names. Default: resnet18 resnet50; fasterrcnn_resnet50_fpn
    ssd300_vgg16; r3d_18."""
    batch_sizes: tuple[PositiveInt, ...] | None = None
    """Samples a rank and step. Default: 64 256 512; of detectors 16, of clips 8 16."""
    loaders: tuple[str, ...] = ("auto",)
    """Names as in --loader of train.py."""
    precisions: tuple[Literal["auto", "fp16", "bf16", "fp32"], ...] = ("auto",)
    """auto = fp16 on a GPU."""
    recipes: tuple[Literal["plain", "augmented", "ema"], ...] = ("plain",)
    """plain crops and flips; augmented adds RandAugment, mixup or cutmix, and erasing; ema plain's average of
    weights. Plots are of plain."""
    gpus: tuple[PositiveInt, ...] = (1,)
    """Processes, one a GPU (on a CPU: gloo)."""
    workers: PositiveInt | None = None
    """A rank, for our loaders and the loop by hand. Default: CPU cores / ranks, less one."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 10.0
    """Seconds of steady windows to measure at each point, after the warm-up."""
    by_hand: tuple[Literal["dali", "dali-cpu", "torchvision"], ...] = ()
    """Also time the loop that one writes by hand with these libraries (benchmarks/baselines/train.py): in
    fp16 on one GPU, in fp32 without. dali decodes on the GPU, dali-cpu on the CPU; detectors: torchvision."""
    flags: str = ""
    """More flags of train.py, for every point; better written last, after a bare --."""


def check(
    words: str,
    *,
    task: str = "classification",
    by_hand: bool = False,
    more: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> Config:
    """Return the settings of these flags of train.py. Raises UserError for flags that do not parse, or that a
    suite sets itself: OWN, and its `own`.

    `by_hand`: also for those that the loop by hand would do without; `more` are flags that the suite gives to
    both.
    """
    try:
        given = shlex.split(words)
    except ValueError as error:
        raise UserError(f"--flags {words}: {error}") from None
    names = [word.partition("=")[0].replace("_", "-") for word in given if word.startswith("--")]
    taken = sorted({*names} & {*OWN, *own})
    if taken:
        raise UserError(f"{taken[0]} behind -- is what the suite sets itself; use its own flags")
    config = parse(["--task", task, *given])
    kind_of(config)
    apart = [name for name in names if name not in (*SAME_WORK, *more)] if by_hand else []
    if apart:
        allowed = ", ".join((*SAME_WORK, *more))
        raise UserError(
            f"{apart[0]} behind -- with --by-hand: the loop by hand does not take it; leave out one of them, "
            f"or use {allowed}"
        )
    return config


def require_data(
    data: str | None,
    loaders: Collection[str],
    config: Config,
    *,
    validates: bool = False,
    by_hand: bool = False,
) -> None:
    """Raise UserError when there is nothing for them to train on, as far as names of files tell.

    `config` are the other settings of the runs, which need no val where none of them `validates`. Loops
    written `by_hand` open files of this machine.
    """
    if by_hand and data is not None and is_url(data):
        raise UserError("--by-hand reads files of this machine, and --data is a URL; leave --by-hand out")
    content = kind_of(config).content(config)
    if data is not None:
        require_splits(config.data.model_copy(update={"data": data}), content, validates=validates)
    elif {*loaders} != {"synthetic"}:
        must_be = holds(content, config.data.source)
        raise UserError(f"--data is missing: {must_be}, or the loader synthetic alone")


def require_same_pixels(task: str, archs: Sequence[str]) -> None:
    """Raise UserError for a classifier that trains at another size than the loop by hand."""
    for arch in archs if task == "classification" else ():
        registry, _ = architecture(kind_named(task), arch)
        if (size := registry.native(arch).size) != loop_by_hand.SIDE:
            raise UserError(
                f"--by-hand: the loop by hand trains at {loop_by_hand.SIDE} px, {arch} at {size}: leave out "
                "one of them"
            )


def precision_by_hand() -> str:
    """Return the precision that the loop by hand trains in."""
    return "fp16" if torch.cuda.is_available() else "fp32"


def points(settings: Train) -> list[Point]:
    task = one_of("--task", settings.task, TASKS)
    kind = kind_named(task)
    archs = ARCHS.get(task, (kind.arch,)) if settings.archs is None else settings.archs
    batch_sizes = settings.batch_sizes or BATCH_SIZES.get(task, (Config().loading.batch_size,))
    for arch in archs:
        architecture(kind, arch, "--archs")
    if settings.by_hand:
        require_same_pixels(task, archs)
    for name in settings.by_hand:
        if name not in (known := BY_HAND_OF.get(task, ())):
            allowed = " or ".join(known)
            raise UserError(
                f"--by-hand {name}: there is no such loop for --task {task}; "
                f"{f'take {allowed}' if allowed else 'it has none'}"
            )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    auto = kind.default_loader(gpu=device.type == "cuda")
    loaders = [one_of("--loaders", name, kind.loaders, auto=auto) for name in settings.loaders]
    require_gpus(settings.gpus, torch.cuda.device_count())
    by_hand = bool(settings.by_hand)
    given = check(settings.flags, task=task, by_hand=by_hand)
    require_data(settings.data, settings.loaders, given, by_hand=by_hand)
    precisions = [precision.choose(name, device, on_cpu=kind.cpu_precision) for name in settings.precisions]
    named = ("arch", "batch_size", "loader", "precision", "gpus", "recipe")
    found = []
    for arch, size in itertools.product(archs, batch_sizes):
        ours = itertools.product([arch], [size], loaders, precisions, settings.gpus, settings.recipes)
        # right behind its own: a machine's speed drifts
        loops = [BY_HAND + how for how in settings.by_hand]
        others = itertools.product([arch], [size], loops, [precision_by_hand()], [1], ["plain"])
        found += [dict(zip(named, values, strict=True)) for values in (*ours, *others)]
    return found


def command(settings: Train, point: Point, folder: Path) -> list[str]:
    common = ["--task", settings.task]
    if settings.data:
        common += ["--data", settings.data if is_url(settings.data) else os.path.abspath(settings.data)]
    by_hand = point["loader"].startswith(BY_HAND)
    workers = settings.workers or (default_workers(gpu=torch.cuda.is_available()) if by_hand else None)
    common += ["--workers", str(workers)] if workers else []
    if by_hand:
        how = {
            "arch": point["arch"],
            "batch_size": point["batch_size"],
            "loader": point["loader"].removeprefix(BY_HAND),
        }
        flags = words({**how, "seconds": settings.seconds, "output": folder / "figures.json"})
        return [sys.executable, "-m", "benchmarks.baselines.train", *common, *flags]
    named = {name: point[name] for name in ("arch", "batch_size", "loader", "precision")}
    fixed = {**MEASURED_ONLY, **GENTLER.get(settings.task, {})}
    flags = words({**named, "seconds": settings.seconds, "val_every": 0, **fixed, "output": folder})
    return [
        sys.executable,
        *ranks(point["gpus"]),
        str(ROOT / "train.py"),
        *common,
        *flags,
        *RECIPES[point.get("recipe", "plain")],
        *shlex.split(settings.flags),
    ]


def words(flags: Mapping[str, Any]) -> list[str]:
    """Return settings as the flags that train.py takes."""
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def read(point: Point, folder: Path) -> Measured:
    if point["loader"].startswith(BY_HAND):
        told = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
        kept = steady([RateWindow(samples, samples, seconds, 0) for samples, seconds in told["windows"]])
        rates = [window.rate for window in kept]  # by the same rule as ours
        found = spread(rates)
        rate = statistics.median(rates) if rates else None
        # as train.py shows its own: a page of HPARAMS has the columns of one of its runs
        board = Board(folder)
        row = {name: point[name] for name in SETTINGS if name in point} | {"world_size": 1}
        board.hparams(row, metrics(compared()))
        board.scalars({"throughput/samples_per_s": rate}, told["steps"])
        board.close()
        return Measured(
            figures={"rate": rate, "steps": told["steps"]}, spread={"rate": found} if found else {}
        )
    for weights in folder.glob("*.pt"):
        weights.unlink()  # of a network that has learned nothing
    told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    outcome = measured(told)
    if told["batch_size"] == point["batch_size"]:
        return outcome
    few = f"--data has too few samples for batches of {point['batch_size']}, it was {told['batch_size']}"
    return replace(outcome, error=few)


def measured(told: dict[str, Any]) -> Measured:
    """Return the figures of a run's summary."""
    rate = told["rate"]
    ceiling = told["ceiling"]
    gpu = told["gpu"]
    memory = told["memory"]
    part: dict[str, Any] = {name: ceiling[name] or {} for name in ("compute", "loader")}
    power = gpu["power_w"] and gpu["power_w"] * told["world_size"]  # of all GPUs: a summary has their mean
    timed = told.get("step_ms") or {}
    spreads = {
        "rate": rate["spread"],
        **{f"{name}_ceiling": found["spread"] for name, found in part.items() if found},
    }
    return Measured(
        figures={
            "rate": rate["steady"],
            "unit": rate["unit"],
            "first_epoch": rate["first_epoch"],
            **{f"{name}_ceiling": found.get("rate") for name, found in part.items()},
            "efficiency": told["efficiency"],
            "bound": told["bound"] or (CHECK_FAILED if told["check"] not in ("passed", None) else None),
            **{name: (told.get(part) or {}).get(name) for part, names in MORE.items() for name in names},
            "data_wait_ms": (told["data_wait"] or {}).get("ms"),
            "step_p50_ms": timed.get("p50"),
            "step_growth": timed["early"] / timed["late"] if "late" in timed else None,
            "step_p99_ms": timed.get("p99") if timed.get("n", 0) >= LEAST_FOR_P99 else None,
            **{name: memory[name] for name in ("device_gib", "allocated_gib", "host_gib")},
            **{f"gpu_{name}" if name == "utilisation" else name: found for name, found in gpu.items()},
            "cpu_utilisation": told["cpu"]["utilisation"],
            "cpu_steal": told["cpu"].get("steal"),
            "img_per_s_w": rate["steady"] / power if rate["steady"] and power else None,
            "steps": timed.get("n"),
        },
        spread={name: found for name, found in spreads.items() if found},
        versions=told["versions"],
        hardware=told["hardware"],
    )


def derive(rows: Sequence[Row]) -> list[Row]:
    """Return the bound of a point that was repeated, from its medians: each of its processes has one of its
    own."""

    def one(row: Row) -> Row:
        figures = row["figures"]
        if not figures.get("repeats") or "bound" not in figures:
            return row
        efficiency, found = bound(
            *(figures.get(name) for name in ("rate", "compute_ceiling", "loader_ceiling"))
        )
        return {**row, "figures": {**figures, "bound": found or (CHECK_FAILED if efficiency else None)}}

    return [one(row) for row in rows]


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    rows = [
        row for row in rows if row["point"].get("recipe", "plain") == "plain"
    ]  # or taken before there were
    ours = [row for row in rows if not row["point"]["loader"].startswith(BY_HAND)]
    unit = _show.unit_of(rows)
    drawn = [
        _plots.heat_map(
            folder / f"heat-{loader}-{precision}-{gpus}.png",
            same,
            x="batch_size",
            y="arch",
            figure="rate",
            title=title,
        )
        for loader, its in _show.by(ours, "loader").items()
        for precision, these in _show.by(its, "precision").items()
        for gpus, same in _show.by(these, "gpus").items()
        for title in [
            f"{unit}, {loader}, {precision}, {gpus} process{'es' if gpus > 1 else ''} (colour: share of the "
            "row's best)"
        ]
    ]
    groups = _show.grouped(
        rows, lambda row: (row["point"]["batch_size"], row["point"]["precision"], row["point"]["gpus"])
    )
    for (size, precise, gpus), same in groups.items():
        archs, loaders = (list(_show.by(same, name)) for name in ("arch", "loader"))

        def each(
            figure: str, rows: Sequence[Row] = same, archs: list[str] = archs, loaders: list[str] = loaders
        ) -> _plots.Series:
            return {
                loader: [_show.best(rows, figure, loader=loader, arch=arch) for arch in archs]
                for loader in loaders
            }

        title = (
            f"{unit} at batch {size}, {precise}, {_show.processes(gpus)}, with the compute (line) and "
            "the loader (dots) ceiling"
        )
        marks = {f"{name} ceiling": each(f"{name}_ceiling") for name in ("compute", "loader")}
        path = folder / f"bars-{size}-{precise}-{gpus}.png"
        drawn.append(_plots.bars(path, archs, each("rate"), title=title, unit=unit, marks=marks))
    return drawn


COLUMNS = (
    *(
        Column(key=key, title=key.replace("_", " "))
        for key in ("arch", "batch_size", "loader", "precision", "gpus", "recipe")
    ),
    Column(key="rate", title="{unit}", form=Rates()),
    Column(key="frames_per_s", title="frame/s", form="{:,.0f}"),
    Column(key="instances_per_s", title="box/s", form="{:,.0f}"),
    Column(key="compute_ceiling", title="compute ceiling", form="{:,.0f}"),
    Column(key="loader_ceiling", title="loader ceiling", form="{:,.0f}"),
    Column(key="efficiency", title="efficiency", form="{:.1%}"),
    Column(key="bound", title="bound"),
    Column(key="data_wait_ms", title="data wait, ms", form="{:.2f}"),
    Column(key="decoded_per_delivered", title="decoded / delivered", form="{:.2f}", detail=True),
    Column(key="padding", title="padding", form="{:.1%}", detail=True),
    Column(key="step_p50_ms", title="step p50, ms", form="{:.1f}", detail=True),
    Column(key="step_p99_ms", title="p99", form="{:.1f}", detail=True),
    Column(key="step_growth", title="steps 10-29 / 1000-1099", form="{:.3f}", detail=True),
    Column(key="first_epoch", title="first epoch, {unit}", form="{:,.0f}", detail=True),
    Column(key="device_gib", title="GPU GiB", form="{:.1f}", detail=True),
    Column(key="host_gib", title="host GiB", form="{:.1f}", detail=True),
    Column(key="gpu_utilisation", title="GPU busy", form="{:.0%}", detail=True),
    Column(key="power_w", title="W a GPU", form="{:.0f}", detail=True),
    Column(key="img_per_s_w", title="{unit}/W", form="{:.1f}"),
    Column(key="cpu_utilisation", title="CPU busy", form="{:.0%}", detail=True),
)

SUITE = Suite(
    name="train",
    about=f"samples a second of all ranks while training; at least {LEAST} windows of 2 s after the warm-up",
    settings=Train,
    points=points,
    command=command,
    read=read,
    columns=COLUMNS,
    rate="rate",
    derive=derive,
    plots=plots,
)
