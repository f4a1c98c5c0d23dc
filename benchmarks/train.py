"""`train`: runs of train.py over a table of axes, each with its two ceilings and the parts of a step.

Times nothing itself: every figure is of a run's summary.json, or of the loop by hand.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt

from benchmarks._suite import (
    LEAST,
    REPEAT,
    ROOT,
    Column,
    Common,
    Measured,
    Point,
    Rates,
    Row,
    Suite,
    axis_columns,
    beyond_noise,
    crossed,
    grouped,
    of_baseline,
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
from report.summary import PHASES
from report.tensorboard import SETTINGS, Board, metrics
from settings.cli import FolderOrUrl, one_of
from settings.config import Config, parse
from tasks import TASKS, architecture, compared, kind_named, kind_of

BY_HAND = "by hand: "
BY_HAND_OF = {
    "classification": ("dali", "dali-cpu", "torchvision"),
    "detection": ("torchvision",),
    "superres": ("torchvision",),
}
"""--task -> the loops of benchmarks/baselines/train.py; another task has none."""
EAGER: Final = "eager"
OWN = {
    *(
        "--task",
        "--arch",
        "--batch-size",
        "--loader",
        "--precision",
        "--seconds",
        "--output",
        "--data",
    ),
    *("--resume", "--epochs", "--steps", "--seed"),
}
"""Flags of train.py that are a point's, or this suite's."""
AXES: dict[str, tuple[str, tuple[str, ...], Callable[[Any], list[str]]]] = {
    "image_size": (
        "image_sizes",
        ("--image-size",),
        lambda size: ["--image-size", str(size)],
    ),
    "workers": ("workers", ("--workers",), lambda count: ["--workers", str(count)]),
    "memory": (
        "memory",
        ("--pin-memory",),
        lambda kind: ["--pin-memory", _word(kind == "pinned")],
    ),
    "step": (
        "steps",
        ("--compile", "--graphs"),
        lambda step: [
            "--compile",
            _word("compile" in step),
            "--graphs",
            _word("graphs" in step),
        ],
    ),
}
"""Axis that is left to train.py where nothing is asked -> setting, flags that are a point's, its words."""
SAME_WORK = (
    "--min-window-s",
    "--log-every",
    "--manifest-dir",
    "--rescan",
    "--ceilings",
)
"""Flags of train.py that leave a step's work as the loop by hand, which does not take them, does it."""
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
MIXED = (
    "--mixup",
    "0.2",
    "--cutmix",
    "1",
    "--erase",
    "0.25",
    "--auto-augment",
    "rand-m7-mstd0.5-inc1",
)
RECIPES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "augmented": (
        *("--auto-augment", "rand-m9-mstd0.5-inc1", "--mixup", "0.8", "--cutmix", "1"),
        *("--erase", "0.25", "--erase-mode", "pixel"),
    ),
    "ema": ("--ema", "0.9999"),
    "none": ("--train-window", "center", "--flip", "0"),
    "mixed": MIXED,
    "regularised": (
        *MIXED,
        "--mix-prob",
        "0.5",
        "--label-smoothing",
        "0.1",
        "--ema",
        "0.99",
    ),
}
"""Recipe -> its flags of train.py."""
SUMMARY_PARTS = {
    "clips": ("frames_per_s", "decoded_per_delivered"),
    "detection": ("instances_per_s", "padding"),
    "validation": ("top1", "ema_top1"),
}
"""Part of a summary that not every run has -> its figures."""
CHECK_FAILED = "check failed"
LEAST_FOR_P99 = 200
"""Steps."""


def _word(on: bool) -> str:
    return str(on).lower()


