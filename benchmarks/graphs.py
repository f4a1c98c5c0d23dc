"""`graphs`: what a CUDA graph and torch.compile give, a network and a batch size after the other.

Each point is a run of train.py as `train` has it, and its rate stands beside that of eager steps; `by-hand`
is the loop that one writes with the loader's library. A plot shows how each run began. Times nothing itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _plots, _show, _starts, train
from benchmarks._suite import LEAST, Column, Common, Measured, Point, Row, Suite
from benchmarks.workers import EAGER
from contracts import UserError
from settings.cli import FolderOrUrl, one_of
from tasks import architecture
from tasks.classification import KIND

BY_HAND = "by-hand"
LOOPS = {"dali-gpu": "dali", "dali-cpu": "dali-cpu", "torchvision": "torchvision"}
"""--loader -> the loop by hand with its library."""


class Graphs(Common):
    """Rate by network, batch size and how a step is launched, and how many times eager's that is."""

    data: FolderOrUrl = None
    """Folder with train/<class>/* and val/<class>/*. Not needed with --loader synthetic."""
    archs: tuple[str, ...] = (
        "resnet18",
        "shufflenet_v2_x0_5",
        "mobilenet_v3_large",
        "convnext_tiny",
        "vit_b_16",
    )
    """Architectures of torchvision.models."""
    batch_sizes: tuple[PositiveInt, ...] = (8, 64, 512)
    """Samples a step."""
    steps: tuple[Literal["eager", "graphs", "compile", "compile+graphs", "by-hand"], ...] = (
        "eager",
        "graphs",
        "compile+graphs",
    )
    """How a step is launched: kernel by kernel (eager), as one CUDA graph, with torch.compile, with both.
    by-hand: no run of ours, but the loop by hand (benchmarks/baselines/train.py) with the loader's library,
    dali for dali-gpu."""
    loader: str = "auto"
    """Loader of the runs, as --loader of train.py; auto = dali-gpu with a GPU, else torchvision."""
    precision: Literal["auto", "fp16", "bf16", "fp32"] = "auto"
    """auto = fp16 on a GPU. Steps by-hand are fp16 there and fp32 on a CPU; auto is then the same for all."""
    workers: PositiveInt | None = None
    """Worker processes or threads, as --workers of train.py. Default: all cores but one."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 5.0
    """Seconds of steady windows to measure at each point, after the warm-up."""
    flags: str = ""
    """More flags of train.py, for every point; better written last, after a bare --."""


def points(settings: Graphs) -> list[Point]:
    """Return the points; those that are compared follow each other, for a machine's speed drifts."""
    auto = KIND.default_loader(gpu=torch.cuda.is_available())
    loader = one_of("--loader", settings.loader, KIND.loaders, auto=auto)
    for arch in settings.archs:
        architecture(KIND, arch, "--archs")
    by_hand = BY_HAND in settings.steps
    config = train.check(settings.flags, by_hand=by_hand, more=("--ceilings",), own=("--compile", "--graphs"))
    train.require_data(settings.data, [loader], config, by_hand=by_hand)
    precision: str = settings.precision
    if by_hand:
        one_of("--loader", loader, LOOPS)
        train.require_same_pixels("classification", settings.archs)
        precision = train.precision_by_hand()
        if settings.precision not in ("auto", precision):
            raise UserError(
                f"--precision {settings.precision}: the loop by hand trains in {precision} here; leave out "
                f"one of them, or use {precision}"
            )
    asked = itertools.product(settings.archs, settings.batch_sizes, settings.steps)
    return [
        {"arch": arch, "loader": loader, "precision": precision, "batch_size": size, "step": step}
        for arch, size, step in asked
    ]


def command(settings: Graphs, point: Point, folder: Path) -> list[str]:
    """Return the command of train.py or of the loop by hand, as the suite `train` has it."""
    own = f"--compile {_flag('compile' in point['step'])} --graphs {_flag('graphs' in point['step'])}"
    common = train.Train(
        data=settings.data,
        workers=settings.workers,
        seconds=settings.seconds,
        flags=f"{own} {settings.flags}",
    )
    return train.command(common, _of_train(point) | {"gpus": 1}, folder)


