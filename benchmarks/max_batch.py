"""`max-batch`: the largest batch that trains, per architecture, loader and precision, by a search that lives
on running out of memory.

start, x 2, x 2, ... until one does not fit; then halves of what lies between, down to the tolerance or to 8
samples

Each trial is a run of train.py in a process of its own: a few steps, and a validation of the same batch while
the training loader is open.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from engine.distributed import (
    ALLOCATOR,
    cores,
    default_workers,
)  # before torch: see there

# isort: split
import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _memory
from benchmarks._loaders import expanded
from benchmarks._suite import (
    Column,
    Common,
    Measured,
    Point,
    Row,
    Suite,
    figures_of,
    in_own_process,
    measuring,
    versions_of,
)
from benchmarks.baselines import train as loop_by_hand
from benchmarks.train import (
    BY_HAND,
    MEASURED_ONLY,
    check,
    require_data,
    require_same_pixels,
    words,
)
from contracts import UserError
from engine.precision import choose
from report import hardware
from report.console import Console
from settings.cli import FolderOrUrl
from settings.config import Config, parse
from settings.types import Share
from tasks import architecture
from tasks.classification import KIND

GRID = 8
"""Batches above it are multiples of it."""
NAMED = ("arch", "loader", "precision", "graphs")
"""The keys that name a search; the rest of a trial's point is its batch. `graphs` is there in eager ones."""
AGAINST = ("torchvision", "dali-gpu", BY_HAND + "dali", BY_HAND + "dali-cpu")
"""The loaders that the others are compared with: no memory of DALI on the GPU, ours with the most of it, and
plain DALI."""


class MaxBatch(Common):
    """The largest batch that trains and validates, per architecture, loader and precision."""

    data: FolderOrUrl = None
    """Folder with train/<class>/* and val/<class>/*. Not needed with --loaders synthetic, which then trains
    without a validation."""
    archs: tuple[str, ...] = ("resnet18", "resnet50")
    """Classification architectures of torchvision.models."""
    loaders: tuple[str, ...] = ("auto",)
    """Names as in --loader of train.py; auto = all that read files and run here."""
    precisions: tuple[Literal["auto", "fp16", "bf16", "fp32"], ...] = ("auto",)
    """auto = fp16 on a GPU."""
    start: PositiveInt = 64
    """First batch that is tried; near the answer the search is short."""
    largest: PositiveInt = 16384
    """Largest that is tried. Never more than there are training samples."""
    tolerance: Share = 0.05
    """End when the largest that fits and the smallest that does not are this close, as a share; or 8 samples
    apart."""
    steps: PositiveInt = 6
    """Training steps of each trial."""
    by_hand: tuple[Literal["dali", "dali-cpu"], ...] = ()
    """Also search with the loop that one writes by hand with DALI (benchmarks/baselines/train.py), in fp16 on
    a GPU: dali decodes there, dali-cpu on the CPU."""
    eager: bool = False
    """Also search with eager steps (--graphs false), to say what a graph costs."""
    memory_limit_gib: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Measure as if there were no more memory than this, in GiB: on a GPU the rest is held, on a CPU the data
    of a process is limited (RLIMIT_DATA)."""
    flags: str = ""
    """More flags of train.py, for every trial; better written last, after a bare --."""


# --- the search ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How far a search is: what was tried, in order, and what is to be tried next (None: it is over)."""

    tried: tuple[int, ...]
    after: int | None
    fits: int  # the largest that trains, 0 for none
    fails: int | None  # the smallest that does not


def search(
    outcomes: Mapping[int, str], *, start: int, largest: int, tolerance: float
) -> Search:
    """Replay a search from the status of each batch. Where one trains, a larger one that fails for any reason
    is too large.

    A failure other than for memory before any batch has trained is a mistake, and ends it.
    """
    tried: list[int] = []
    fits = 0
    fails = None
    batch: int | None = min(start, largest)
    while batch is not None:
        if batch not in outcomes:
            return Search(tried=tuple(tried), after=batch, fits=fits, fails=fails)
        tried.append(batch)
        if outcomes[batch] == "ok":
            fits = batch
        else:
            fails = batch
            if not fits and outcomes[batch] != "oom":
                break  # a smaller batch would fail for the same reason
        batch = _following(fits, fails, largest, tolerance)
    return Search(tried=tuple(tried), after=None, fits=fits, fails=fails)


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


@cache
def training_samples(data: str | None) -> int:
    """Return how many training samples there are, scanned once; without --data, those of the synthetic set.

    Raises UserError.
    """
    from dataset.open import open_splits

    loader = "torchvision" if data else "synthetic"
    settings = Config().data.model_copy(update={"data": data})
    splits = open_splits(
        settings, loader=loader, validates=False, console=Console(enabled=False)
    )
    return len(splits["train"].columns)


