"""`graphs`: what a CUDA graph and torch.compile give, a network and a batch size after the other.

Each point is a run of train.py as `train` has it, and its rate stands beside that of eager steps. Times
nothing itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _show, train
from benchmarks._suite import LEAST, Column, Common, Point, Row, Suite
from benchmarks.workers import EAGER
from cli import one_of
from tasks.classification import KIND


class Graphs(Common):
    """Rate by network, batch size and how a step is launched, and how many times eager's that is."""

    data: Path | None = None
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
    steps: tuple[Literal["eager", "graphs", "compile", "compile+graphs"], ...] = (
        "eager",
        "graphs",
        "compile+graphs",
    )
    """How a step is launched: kernel by kernel (eager), as one CUDA graph, with torch.compile, with both."""
    loader: str = "auto"
    """Loader of the runs, as --loader of train.py; auto = dali-gpu with a GPU, else torchvision."""
    precision: Literal["auto", "fp16", "bf16", "fp32"] = "auto"
    """auto = fp16 on a GPU."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Worker processes or threads, as --workers of train.py. Default: all cores but one."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 5.0
    """Seconds of steady windows to measure at each point, after the warm-up."""
    flags: str = ""
    """More flags of train.py, for every point; better written last, after a bare --."""


def points(settings: Graphs) -> list[Point]:
    """Return the points; those that are compared follow each other, for a machine's speed drifts."""
    auto = KIND.default_loader(gpu=torch.cuda.is_available())
    loader = one_of("--loader", settings.loader, KIND.loaders, auto=auto)
    train.require_data(settings.data, [loader], train.check(settings.flags, own=("--compile", "--graphs")))
    asked = itertools.product(settings.archs, settings.batch_sizes, settings.steps)
    return [
        {"arch": arch, "loader": loader, "precision": settings.precision, "batch_size": size, "step": step}
        for arch, size, step in asked
    ]


def command(settings: Graphs, point: Point, folder: Path) -> list[str]:
    """Return the command of train.py, as the suite `train` has it."""
    own = f"--compile {_flag('compile' in point['step'])} --graphs {_flag('graphs' in point['step'])}"
    common = train.Train(
        data=settings.data,
        workers=settings.workers,
        seconds=settings.seconds,
        flags=f"{own} {settings.flags}",
    )
    return train.command(common, point | {"gpus": 1}, folder)


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

    return [one(row) for row in rows]


def _alike(row: Row) -> tuple[Any, ...]:
    return tuple(row["point"][name] for name in ("arch", "loader", "precision", "batch_size"))


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
    Column(key="step_growth", title="steps 10-29 / 1000-1099", form="{:.3f}", detail=True),
    Column(key="device_gib", title="GPU GiB", form="{:.1f}"),
)

SUITE = Suite(
    name="graphs",
    about=f"img/s of eager steps, CUDA graphs and torch.compile by network; at least {LEAST} windows after "
    "the warm-up",
    settings=Graphs,
    points=points,
    command=command,
    read=train.read,
    columns=COLUMNS,
    rate="rate",
    derive=derive,
)