def _of_train(point: Point) -> Point:
    """Return the point as the suite `train` has it, in which the loop by hand is a loader."""
    if point["step"] != BY_HAND:
        return point
    return point | {"loader": train.BY_HAND + LOOPS[point["loader"]]}


def read(point: Point, folder: Path) -> Measured:
    """Return what `train` reads, and how the run began."""
    measured = train.read(_of_train(point), folder)
    began = _starts.figures(_ends_of(point, folder), point["batch_size"])
    return replace(measured, figures={**measured.figures, **began})


def _ends_of(point: Point, folder: Path) -> _starts.Seconds:
    by_hand = point["step"] == BY_HAND
    return _starts.ends_by_hand(folder) if by_hand else _starts.ends_of_ours(folder)


def _flag(on: bool) -> str:
    return str(on).lower()


def derive(rows: Sequence[Row]) -> list[Row]:
    """Add `of_eager`, the ratio to the rate of eager steps, to what `train` derives."""
    rows = train.derive(rows)
    eager = {_alike(row): _show.best([row], "rate") for row in rows if row["point"]["step"] == EAGER}

    def one(row: Row) -> Row:
        own = row["figures"].get("rate")
        theirs = eager.get(_alike(row))
        ratio = own / theirs if own and theirs else None
        return {**row, "figures": {**row["figures"], "of_eager": ratio}}

    return [one(row) if row["status"] == "ok" else row for row in rows]


def _alike(row: Row) -> tuple[Any, ...]:
    return tuple(row["point"][name] for name in ("arch", "loader", "precision", "batch_size"))


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw the rate in each second since the first step, for each network and batch size."""
    drawn = []
    for (arch, loader, precision, size), alike in _show.grouped(rows, _alike).items():
        curves: dict[str, Sequence[tuple[float, float]]] = {}
        for row in alike:
            try:
                ends_s = _ends_of(row["point"], folder.parent / row["folder"])
            except (OSError, ValueError, KeyError):  # the table was kept without its runs, or parts of them
                continue
            each = enumerate(_starts.rates(ends_s, size))
            if curve := [(second + 0.5, float(rate)) for second, rate in each]:
                curves[row["point"]["step"]] = curve
        if curves:
            title = f"{arch}, batch {size}, {precision}, {loader}"
            path = folder / f"start-{arch.replace('/', '_')}-{size}.png"
            x = "seconds since the first step"
            drawn.append(_plots.lines(path, curves, title=title, x=x, y="img/s in each second"))
    return drawn


COLUMNS = (
    *(
        Column(key=key, title=key.replace("_", " "))
        for key in ("arch", "loader", "precision", "batch_size", "step")
    ),
    Column(key="rate", title="img/s", form="{:,.0f}"),
    Column(key="of_eager", title="times eager", form="{:.2f}"),
    Column(key="compute_ceiling", title="compute ceiling", form="{:,.0f}"),
    Column(key="loader_ceiling", title="loader ceiling", form="{:,.0f}"),
    Column(key="efficiency", title="efficiency", form="{:.1%}"),
    Column(key="bound", title="bound"),
    Column(key="step_p50_ms", title="step p50, ms", form="{:.1f}"),
    Column(key="first_rate", title=f"first {_starts.FIRST_S} s, img/s", form="{:,.0f}", detail=True),
    Column(key="steady_s", title="steady after, s", form="{:.0f}"),
    Column(key="early_ms", title="steps 10-29, ms", form="{:.2f}", detail=True),
    Column(key="late_ms", title="late steps (1000-1099, or the last 100), ms", form="{:.2f}", detail=True),
    Column(key="step_growth", title="steps 10-29 / late ones", form="{:.3f}"),
    Column(key="device_gib", title="GPU GiB", form="{:.1f}"),
)

SUITE = Suite(
    name="graphs",
    about=f"img/s of eager steps, CUDA graphs and torch.compile by network; at least {LEAST} windows after "
    "the warm-up",
    settings=Graphs,
    points=points,
    command=command,
    read=read,
    columns=COLUMNS,
    rate="rate",
    derive=derive,
    plots=plots,
)