class Train(Common):
    """Rate, ceilings, bound and the parts of a step, over every combination of what is asked for."""

    task: str = "classification"
    """Task of the run, as --task of train.py."""
    data: FolderOrUrl = None
    """Folder as --data of train.py for the task. Not needed with --loaders synthetic."""
    sets: tuple[str, ...] = ()
    """Folders below --data, each of which is trained on, as scripts.pack and scripts.patch_set make them."""
    archs: tuple[str, ...] | None = None
    """Architectures of the task, by torchvision's names. Default: resnet18 resnet50; fasterrcnn_resnet50_fpn
    ssd300_vgg16; r3d_18."""
    batch_sizes: tuple[PositiveInt, ...] | None = None
    """Samples a rank and step. Default: 64 256 512; of detectors 16, of clips 8 16."""
    loaders: tuple[str, ...] = ("auto",)
    """Names as in --loader of train.py."""
    precisions: tuple[Literal["auto", "fp16", "bf16", "fp32"], ...] = ("auto",)
    """auto = fp16 on a GPU."""
    recipes: tuple[
        Literal["plain", "augmented", "ema", "none", "mixed", "regularised"], ...
    ] = ("plain",)
    """plain crops and flips; augmented adds RandAugment, mixup or cutmix, and erasing; ema plain's average of
    weights; none neither crops nor flips; mixed and regularised are those of docs/recipes.md."""
    gpus: tuple[PositiveInt, ...] = (1,)
    """Processes, one a GPU (on a CPU: gloo)."""
    image_sizes: tuple[PositiveInt, ...] = ()
    """Sides of the training images, pixels. Default: the architecture's."""
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
    by_hand: tuple[Literal["dali", "dali-cpu", "torchvision"], ...] = ()
    """Also time the loop that one writes by hand with these libraries (benchmarks/baselines/train.py): in
    fp16 on one GPU, in fp32 without. dali decodes on the GPU, dali-cpu on the CPU; other
    tasks: torchvision."""
    flags: str = ""
    """More flags of train.py, for every point; better written last, after a bare --."""