def points(settings: MaxBatch) -> list[Point]:
    for arch in settings.archs:
        architecture(KIND, arch, "--archs")
    flags = check(
        settings.flags,
        by_hand=bool(settings.by_hand),
        more=("--workers",),
        own=("--val-batch-size",),
    )
    by_hand = bool(settings.by_hand)
    require_data(
        settings.data, settings.loaders, flags, validates=True, by_hand=by_hand
    )
    if settings.by_hand and settings.data is None:
        raise UserError("--by-hand reads files: --data is missing")
    if settings.by_hand:
        require_same_pixels("classification", settings.archs)
    return follow(settings, [])


def searches(settings: MaxBatch) -> Iterator[Point]:
    """Yield what NAMED has of each search, in the order of the table; no precision is `auto`, or nothing by
    hand would have the same."""
    loaders = expanded("--loaders", settings.loaders, torch.cuda.device_count())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precisions = dict.fromkeys(
        choose(name, device, on_cpu=KIND.cpu_precision) for name in settings.precisions
    )
    for arch in settings.archs:
        for loader, precision in itertools.product(loaders, precisions):
            named = {"arch": arch, "loader": loader, "precision": precision}
            yield named
            if settings.eager:
                yield named | {"graphs": "false"}
        for how in settings.by_hand:
            yield {"arch": arch, "loader": BY_HAND + how, "precision": "fp16"}


def _searched(
    settings: MaxBatch, rows: Sequence[Row]
) -> Iterator[tuple[Point, Search]]:
    """Yield the point of each search, without its batch, and how far the search is."""
    limits: dict[str, Any] = {
        "start": settings.start,
        "largest": min(settings.largest, training_samples(settings.data)),
        "tolerance": settings.tolerance,
    }
    for named in searches(settings):
        outcomes = {
            row["point"]["batch_size"]: row["status"]
            for row in rows
            if row["point"] == named | {"batch_size": row["point"]["batch_size"]}
        }
        yield named, search(outcomes, **limits)


def follow(settings: MaxBatch, rows: Sequence[Row]) -> list[Point]:
    """Return the trials so far, one search after the other, and the next one."""
    found: list[Point] = []
    for named, its in _searched(settings, rows):
        found += [{**named, "batch_size": batch} for batch in its.tried]
        if its.after is not None:
            return [*found, {**named, "batch_size": its.after}]
    return found


