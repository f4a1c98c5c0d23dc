"""`slow-storage`: reads that each take some milliseconds longer, and a step of a given time: how long does
the consumer wait for batches?

|- first batch -|- step -|wait|- step -|wait| ... |- step -|   a repeat: an epoch of `steps` batches
                |<------------------- total_s ------------>|       floor = steps x step time
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from engine.distributed import ProcessWorld, cores, prepare_process  # before torch: see there

# isort: split
import numpy as np
import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _plots, _show, images
from benchmarks._data import class_folders
from benchmarks._suite import (
    LEAST,
    LEAST_STEPS,
    Column,
    Common,
    Measured,
    Point,
    Row,
    Suite,
    figures_of,
    in_own_process,
    measuring,
)
from benchmarks.baselines import dali
from benchmarks.loader import expanded
from contracts import Split, World
from dataset.open import open_split
from report import hardware
from report.meter import spread
from settings.types import NotNegative

BY_HAND = "dali-by-hand"
"""benchmarks/baselines/dali.py."""
KEEPS = 0.03
"""Keeps the floor: waits for at most this share of it."""


class SlowStorage(Common):
    """How long a consumer waits for batches when each read takes longer, per method of loading and delay."""

    data: Path | None = None
    """Folder with <class>/* or train/<class>/*."""
    methods: tuple[str, ...] = ("auto",)
    """pytorch, pytorch+opencv and dali-by-hand (benchmarks/baselines/), or names as in --loader of train.py;
    auto = all that run here."""
    delays: tuple[NotNegative, ...] = (0.0, 1.0, 10.0, 50.0)
    """Each read takes this much longer, ms."""
    steps: Annotated[int, Field(ge=LEAST_STEPS)] = 100
    """Batches of a repeat."""
    step_ms: Annotated[FiniteFloat, Field(gt=0)] = 100.0
    """Milliseconds of a step: the consumer sleeps so long with each batch, on the host."""
    batch_size: PositiveInt = 4
    """Samples a batch."""
    image_size: Annotated[int, Field(ge=8)] = 512
    """Height and width of the images, pixels; the whole image is stretched."""
    workers: Annotated[int, Field(ge=0)] = 8
    """Worker processes of pytorch, torchvision and dali-fed."""
    dali_threads: PositiveInt = 2
    """Threads of DALI: with dali-cpu and dali-gpu they read too, with dali-fed they only decode."""
    epochs: Annotated[int, Field(ge=LEAST)] = LEAST
    """Epochs of `steps` batches, one after the other on the open loader."""

    @property
    def window(self) -> Literal["stretch"]:
        return "stretch"

    @property
    def reader(self) -> str:
        return "auto"


def points(settings: SlowStorage) -> list[Point]:
    class_folders(settings.data)
    same = settings.model_dump(
        include={"step_ms", "steps", "batch_size", "image_size", "workers", "dali_threads"}
    )
    methods = expanded(
        "--methods",
        settings.methods,
        torch.cuda.device_count(),
        more=(images.PYTORCH, images.OPENCV, BY_HAND),
    )
    return [
        {"read_delay_ms": delay, "method": name, **same}
        for delay, name in itertools.product(settings.delays, methods)
    ]


def command(settings: SlowStorage, point: Point, folder: Path) -> list[str]:
    found = settings.model_copy(update={"data": class_folders(settings.data)})
    return in_own_process("benchmarks.slow_storage")(found, point, folder)


@dataclass(frozen=True, slots=True)
class Epoch:
    """Seconds: until the first batch, in all steps behind it, and of these in waiting for the other
    batches."""

    first_batch_s: float
    total_s: float
    waited_s: float


def consume(
    batches: Iterator[Any],
    *,
    step_s: float,
    wait: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Epoch, int]:
    """Take every batch, wait until it is on the device, sleep for a step; return the times and the number of
    batches."""
    began = asked = clock()
    first_s = 0.0
    waited_s = 0.0
    steps = 0
    for _ in batches:
        wait()
        now = clock()
        if steps == 0:  # begins anew behind it: how long a loader takes to start is told apart
            first_s = now - began
            began = now
        else:
            waited_s += now - asked
        sleep(step_s)  # and does not compute: that would take cores from the loader
        steps = steps + 1
        asked = clock()
    return Epoch(first_s, asked - began, waited_s), steps


def measure(settings: SlowStorage, point: Point, folder: Path) -> Measured:
    device = prepare_process()
    world = ProcessWorld(device)
    data = open_split(class_folders(settings.data))
    with ExitStack() as stack:
        stack.enter_context(world.own_stream())
        began = time.perf_counter()
        epochs = stack.enter_context(_opened(settings, point, data, world))
        opening_s = time.perf_counter() - began
        load = hardware.Sampler(device, cores=cores(), host=False).start()
        stack.callback(load.stop)
        found: list[Epoch] = []
        for epoch in range(settings.epochs):
            one, steps = consume(epochs(epoch), step_s=settings.step_ms / 1e3, wait=world.await_batch)
            if steps != settings.steps:
                raise RuntimeError(f"{point['method']} gave {steps} batches of {settings.steps}")
            found.append(one)
            if epoch == 0:
                load.read()  # the loads are of a loader that has started
        busy = load.read()
    result = measured(
        found, floor_s=settings.steps * settings.step_ms / 1e3, opening_s=opening_s, device=device
    )
    return replace(result, figures={**result.figures, **{name: busy[name] for name in hardware.LOADS}})


@contextmanager
def _opened(settings: SlowStorage, point: Point, data: Split, world: World) -> Iterator[images.Epochs]:
    delay_s = point["read_delay_ms"] / 1e3
    threads = settings.dali_threads
    if point["method"] != BY_HAND:
        with images.opened(
            settings,
            point["method"],
            data,
            world,
            threads=threads,
            read_delay_s=delay_s,
            batches=settings.steps,
        ) as epochs:
            yield epochs
        return
    samples = settings.steps * settings.batch_size
    images.require(data, samples)
    labels = data.columns.label.tolist()
    source = dali.Files(
        images.paths(data), labels, batch_size=settings.batch_size, samples=samples, read_delay_s=delay_s
    )
    loader = dali.loader(source, size=settings.image_size, threads=threads, device=world.device)
    yield lambda epoch: (len(batch["images"]) for (batch,) in loader)


def measured(found: Sequence[Epoch], *, floor_s: float, opening_s: float, device: torch.device) -> Measured:
    """Return medians over the repeats. `start_s` is what the very first batch took, with the opening of the
    loader."""
    each = {name: [getattr(one, name) for one in found] for name in ("total_s", "waited_s", "first_batch_s")}
    each["over_floor_s"] = [total - floor_s for total in each["total_s"]]
    each["all_s"] = [one.first_batch_s + one.total_s for one in found]
    return Measured(
        figures={
            **{name: float(np.median(values)) for name, values in each.items()},
            "floor_s": floor_s,
            "start_s": opening_s + found[0].first_batch_s,
        },
        spread={name: its for name, values in each.items() if (its := spread(values))},
        versions=hardware.versions(),
        hardware=hardware.hardware(device, cores()),
    )


def conclude(rows: Sequence[Row]) -> list[str]:
    """Say in a sentence a delay: who keeps the floor, and how much the others wait."""
    said = []
    for delay, its in _show.by([row for row in rows if row["status"] == "ok"], "read_delay_ms").items():
        waits = {
            row["point"]["method"]: row["figures"]["waited_s"]
            for row in sorted(its, key=lambda row: row["figures"]["waited_s"])
        }
        floor_s = its[0]["figures"]["floor_s"]
        steps = its[0]["point"]["steps"]
        keep, lose = (
            ", ".join(
                f"{name} {waited:.2f} s"
                for name, waited in waits.items()
                if (waited <= KEEPS * floor_s) is kept
            )
            for kept in (True, False)
        )
        said.append(
            f"{delay:g} ms a read, {steps} steps of {floor_s:g} s in all: kept by {keep or 'none'}; lost by "
            f"{lose or 'none'}."
        )
    return (
        [*said, f"Kept: waited for at most {KEEPS:.0%} of that time, the first batch apart."] if said else []
    )


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    delays = list(_show.by(rows, "read_delay_ms"))
    methods = list(_show.by(rows, "method"))
    waits: _plots.Series = {
        name: [_show.best(rows, "waited_s", method=name, read_delay_ms=delay) for delay in delays]
        for name in methods
    }
    totals: dict[str, Sequence[tuple[float, float]]] = {
        name: [(row["point"]["read_delay_ms"], row["figures"]["total_s"]) for row in its]
        for name, its in _show.by(rows, "method").items()
    }
    totals["floor"] = [(delay, rows[0]["figures"]["floor_s"]) for delay in delays]
    steps = rows[0]["point"]["steps"]
    groups = [f"{delay:g} ms a read" for delay in delays]
    return [
        _plots.bars(
            folder / "waited.png",
            groups,
            waits,
            title=f"seconds of waiting in {steps} steps, the first batch apart",
            unit="s",
        ),
        _plots.lines(
            folder / "total.png", totals, title=f"seconds for {steps} steps", x="ms more a read", y="s"
        ),
    ]


POINT = ("read_delay_ms", "method", "steps", "step_ms", "batch_size", "image_size", "workers", "dali_threads")
COLUMNS = (
    *(
        Column(key=key, title=key.replace("_", " "), form="{:g}" if key.endswith("_ms") else "{}")
        for key in POINT
    ),
    Column(key="total_s", title="steps, s", form="{:.2f}"),
    Column(key="floor_s", title="floor, s", form="{:.2f}"),
    Column(key="over_floor_s", title="over the floor, s", form="{:.2f}", detail=True),
    Column(key="waited_s", title="waited, s", form="{:.3f}"),
    Column(key="first_batch_s", title="first batch, s", form="{:.2f}"),
    Column(key="start_s", title="start, s", form="{:.2f}"),
    Column(key="all_s", title="steps + first batch, s", form="{:.2f}"),
    Column(key="cpu_utilisation", title="CPU busy", form="{:.0%}"),
    Column(key="gpu_utilisation", title="GPU busy", form="{:.0%}", detail=True),
    Column(key="power_w", title="W", form="{:.0f}", detail=True),
)

SUITE = Suite(
    name="slow-storage",
    about="seconds that a consumer of a given step time takes and waits when each read is slower, the first "
    "batch apart",
    settings=SlowStorage,
    points=points,
    command=command,
    read=figures_of,
    columns=COLUMNS,
    rate="total_s",
    higher_is_better=False,
    plots=plots,
    conclude=conclude,
)

if __name__ == "__main__":
    measuring(SlowStorage, measure)