def check(
    words: str,
    *,
    task: str = "classification",
    by_hand: bool = False,
    more: tuple[str, ...] = (),
    own: Collection[str] = (),
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
    names = [
        word.partition("=")[0].replace("_", "-")
        for word in given
        if word.startswith("--")
    ]
    taken = sorted({*names} & {*OWN, *own})
    if taken:
        raise UserError(
            f"{taken[0]} behind -- is what the suite sets itself; use its own flags"
        )
    config = parse(["--task", task, *given])
    kind_of(config)
    allowed = (*SAME_WORK, *more)
    apart = [name for name in names if name not in allowed] if by_hand else []
    if apart:
        raise UserError(
            f"{apart[0]} behind -- with --by-hand: the loop by hand does not take it; leave out one of them, "
            f"or use {', '.join(allowed)}"
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
        raise UserError(
            "--by-hand reads files of this machine, and --data is a URL; leave --by-hand out"
        )
    content = kind_of(config).content(config)
    if data is not None:
        require_splits(
            config.data.model_copy(update={"data": data}), content, validates=validates
        )
    elif {*loaders} != {"synthetic"}:
        must_be = holds(content, config.data.source)
        raise UserError(f"--data is missing: {must_be}, or the loader synthetic alone")


def require_same_pixels(
    task: str, archs: Sequence[str], image_sizes: Sequence[int] = ()
) -> None:
    """Raise UserError for a classifier that trains at another size than the loop by hand."""
    for arch in archs if task == "classification" else ():
        registry, _ = architecture(kind_named(task), arch)
        size = next(
            (size for size in image_sizes if size != loop_by_hand.SIDE),
            registry.native(arch).size,
        )
        if size != loop_by_hand.SIDE:
            raise UserError(
                f"--by-hand: the loop by hand trains at {loop_by_hand.SIDE} px, {arch} at {size}: leave out "
                "one of them"
            )


def data_of(settings: Train, name: str | None) -> str | None:
    """Return --data of a point: the whole, or the folder `name` below it; an absolute path, or a URL."""
    if settings.data is None:
        return None
    whole = settings.data if is_url(settings.data) else os.path.abspath(settings.data)
    return f"{whole.rstrip('/')}/{name}" if name else whole


def points(settings: Train) -> list[Point]:
    """Return the points; those that are compared follow each other, for a machine's speed drifts."""
    task = one_of("--task", settings.task, TASKS)
    kind = kind_named(task)
    archs = ARCHS.get(task, (kind.arch,)) if settings.archs is None else settings.archs
    batch_sizes = settings.batch_sizes or BATCH_SIZES.get(
        task, (Config().loading.batch_size,)
    )
    for arch in archs:
        architecture(kind, arch, "--archs")
    for name in settings.by_hand:
        if name not in (known := BY_HAND_OF.get(task, ())):
            allowed = f"take {' or '.join(known)}" if known else "it has none"
            raise UserError(
                f"--by-hand {name}: there is no such loop for --task {task}; {allowed}"
            )
    by_hand = bool(settings.by_hand)
    if by_hand:
        require_same_pixels(task, archs, settings.image_sizes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    auto = kind.default_loader(gpu=device.type == "cuda")
    loaders = [
        one_of("--loaders", name, kind.loaders, auto=auto) for name in settings.loaders
    ]
    require_gpus(settings.gpus, torch.cuda.device_count())
    asked = {axis: getattr(settings, field) for axis, (field, _, _) in AXES.items()}
    config = check(
        settings.flags,
        task=task,
        by_hand=by_hand,
        more=("--patch-size", "--scale") if task == "superres" else (),
        own=[
            flag
            for axis, (_, flags, _) in AXES.items()
            if asked[axis]
            for flag in flags
        ],
    )
    for place in crossed(set=settings.sets):
        data = data_of(settings, place.get("set"))
        require_data(
            data,
            loaders,
            config,
            validates=settings.epochs is not None,
            by_hand=by_hand,
        )
    precisions = [
        precision.choose(name, device, on_cpu=kind.cpu_precision)
        for name in settings.precisions
    ]
    shown = [
        {"arch": arch, "batch_size": size} for arch in archs for size in batch_sizes
    ]
    return [
        point
        for first in shown
        for place in crossed(set=settings.sets)
        for point in (
            *(
                first | {"loader": own["loader"]} | place | own
                for own in crossed(
                    loader=loaders,
                    precision=precisions,
                    gpus=settings.gpus,
                    recipe=settings.recipes,
                    **asked,
                )
            ),
            *(
                first | {"loader": BY_HAND + library} | place | own
                for library in settings.by_hand
                for own in crossed(
                    precision=[precision_by_hand()],
                    gpus=[1],
                    recipe=["plain"],
                    workers=settings.workers,
                )
            ),
        )
    ]


def precision_by_hand() -> str:
    """Return the precision that the loop by hand trains in."""
    return "fp16" if torch.cuda.is_available() else "fp32"


def command(settings: Train, point: Point, folder: Path) -> list[str]:
    """Return the command of train.py, or of the loop by hand."""
    data = data_of(settings, point.get("set"))
    common = {"task": settings.task, **({"data": data} if data else {})}
    if point["loader"].startswith(BY_HAND):
        same = {name: point[name] for name in ("arch", "batch_size")}
        same["loader"] = point["loader"].removeprefix(BY_HAND)
        same["workers"] = point.get(
            "workers", default_workers(gpu=torch.cuda.is_available())
        )
        output = folder / "figures.json"
        flags = words({**common, **same, "seconds": settings.seconds, "output": output})
        return [sys.executable, "-m", "benchmarks.baselines.train", *flags]
    same = {name: point[name] for name in ("arch", "batch_size", "loader", "precision")}
    if settings.epochs is None:
        length = {"seconds": settings.seconds, "val_every": 0, **MEASURED_ONLY}
        length |= GENTLER.get(settings.task, {})
    else:
        length = {
            "epochs": settings.epochs,
            "val_every": settings.epochs,
            "seed": point.get(REPEAT, 0),
        }
        length |= {"ceilings": "false", "save_every_minutes": 0}
    own = [
        word
        for axis, (_, _, flags) in AXES.items()
        if axis in point
        for word in flags(point[axis])
    ]
    return [
        sys.executable,
        *ranks(point["gpus"]),
        str(ROOT / "train.py"),
        *words({**common, **same, **length, "output": folder}),
        *own,
        *RECIPES[point["recipe"]],
        *shlex.split(settings.flags),
    ]


def words(flags: Mapping[str, Any]) -> list[str]:
    """Return settings as the flags that train.py takes."""
    return [
        word
        for name, value in flags.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def read(point: Point, folder: Path) -> Measured:
    """Return the figures of a point from the files that its program has left."""
    if point["loader"].startswith(BY_HAND):
        return _read_by_hand(
            point, json.loads((folder / "figures.json").read_text("utf-8")), folder
        )
    for weights in folder.glob("*.pt"):
        weights.unlink()  # of a network that nobody asks for
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    outcome = measured(summary)
    if summary["batch_size"] != point["batch_size"]:
        few = (
            f"--data has too few samples for batches of {point['batch_size']}, it was "
        )
        return replace(outcome, error=f"{few}{summary['batch_size']}")
    if summary.get(
        "validation"
    ):  # it was trained for its accuracy, and may have been short
        kept = {name: its for name, its in outcome.spread.items() if name != "rate"}
        return replace(outcome, spread=kept, figures=outcome.figures | {"steps": None})
    return outcome


def _read_by_hand(point: Point, record: dict[str, Any], folder: Path) -> Measured:
    windows = steady(
        [
            RateWindow(samples, samples, seconds, 0)
            for samples, seconds in record["windows"]
        ]
    )
    rates = [window.rate for window in windows]  # by the same rule as ours
    rate = statistics.median(rates) if rates else None
    # as train.py shows its own: a page of HPARAMS has the columns of one of its runs
    board = Board(folder)
    board.hparams(
        {name: point[name] for name in SETTINGS if name in point} | {"world_size": 1},
        metrics(compared()),
    )
    board.scalars({"throughput/samples_per_s": rate}, record["steps"])
    board.close()
    its = spread(rates)
    return Measured(
        figures={"rate": rate, "steps": record["steps"]},
        spread={"rate": its} if its else {},
    )


def measured(summary: dict[str, Any]) -> Measured:
    """Return the figures of a run's summary."""
    rate = summary["rate"]
    gpu = summary["gpu"]
    ceilings: dict[str, Any] = {
        name: summary["ceiling"][name] or {} for name in ("compute", "loader")
    }
    # of all GPUs: a summary has their mean
    power = gpu["power_w"] and gpu["power_w"] * summary["world_size"]
    timed = summary.get("step_ms") or {}
    spreads = {
        "rate": rate["spread"],
        **{f"{name}_ceiling": its.get("spread") for name, its in ceilings.items()},
    }
    check_failed = CHECK_FAILED if summary["check"] not in ("passed", None) else None
    return Measured(
        figures={
            "rate": rate["steady"],
            "unit": rate["unit"],
            "first_epoch": rate["first_epoch"],
            **{f"{name}_ceiling": its.get("rate") for name, its in ceilings.items()},
            "efficiency": summary["efficiency"],
            "bound": summary["bound"] or check_failed,
            **{
                name: (summary.get(part) or {}).get(name)
                for part, names in SUMMARY_PARTS.items()
                for name in names
            },
            **{
                f"{name}_ms": value
                for name, value in (summary.get("split_ms") or {}).items()
            },
            "data_wait_ms": (summary["data_wait"] or {}).get("ms"),
            "step_p50_ms": timed.get("p50"),
            "step_growth": timed["early"] / timed["late"] if "late" in timed else None,
            "step_p99_ms": timed.get("p99")
            if timed.get("n", 0) >= LEAST_FOR_P99
            else None,
            **{
                name: summary["memory"][name]
                for name in ("device_gib", "allocated_gib", "host_gib")
            },
            **{
                f"gpu_{name}" if name == "utilisation" else name: value
                for name, value in gpu.items()
            },
            "cpu_utilisation": summary["cpu"]["utilisation"],
            "cpu_steal": summary["cpu"].get("steal"),
            "img_per_s_w": rate["steady"] / power if rate["steady"] and power else None,
            "steps": timed.get("n"),
        },
        spread={name: its for name, its in spreads.items() if its},
        versions=summary["versions"],
        hardware=summary["hardware"],
    )


def derive(rows: Sequence[Row]) -> list[Row]:
    """Add `of_eager`, the ratio to the rate of eager steps, and the bound of a point that was repeated, from
    its medians: each of its processes has one of its own."""
    derived = of_baseline(rows, "rate", {"of_eager": {"step": EAGER}})
    for row in derived:
        figures = row["figures"]
        if figures.get("repeats") and "bound" in figures:
            ceilings = (
                figures.get(name)
                for name in ("rate", "compute_ceiling", "loader_ceiling")
            )
            efficiency, name = bound(*ceilings)
            figures["bound"] = name or (CHECK_FAILED if efficiency else None)
    return derived


def conclude(rows: Sequence[Row]) -> list[str]:
    """Compare pairs that differ in nothing but pinned memory. Beyond noise: their runs do not overlap, and no
    such pair says the contrary."""
    good = [row for row in rows if row["status"] == "ok" and "memory" in row["point"]]
    pairs: list[tuple[float, bool | None, str]] = []
    for alike in grouped(
        good, lambda row: str({**row["point"], "memory": None})
    ).values():
        rates = {row["point"]["memory"]: row for row in alike}
        if len(rates) == 2:
            pinned, pageable = rates["pinned"], rates["pageable"]
            share = pinned["figures"]["rate"] / pageable["figures"]["rate"] - 1
            pairs.append(
                (
                    share,
                    beyond_noise(SUITE, pinned, pageable),
                    f"batch {pinned['point']['batch_size']}",
                )
            )
    if not pairs:
        return []
    largest, _, where = max(pairs, key=lambda pair: abs(pair[0]))
    if not good[0]["hardware"].get("gpu"):
        return [
            "Pinned memory is for a GPU: without one the two differ by noise alone, here up to "
            f"{abs(largest):.1%} ({where})."
        ]
    if all(judged is None for _, judged, _ in pairs):
        return [
            f"Pinned memory: {largest:+.1%} at {where}, one run each; --repeats {LEAST} tells a difference "
            "from noise."
        ]
    beyond = [pair for pair in pairs if pair[1]]
    if len({share > 0 for share, *_ in beyond}) != 1:
        return [
            f"Pinned memory makes no difference beyond the noise (the largest: {largest:+.1%}, {where})."
        ]
    share, _, where = max(beyond, key=lambda pair: abs(pair[0]))
    return [
        f"Pinned memory: {share:+.1%} at {where}, beyond the noise in {len(beyond)} of {len(pairs)} pairs."
    ]


COLUMNS = (
    *axis_columns(
        "arch", "batch_size", "loader", "precision", "gpus", "recipe", "set", *AXES
    ),
    Column(key="rate", title="{unit}", form=Rates()),
    Column(key="top1", title="top-1", form="{:.1%}"),
    Column(key="ema_top1", title="top-1 of the average", form="{:.1%}"),
    Column(key="of_eager", title="times eager", form="{:.2f}"),
    Column(key="frames_per_s", title="frame/s", form="{:,.0f}"),
    Column(key="instances_per_s", title="box/s", form="{:,.0f}"),
    Column(key="compute_ceiling", title="compute ceiling", form="{:,.0f}"),
    Column(key="loader_ceiling", title="loader ceiling", form="{:,.0f}"),
    Column(key="efficiency", title="efficiency", form="{:.1%}"),
    Column(key="bound", title="bound"),
    Column(key="data_wait_ms", title="data wait, ms", form="{:.2f}"),
    *(
        Column(key=f"{name}_ms", title=f"{name}, ms", form="{:.2f}", detail=True)
        for name in PHASES
        if name != "data_wait"
    ),
    Column(
        key="decoded_per_delivered",
        title="decoded / delivered",
        form="{:.2f}",
        detail=True,
    ),
    Column(key="padding", title="padding", form="{:.1%}", detail=True),
    Column(key="step_p50_ms", title="step p50, ms", form="{:.1f}", detail=True),
    Column(key="step_p99_ms", title="p99", form="{:.1f}", detail=True),
    Column(
        key="step_growth", title="steps 10-29 / 1000-1099", form="{:.3f}", detail=True
    ),
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
    conclude=conclude,
    over=("batch_size", "workers", "gpus", "arch", "step"),
    curves=(
        "rate",
        "compute_ceiling",
        "loader_ceiling",
        "efficiency",
        "gpu_utilisation",
        "power_w",
    ),
)
