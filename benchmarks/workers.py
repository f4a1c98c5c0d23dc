"""`workers`: why small batches are slow. Workers x batch size x host memory x image size x compiled how, each
a run of train.py.

Times nothing itself: every figure is of the run's summary.json.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _plots, _show, _superres, train
from benchmarks._suite import LEAST, Column, Common, Measured, Point, Row, Suite, beyond_noise
from engine.distributed import default_workers
from report.advice import GRAPHS
from settings.cli import FolderOrUrl
from tasks import architecture, kind_named

STEP = ("data_wait", "forward", "backward", "update")
"""Parts of a step on the device's timeline, which add up to it; the transfer runs beside them."""
ENOUGH = 0.9
"""A rate that reaches this share of the best has stopped growing."""
LAUNCHES = 0.5
"""Share of a step that costs the same whatever the batch, from which that is what bounds it."""
WAITING = 0.2
"""Share of a step from which waiting for data is what a batch is slow by."""
EAGER: Final = "eager"


class Workers(Common):
    """Rate and the parts of a step by batch size, workers, kind of host memory, image size and
    torch.compile."""

    task: Literal["classification", "superres"] = "classification"
    """Task of the run. superres trains on ready patches: see --stores, --patches and --by-hand."""
    data: FolderOrUrl = None
    """Folder with train/<class>/* and val/<class>/*; of superres one that scripts.patch_set has made. Not
    needed with --loader synthetic."""
    arch: str | None = None
    """An architecture of the task. Default: resnet18, srcnn."""
    loader: str | None = None
    """Loader of the run, as --loader of train.py. Default: torchvision, paired."""
    stores: tuple[Literal["png", "lmdb", "raw"], ...] = ("png", "lmdb", "raw")
    """superres: what patches lie in."""
    patches: tuple[PositiveInt, ...] = (16, 64)
    """superres: sides of the patches, pixels."""
    by_hand: bool = False
    """superres: also time the loop that one writes by hand, on PNG files, with 16 workers."""
    batch_sizes: tuple[PositiveInt, ...] = (8, 16, 32, 64, 128, 256, 512)
    """Samples a step."""
    workers: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Worker processes (threads of the DALI loaders). Default: 1 and all cores but one."""
    memory: tuple[Literal["pinned", "pageable"], ...] = ()
    """Host memory that the GPU copies from: page-locked or not. Default: both with a GPU, else pageable."""
    image_sizes: tuple[PositiveInt, ...] = (224,)
    """Sides of the training images, pixels."""
    steps: tuple[Literal["eager", "graphs", "compile", "compile+graphs"], ...] = ()
    """How a step is launched: kernel by kernel (eager), as one CUDA graph, with torch.compile, with both.
    Default: eager, and graphs with a GPU."""
    precision: Literal["auto", "fp16", "bf16", "fp32"] = "auto"
    """auto = fp16 on a GPU."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 10.0
    """Seconds of steady windows to measure at each point, after the warm-up."""
    flags: str = ""
    """More flags of train.py, for every point; better written last, after a bare --."""


SET_HERE = ("--workers", "--image-size", "--pin-memory", "--compile", "--graphs")
"""Flags of train.py that are a point's."""


def points(settings: Workers) -> list[Point]:
    architecture(kind_named(settings.task), settings.arch)
    given = train.check(settings.flags, task=settings.task, own=SET_HERE)
    workers = settings.workers or tuple(dict.fromkeys((1, default_workers(gpu=torch.cuda.is_available()))))
    memory = settings.memory or (("pinned", "pageable") if torch.cuda.is_available() else ("pageable",))
    steps = settings.steps or ((EAGER, "graphs") if torch.cuda.is_available() else (EAGER,))
    if settings.task == "superres":
        return _superres.points(settings, workers, memory, steps)
    loader = settings.loader or "torchvision"
    train.require_data(settings.data, [loader], given)
    fixed = {"arch": settings.arch or "resnet18", "loader": loader, "precision": settings.precision}
    # what is compared is measured one after the other: a machine's speed drifts
    asked = itertools.product(settings.image_sizes, workers, settings.batch_sizes, memory, steps)
    named = ("image_size", "workers", "batch_size", "memory", "step")
    return [fixed | dict(zip(named, values, strict=True)) for values in asked]