def over(settings: MaxBatch, rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many searches are over, and how many there are."""
    ended = [its.after is None for _, its in _searched(settings, rows)]
    return sum(ended), len(ended)


# --- a trial ------------------------------------------------------------------------------------------------


def measure(settings: MaxBatch, point: Point, folder: Path) -> Measured:
    """Run train.py in this process with the device's memory watched. Exits as it does if it ends badly."""
    if point["loader"].startswith(BY_HAND):
        keep_allocator(os.environ)
    import train

    held_gib = (
        0.0
        if settings.memory_limit_gib is None
        else _memory.limit(train.DEVICE, settings.memory_limit_gib)
    )
    with _memory.peak(train.DEVICE) as peak_gib, _memory.loads(train.DEVICE) as loads:
        if point["loader"].startswith(BY_HAND):
            return _by_hand(settings, point, train.DEVICE, peak_gib, held_gib, loads)
        sys.argv = ["train.py", *_flags(settings, point, folder)]
        try:
            code = train.main()
        finally:
            for weights in folder.glob("*.pt"):
                weights.unlink()  # of a network that has learned nothing
    if code:
        sys.exit(code)
    told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    reasons = {
        settings.largest: "all of --largest",
        training_samples(settings.data): "all training samples",
    }
    return Measured(
        figures={
            "largest": point["batch_size"],  # so far
            "device_gib": max(peak_gib) - held_gib if peak_gib else None,
            **{name: told["memory"][name] for name in ("allocated_gib", "host_gib")},
            "reached": reasons.get(point["batch_size"]),
            **loads(),
        },
        versions=told["versions"],
        hardware=told["hardware"],
    )


def keep_allocator(environment: MutableMapping[str, str]) -> None:
    """Let a loop by hand have torch's allocator as torch sets it up, unless the caller has set it up.

    Importing train.py sets it up for the process otherwise.
    """
    if not any(name in environment for name in ALLOCATOR):
        environment[ALLOCATOR[0]] = "expandable_segments:False"


def _flags(settings: MaxBatch, point: Point, folder: Path) -> list[str]:
    flags: dict[str, Any] = {
        **point,
        "val_batch_size": point["batch_size"],
        "steps": settings.steps,
    }
    flags |= {"val_every": 1, "ceilings": "false", **MEASURED_ONLY, "output": folder}
    if settings.data:
        flags["data"] = settings.data
    return [*words(flags), *shlex.split(settings.flags)]


def _by_hand(
    settings: MaxBatch,
    point: Point,
    device: torch.device,
    peak_gib: list[float],
    held_gib: float,
    loads: Callable[[], _memory.Loads],
) -> Measured:
    flags = {
        "data": settings.data,
        "loader": point["loader"].removeprefix(BY_HAND),
        **{name: point[name] for name in ("arch", "batch_size")},
        "steps": settings.steps,
    }
    asked = parse(shlex.split(settings.flags)).loading.workers
    flags["workers"] = (
        default_workers(gpu=torch.cuda.is_available()) if asked is None else asked
    )
    sys.argv = ["train.py", *words(flags)]
    loop_by_hand.main()
    figures = {
        "largest": point["batch_size"],
        "device_gib": max(peak_gib) - held_gib if peak_gib else None,
        **loads(),
    }
    figures["allocated_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return Measured(
        figures=figures,
        versions=hardware.versions(),
        hardware=hardware.hardware(device, cores()),
    )


# --- what is told -------------------------------------------------------------------------------------------


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Turn trials into one row a search: the largest batch that trains, the memory there, what ended it, and
    the ratio to other loaders.

    There is a ratio only between two batches that memory has limited.
    """
    groups: dict[tuple[str | None, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row["point"].get(name) for name in NAMED), []).append(
            row
        )
    found = [
        _summary(
            {name: value for name, value in zip(NAMED, values, strict=True) if value},
            its,
        )
        for values, its in groups.items()
    ]
    limited = {
        values: row["figures"]["largest"]
        for values, row in zip(groups, found, strict=True)
        if row["status"] == "ok" and row["figures"]["limited"]
    }
    for values, row in zip(groups, found, strict=True):
        arch, own_loader, precision, graphs = values
        against: dict[str, tuple[str | None, ...]] = {}
        against |= {loader: (arch, loader, precision, graphs) for loader in AGAINST}
        if graphs is None:
            against["eager"] = (arch, own_loader, precision, "false")
        for name, others in against.items() if values in limited else ():
            other = limited.get(others)
            row["figures"][f"of_{name}"] = limited[values] / other if other else None
    return found


def _summary(point: Point, trials: Sequence[Row]) -> Row:
    def batch(row: Row) -> int:
        return int(row["point"]["batch_size"])

    good = [row for row in trials if row["status"] == "ok"]
    best = max(good, key=batch, default=None)
    failed = min(
        (row for row in trials if row["status"] != "ok"), key=batch, default=None
    )
    took_s = sum(row["took_s"] for row in trials)
    if best is None:
        assert failed is not None
        why = f"batch {batch(failed)}: {failed['error']}"
        return {**failed, "point": point, "took_s": took_s, "error": why}
    if failed is None:
        ended = f">= {batch(best):,}: {best['figures'].get('reached') or 'the search was not finished'}"
    else:
        why = {"oom": "out of memory"}.get(
            failed["status"]
        ) or f"{failed['status']} ({failed['error']})"[:120]
        ended = f"{why} at {batch(failed):,}"
    figures = {
        name: best["figures"].get(name)
        for name in ("device_gib", "allocated_gib", "host_gib", *hardware.LOADS)
    }
    figures |= {
        "largest": batch(best),
        "ended": ended,
        "fails": None if failed is None else batch(failed),
        "limited": int(failed is not None and failed["status"] == "oom"),
        "trials": len(trials),
    }
    return {
        **best,
        "point": point,
        "took_s": took_s,
        "figures": figures,
        "versions": versions_of(trials),
    }


def bounds(row: Row) -> tuple[float, float]:
    """Return the least and the most that the largest batch that trains can be, from the trials."""
    return row["figures"]["largest"], (row["figures"]["fails"] or math.inf) - 1


COLUMNS = (
    *(Column(key=name, title=name) for name in NAMED),
    Column(key="largest", title="largest batch", form="{:,}"),
    Column(key="ended", title="limit"),
    Column(key="of_torchvision", title="to torchvision", form="{:.2f} x"),
    Column(key="of_dali-gpu", title="to dali-gpu", form="{:.2f} x"),
    Column(key=f"of_{BY_HAND}dali", title="to DALI by hand", form="{:.2f} x"),
    Column(
        key=f"of_{BY_HAND}dali-cpu", title="to DALI by hand on the CPU", form="{:.2f} x"
    ),
    Column(key="of_eager", title="to eager", form="{:.2f} x"),
    Column(key="device_gib", title="GPU GiB", form="{:.1f}"),
    Column(key="allocated_gib", title="PyTorch's GiB", form="{:.1f}", detail=True),
    Column(key="host_gib", title="host GiB", form="{:.1f}", detail=True),
    Column(key="trials", title="trials", detail=True),
    Column(key="took_s", title="search, s", form="{:.0f}", detail=True),
)

SUITE = Suite(
    name="max-batch",
    about="the largest batch of a GPU that trains, a validation of the same batch included, and the device's "
    "memory there at its peak",
    settings=MaxBatch,
    points=points,
    command=in_own_process("benchmarks.max_batch"),
    read=figures_of,
    columns=COLUMNS,
    rate="largest",
    over=(
        "batch_size",
        "arch",
        "loader",
        "precision",
    ),  # a trial has a batch, a search has none
    curves=("largest", "device_gib", "allocated_gib", "host_gib"),
    follow=follow,
    searches=over,
    bounds=bounds,
    asks_what_fits=True,
    derive=summarise,
)

if __name__ == "__main__":
    measuring(MaxBatch, measure)