def command(settings: Workers, point: Point, folder: Path) -> list[str]:
    """Return the command of train.py, as the suite `train` has it."""
    if settings.task == "superres":
        return _superres.command(settings, point, folder)
    own = (
        f"--workers {point['workers']} --image-size {point['image_size']} "
        f"--pin-memory {_flag(point['memory'] == 'pinned')}"
    )
    own += f" --compile {_flag('compile' in point['step'])} --graphs {_flag('graphs' in point['step'])}"
    common = train.Train(data=settings.data, seconds=settings.seconds, flags=f"{own} {settings.flags}")
    return train.command(common, point | {"gpus": 1}, folder)


def _flag(on: bool) -> str:
    return str(on).lower()


def read(point: Point, folder: Path) -> Measured:
    found = train.read(point, folder)
    rate = found.figures.get("rate")
    if "patches" in point and isinstance(rate, float):
        found = _with_epoch(found, rate, point["patches"])
    if point["loader"].startswith(train.BY_HAND):
        return found
    told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return replace(
        found, figures={**found.figures, **{f"{name}_ms": value for name, value in told["split_ms"].items()}}
    )


def _with_epoch(found: Measured, rate: float, patches: int) -> Measured:
    """Return what was measured with the seconds of an epoch of so many patches, spread as their rate is."""
    figures = {**found.figures, "epoch_s": patches / rate}
    of_rate = found.spread.get("rate")
    if of_rate is None:
        return replace(found, figures=figures)
    its = {"n": of_rate["n"], "min": patches / of_rate["max"], "max": patches / of_rate["min"]}
    its["iqr"] = of_rate["iqr"] * patches / rate**2  # as far as an epoch's time is a line of the rate
    return replace(found, figures=figures, spread={**found.spread, "epoch_s": its})


# --- what is told -------------------------------------------------------------------------------------------


def derive(rows: Sequence[Row]) -> list[Row]:
    """Add `fixed`, for all but the largest batch size, to what `train` derives."""
    rows = train.derive(rows)
    shares = {
        alike: fixed(ceilings([row for row in its if row["status"] == "ok"]))
        for alike, its in _show.grouped(rows, _of).items()
    }

    def one(row: Row) -> Row:
        share = shares[_of(row)].get(row["point"]["batch_size"])
        return (
            {**row, "figures": {**row["figures"], "fixed": share}}
            if row["status"] == "ok" and share is not None
            else row
        )

    return [one(row) for row in rows]


def _of(row: Row) -> tuple[int, str]:
    """Return image size, and how the step is launched: rows that have both in common are compared."""
    return row["point"]["image_size"], row["point"].get("step", EAGER)


def ceilings(rows: Sequence[Row]) -> dict[int, float]:
    """Return the compute ceiling of each batch size, the best of its rows."""
    return _best(rows, "batch_size", "compute_ceiling")


def fixed(of: Mapping[int, float]) -> dict[int, float]:
    """Return batch size -> the share of a step that the batch does not change, were time a + b * batch up to
    the next larger size.

    1: the ceiling grows as the batch does, a step is launches and kernels that do not fill the device. 0: it
    does not grow.
    """
    found = {}
    for one, more in itertools.pairwise(sorted(of)):
        each = (more / of[more] - one / of[one]) / (more - one)  # seconds a sample
        found[one] = min(max(1 - each * of[one], 0.0), 1.0)
    return found


def enough(rates: Mapping[int, float]) -> int | None:
    """Return the smallest value whose rate is within 10 % of the best; None when that is the largest one: it
    may grow on."""
    least = min(value for value, rate in rates.items() if rate >= ENOUGH * max(rates.values()))
    return None if least == max(rates) else least


def _best(rows: Sequence[Row], name: str, figure: str) -> dict[Any, float]:
    found = {value: _show.best(its, figure) for value, its in _show.by(rows, name).items()}
    return {value: best for value, best in found.items() if best is not None}


def conclude(rows: Sequence[Row]) -> list[str]:
    """Give the advice, an image size after the other, and within it how the step is launched."""
    ours = [row for row in rows if not row["point"]["loader"].startswith(train.BY_HAND)]
    alike = _show.grouped([row for row in ours if row["status"] == "ok"], _of)
    sizes, modes = ({key[at] for key in alike} for at in (0, 1))
    said = []
    for (size, mode), its in alike.items():
        of = ", ".join([f"{size} px"] * (len(sizes) > 1) + [mode] * (len(modes) > 1))
        lines = (
            *_batch_size(its),
            *_pinned(its),
            *_workers(its),
            *_smallest(its),
            *_faster(its, alike.get((size, EAGER), [])),
        )
        said += [f"{of}: {line}" if of else line for line in lines]
    return [*said, *_superres.conclude([row for row in rows if "store" in row["point"]])]


def _faster(rows: Sequence[Row], eager: Sequence[Row]) -> list[str]:
    """Return a line for each batch that was measured both ways: how many times the rate of eager
    this makes."""
    ours, theirs = (_best(its, "batch_size", "rate") for its in (rows, eager))
    if rows is eager or not (both := sorted(ours.keys() & theirs.keys())):
        return []
    return [
        f"{ours[size] / theirs[size]:.2f} times the rate of eager at batch {size} ({ours[size]:,.0f} img/s)."
        for size in both
    ]


def _batch_size(rows: Sequence[Row]) -> list[str]:
    of = ceilings(rows)
    if len(of) < 2:
        return []
    if (least := enough(of)) is None:
        return [
            f"The compute ceiling still grows at batch {max(of)} ({of[max(of)]:,.0f} img/s): a larger batch "
            "may be faster."
        ]
    return [
        f"At batch {least} the compute ceiling is within 10 % of its best ({max(of.values()):,.0f} img/s): "
        "no larger one is needed."
    ]


def _pinned(rows: Sequence[Row]) -> list[str]:
    """Compare pairs that differ in nothing but pinned memory. Beyond noise: their runs do not overlap, and no
    such pair says the contrary."""
    found: list[tuple[float, bool | None, str, str]] = []
    by_memory = _show.by(rows, "memory")
    for one, other in itertools.product(by_memory.get("pinned", []), by_memory.get("pageable", [])):
        if one["point"] == other["point"] | {"memory": "pinned"}:
            pinned, pageable = (row["figures"]["rate"] for row in (one, other))
            where = f"batch {one['point']['batch_size']} with {_count(one['point']['workers'])}"
            both = f"{pinned:,.0f} img/s, pageable {pageable:,.0f} img/s"
            found.append((pinned / pageable - 1, beyond_noise(SUITE, one, other), where, both))
    if not found:
        return []
    found = [pair for pair in found if pair[1] is not None] or found
    more, judged, where, both = max(found, key=lambda pair: abs(pair[0]))
    if not rows[0]["hardware"].get("gpu"):
        return [
            "Pinned memory is for a GPU: without one the two differ by noise alone, here up to "
            f"{abs(more):.1%} ({where})."
        ]
    if judged is None:
        return [
            f"Pinned memory: {both} at {where}, one run each; --repeats {LEAST} tells a difference from "
            "noise."
        ]
    beyond = [pair for pair in found if pair[1]]
    if len({share > 0 for share, *_ in beyond}) != 1:
        return [f"Pinned memory makes no difference beyond the noise (the largest: {more:+.1%}, {where})."]
    more, _, where, _ = max(beyond, key=lambda pair: abs(pair[0]))
    return [
        f"Pinned memory: {more:+.1%} at {where}, beyond the noise there and in {len(beyond)} of {len(found)} "
        "pairs."
    ]


def _workers(rows: Sequence[Row]) -> list[str]:
    largest = max(row["point"]["batch_size"] for row in rows)
    of = _best([row for row in rows if row["point"]["batch_size"] == largest], "workers", "rate")
    if len(of) < 2:
        return []
    if (least := enough(of)) is None:
        return [f"Batch {largest}: the rate still grows at {_count(max(of))} ({of[max(of)]:,.0f} img/s)."]
    return [
        f"Batch {largest}: {_count(least)} will do, with them the rate is within 10 % of its best "
        f"({max(of.values()):,.0f} img/s)."
    ]


def _smallest(rows: Sequence[Row]) -> list[str]:
    smallest = min(row["point"]["batch_size"] for row in rows)
    row = max(
        (row for row in rows if row["point"]["batch_size"] == smallest),
        key=lambda row: float(row["figures"]["rate"]),
    )
    whole = sum(row["figures"].get(f"{name}_ms") or 0.0 for name in STEP)
    wait = (row["figures"].get("data_wait_ms") or 0.0) / whole if whole else 0.0
    loads = row["point"]["loader"] != "synthetic"
    said = f"Batch {smallest}, {_count(row['point']['workers'])}: {wait:.0%} of a step "
    said += "waits for data" if loads else "is the host's own time (there is no data to wait for)"
    if loads and wait >= WAITING:
        return [f"{said}: the loader is what to change first."]
    of = ceilings(rows)
    share = fixed(of).get(smallest)
    if share is None:
        return [f"{said}; whether its work or its launches bound it takes a larger batch size beside it."]
    following = min(size for size in of if size > smallest)
    said += (
        f", and {share:.0%} of its compute costs the same up to batch {following}, the next that was measured"
    )
    if share < LAUNCHES:
        return [f"{said}: bound by the work itself."]
    if row["hardware"].get("gpu"):
        graphs = "" if "graphs" in _of(row)[1] else f", or {GRAPHS}"
        return [
            f"{said}: bound by launches, and by kernels too small to fill the GPU: a larger batch{graphs}."
        ]
    return [f"{said}: a larger batch shares it among more images."]


def _count(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


def _line(row: Row) -> tuple[int, str, str, str]:
    return row["point"]["workers"], row["point"]["memory"], _of(row)[1], row["point"].get("store", "")


def _name(line: tuple[int, str, str, str]) -> str:
    workers, memory, compiled, store = line
    of_store = f", {store}" if store else ""
    return f"{_count(workers)}, {memory}{'' if compiled == EAGER else f', {compiled}'}{of_store}"


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    drawn = []
    for size, its in _show.by(rows, "image_size").items():
        its = sorted(its, key=lambda row: (row["point"]["batch_size"], *_line(row)))
        names = [f"batch {row['point']['batch_size']}, {_name(_line(row))}" for row in its]
        per_image = {
            name.replace("_", " "): [
                None
                if (ms := row["figures"].get(f"{name}_ms")) is None
                else 1e3 * ms / row["point"]["batch_size"]
                for row in its
            ]
            for name in STEP
        }
        title = f"Where the time of an image goes, {size} px"
        drawn.append(
            _plots.stacked(folder / f"split-{size}.png", names, per_image, title=title, unit="µs an image")
        )
        for figure, unit in (
            ("rate", "img/s"),
            ("compute_ceiling", "img/s"),
            ("gpu_utilisation", "share"),
            ("power_w", "W"),
        ):
            lines: dict[str, Sequence[tuple[float, float]]] = {}
            for line in dict.fromkeys(map(_line, its)):
                same = [row for row in its if _line(row) == line]
                found = [
                    (row["point"]["batch_size"], value)
                    for row in same
                    if (value := row["figures"].get(figure)) is not None
                ]
                lines |= {_name(line): found} if found else {}
            if lines:
                path = folder / f"{figure}-{size}.png"
                title = f"{figure.replace('_', ' ')}, {size} px"
                drawn.append(_plots.lines(path, lines, title=title, x="batch size", y=unit, log_x=True))
    return drawn


COLUMNS = (
    *(
        Column(key=key, title=key.replace("_", " "))
        for key in (
            "arch",
            "loader",
            "precision",
            "image_size",
            "store",
            "workers",
            "batch_size",
            "memory",
            "step",
        )
    ),
    Column(key="rate", title="img/s", form="{:,.0f}"),
    Column(key="epoch_s", title="epoch, s", form="{:,.1f}"),
    Column(key="compute_ceiling", title="compute ceiling", form="{:,.0f}"),
    Column(key="fixed", title="fixed cost of a step, to the next batch size measured", form="{:.0%}"),
    Column(key="loader_ceiling", title="loader ceiling", form="{:,.0f}"),
    Column(key="efficiency", title="efficiency", form="{:.1%}", detail=True),
    Column(key="bound", title="bound"),
    *(
        Column(key=f"{name}_ms", title=f"{name.replace('_', ' ')}, ms", form="{:.2f}")
        for name in (STEP[0], "transfer", *STEP[1:])
    ),
    Column(key="step_p50_ms", title="step p50, ms", form="{:.1f}", detail=True),
    Column(key="step_p99_ms", title="p99", form="{:.1f}", detail=True),
    Column(key="step_growth", title="steps 10-29 / 1000-1099", form="{:.3f}", detail=True),
    Column(key="gpu_utilisation", title="GPU busy", form="{:.0%}"),
    Column(key="power_w", title="W", form="{:.0f}"),
    Column(key="device_gib", title="GPU GiB", form="{:.2f}", detail=True),
    Column(key="cpu_utilisation", title="CPU busy", form="{:.0%}"),
)

SUITE = Suite(
    name="workers",
    about=f"img/s while training, and the parts of a step, by batch size; at least {LEAST} windows after the "
    "warm-up",
    settings=Workers,
    points=points,
    command=command,
    read=read,
    columns=COLUMNS,
    rate="rate",
    derive=derive,
    plots=plots,
    conclude=conclude,
)
