"""`soak`: many epochs with a loader. Memory of host and device, open files, threads, processes and the rate,
epoch by epoch.

What grows by more than it may is a failed point: exit code 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import torch
from pydantic import Field, NonNegativeInt, PositiveInt

from benchmarks import _plots, _show
from benchmarks._leaks import COUNTS, MIB, margin, slope, verdict, warmer
from benchmarks._loaders import (
    Asked,
    data_folder,
    expanded,
    feed_of,
    medium_of,
    open_data,
)
from benchmarks._suite import (
    Column,
    Common,
    Measured,
    Point,
    Row,
    Suite,
    axis_columns,
    figures_of,
    in_own_process,
    measuring,
)
from contracts import Feed, Loader, UserError
from report.hardware import LOADS, Sampler, device_gib, hardware, host_gib, versions
from report.meter import Meter
from report.record import replace as write
from report.tensorboard import Board
from settings.types import NotNegative
from tasks import kind_named

JUDGED = 10
"""Fewest epochs after the warm-up: in fewer, a leak and noise look alike."""
TRIM = signal.SIGUSR1
"""The signal that asks a process to give freed memory back to the system."""
TRIM_S = 1.0
"""Seconds in which a process has to answer TRIM."""
LAYOUT = {
    "epochs": {
        **{f"{words}, MiB": [name] for name, words in MIB.items()},
        "left open": [*COUNTS],
        "rate": ["rate"],
    }
}
BATCH_SIZES = {"images": 64, "videos": 8}
CLIPS = ("clip_frames", "clip_stride", "clips")
"""Settings of videos alone."""


class Soak(Common):
    """Many epochs with a loader: does anything grow, does the rate fall?"""

    task: str = "classification"
    """Task of train.py, of images with a label or of clips of videos."""
    data: Path | None = None
    """Folder with <class>/* or train/<class>/*, images or videos, or with a list of videos, train.csv; an
    epoch is one pass over it."""
    loaders: tuple[str, ...] = ("auto",)
    """Names as in --loader of train.py; auto = all that read files and run here, but nvdec+ANOTHER."""
    epochs: PositiveInt = 30
    """Passes with each loader."""
    warm_epochs: NonNegativeInt = 4
    """Epochs at the start that are not judged, because allocators and pools still fill."""
    batch_size: PositiveInt | None = None
    """Samples a batch. Default: 64; of clips 8."""
    image_size: Annotated[int, Field(ge=8)] = 224
    """Height and width of the output, pixels."""
    workers: NonNegativeInt | None = None
    """Processes or threads that read and decode. Default: CPU cores, less one."""
    clip_frames: NonNegativeInt = 16
    """Frames of a clip; 0 = all frames of a video, from its first to its last."""
    clip_stride: PositiveInt = 1
    """Distance from one frame of a clip to the next, in frames of the video."""
    clips: NonNegativeInt = 0
    """Clips of a video in an epoch, evenly spaced. 0 = one at random, as in training."""
    max_mib_an_epoch: NotNegative = 0.5
    """Growth of host and of device memory above which a point fails. Of files, threads and processes none may
    be added. Growth in no more than 3 steps (or one in 10 epochs) is told and does not fail, as of a pool
    that meets a larger batch than before, while the steps come to 256 MiB or less in all, or to 3 files,
    threads or processes; a single step never fails."""


# --- readings -----------------------------------------------------------------------------------------------


_answers: tuple[int, int] | None = None  # both ends of a pipe, inside `trimming`


@contextmanager
def trimming() -> Iterator[None]:
    """Let processes that are forked inside give back what they have freed too, whenever `host_mib` reads."""
    global _answers
    outer = _answers
    ends = os.pipe()
    _answers = ends
    before = signal.signal(TRIM, _trim_and_answer)
    try:
        yield
    finally:
        signal.signal(TRIM, before)
        _answers = outer
        for end in ends:
            os.close(end)


def host_mib() -> float:
    """Return the memory of this process and its children, shared pages once (PSS), without libraries and
    other files.

    Their share is divided among whoever has them mapped: it jumps by 10 MiB whenever another program starts.
    What has been freed goes back to the system first, or a leak would be served from it; of children only
    inside `trimming`, and those that are busy for TRIM_S keep it. A worker that decodes 1080p keeps 2 to 25
    MiB of it, by chance.
    """
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    _trim()
    _trim_others([process.pid for process in processes[1:]])
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        kib = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
        if "Pss_Anon:" not in kib:  # Linux before 5.3
            return 1024 * host_gib()
        total += kib["Pss_Anon:"] + kib["Pss_Shmem:"]
    return total / 1024


def _trim() -> None:
    with contextlib.suppress(AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def _trim_and_answer(*_: object) -> None:
    _trim()
    if _answers is not None:
        os.write(_answers[1], b".")


def _trim_others(pids: Sequence[int]) -> None:
    """Ask the children that have a handler for it, as forked ones have ours, to trim, and wait for their
    answers."""
    if _answers is None:
        return
    answer = _answers[0]
    came = select.poll()  # select knows the first 1,024 files of a process alone
    came.register(answer, select.POLLIN)
    asked = 0
    while came.poll(0):
        os.read(answer, 4096)  # those that came too late
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            status = dict(
                line.split(":", 1)
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            )
            if int(status["SigCgt"], 16) >> (TRIM - 1) & 1:  # else it would end it
                os.kill(pid, TRIM)
                asked += 1
    until = time.monotonic() + TRIM_S
    while asked and came.poll(1000 * max(until - time.monotonic(), 0.0)):
        asked -= len(os.read(answer, asked))


def reading(device: Any) -> dict[str, float | None]:
    """Return host_mib, device_mib (None on a CPU; of all that use the device), and of the process tree files,
    threads, processes.

    Garbage is collected first. The first time that writes to all objects, so that pages are copied which this
    process shared with those that it has forked, 73 MiB of them: left to itself, Python did it after 24,000
    and 26,000 clips.
    """
    gc.collect()
    counted = []
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            counted.append((process.num_fds(), process.num_threads(), 1))
    on_device = device_gib(device)
    return {
        "host_mib": host_mib(),
        "device_mib": None if on_device is None else 1024 * on_device,
        **{
            name: sum(its)
            for name, its in zip(COUNTS, zip(*counted, strict=True), strict=True)
        },
    }


# --- a point ------------------------------------------------------------------------------------------------


def points(settings: Soak) -> list[Point]:
    medium = medium_of(settings.task)
    data_folder(settings.data, medium=medium, files=False)
    if (judged := settings.epochs - settings.warm_epochs) < JUDGED:
        got = f"--epochs {settings.epochs} with --warm-epochs {settings.warm_epochs}"
        raise UserError(
            f"{got} leaves {judged} epochs to judge, it takes {JUDGED}; more --epochs"
        )
    loaders = expanded(
        "--loaders", settings.loaders, torch.cuda.device_count(), task=settings.task
    )
    same: Point = {
        "batch_size": settings.batch_size or BATCH_SIZES[medium],
        "image_size": settings.image_size,
    }
    if medium == "videos":
        same |= {name: getattr(settings, name) for name in CLIPS}
    return [{"loader": loader, **same} for loader in loaders]


def feed(settings: Soak, point: Point, world: Any) -> Feed:
    """Return the folder's images with the windows of training, or clips of its videos. Raises UserError."""
    medium = medium_of(settings.task)
    asked = Asked(
        medium=medium,
        workers=world.workers(settings.workers),
        window="random-resized",
        flip=0.5,
        **{name: value for name, value in point.items() if name != "loader"},
    )
    data = open_data(data_folder(settings.data, medium=medium, files=False), medium)
    return feed_of(asked, point["loader"], data, world)


def measure(
    settings: Soak,
    point: Point,
    folder: Path,
    open_: Callable[[str, Feed], Loader] | None = None,
) -> Measured:
    """Pass over the data --epochs times with one open loader, and read after each. `open_` stands in for
    loaders.open_loader."""
    from engine.distributed import ProcessWorld, cores, prepare_process
    from loaders import open_loader

    device = prepare_process()
    world = ProcessWorld(device)
    batches = feed(settings, point, world)
    meter = Meter(world, min_window_s=0.0, synchronise=world.synchronise)
    series: dict[str, list[float]] = {}
    board = Board(folder)
    board.layout(LAYOUT)
    with ExitStack() as stack:
        stack.enter_context(trimming())
        loader = stack.enter_context((open_ or open_loader)(point["loader"], batches))
        load = Sampler(device, cores=cores(), host=False).start()
        stack.callback(load.stop)
        for epoch in range(settings.epochs):
            if epoch == settings.warm_epochs:
                load.read()  # the loads are of the epochs that are judged
            meter.resume(epoch)
            for batch in loader.batches(epoch, 0):
                meter.add(batch.delivered)
            window = meter.pause()
            assert window is not None
            now = {"rate": window.rate, **reading(device)}
            for one, value in now.items():
                if value is not None:
                    series.setdefault(one, []).append(value)
            board.scalars({f"epochs/{one}": value for one, value in now.items()}, epoch)
        busy = load.read()
    write(folder / "series.json", json.dumps(series).encode())
    warm = {one: values[settings.warm_epochs :] for one, values in series.items()}
    said, rose = verdict(warm, max_mib_an_epoch=settings.max_mib_an_epoch)
    said += warmer(said, batches.plan.steps(), settings.warm_epochs)
    # no leak was found, but one of this size could hide in the noise
    unclear = [
        f"{words} varies too much to tell: {slope(warm[one]):+.2f} ± {spread:.2f} MiB an epoch, more "
        "--epochs tell more"
        for one, words in MIB.items()
        if one in warm and (spread := margin(warm[one])) > settings.max_mib_an_epoch
    ]
    low, rate, high = (
        float(part) for part in np.percentile(warm["rate"], (25, 50, 75))
    )
    figures: dict[str, float | int | str | None] = {
        "rate": rate,
        "rate_an_epoch": slope(warm["rate"]) / rate,
        **{
            f"{one}_an_epoch": slope(values)
            for one, values in warm.items()
            if one != "rate"
        },
        **{f"{one}_margin": margin(warm[one]) for one in MIB if one in warm},
        **{one: values[-1] for one, values in warm.items() if one != "rate"},
        **{one: busy[one] for one in LOADS},
        "epochs": settings.epochs,
        **(
            {"unit": kind_named("video").unit}
            if medium_of(settings.task) == "videos"
            else {}
        ),
    }
    _show.hparams(board, SUITE.name, point, figures)
    board.close(finished=not said)
    return Measured(
        figures={**figures, "verdict": "; ".join([*said, *rose] or unclear) or "flat"},
        spread={
            "rate": {
                "n": len(warm["rate"]),
                "min": min(warm["rate"]),
                "max": max(warm["rate"]),
                "iqr": high - low,
            }
        },
        versions=versions(),
        hardware=hardware(device, cores()),
        error="; ".join(said) or None,
    )


# --- what is told -------------------------------------------------------------------------------------------


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw curves over the epochs, warm-up included; memory above its lowest reading after the first epoch,
    for a leak is small beside it."""
    series = {
        row["point"]["loader"]: json.loads(
            (folder.parent / row["folder"] / "series.json").read_text()
        )
        for row in rows
    }
    drawn = []
    for name, title, unit in (
        ("host_mib", "host memory of the process tree, above its lowest", "MiB"),
        ("device_mib", "device memory, above its lowest", "MiB"),
        ("rate", "rate", _show.unit_of(rows)),
    ):
        curves: dict[str, Sequence[tuple[float, float]]] = {
            loader: [
                (float(epoch), value - (min(its[name][1:]) if name in MIB else 0.0))
                for epoch, value in enumerate(its[name])
                if epoch
            ]
            for loader, its in series.items()
            if name in its
        }
        if curves:
            drawn.append(
                _plots.lines(
                    folder / f"{name.removesuffix('_mib')}.png",
                    curves,
                    title=title,
                    x="epoch",
                    y=unit,
                )
            )
    return drawn


COLUMNS = (
    *axis_columns("loader", "batch_size", "image_size", *CLIPS),
    Column(key="rate", title="{unit}", form="{:,.0f}"),
    Column(key="rate_an_epoch", title="rate an epoch", form="{:+.2%}"),
    Column(key="host_mib_an_epoch", title="host MiB an epoch", form="{:+.2f}"),
    Column(key="host_mib_margin", title="±", form="{:.2f}"),
    Column(key="device_mib_an_epoch", title="GPU MiB an epoch", form="{:+.2f}"),
    Column(key="device_mib_margin", title="±", form="{:.2f}"),
    *(
        Column(key=f"{key}_an_epoch", title=f"{key} an epoch", form="{:+.2f}")
        for key in COUNTS
    ),
    Column(key="host_mib", title="host MiB", form="{:,.0f}"),
    Column(key="device_mib", title="GPU MiB", form="{:,.0f}"),
    *(Column(key=key, title=key, form="{:.0f}", detail=True) for key in COUNTS),
    Column(key="cpu_utilisation", title="CPU busy", form="{:.0%}", detail=True),
    Column(key="gpu_utilisation", title="GPU busy", form="{:.0%}", detail=True),
    Column(key="power_w", title="W", form="{:.0f}", detail=True),
    Column(key="epochs", title="epochs", detail=True),
    Column(key="verdict", title="verdict"),
)

SUITE = Suite(
    name="soak",
    about="what an epoch adds to memory, open files, threads and processes, with a loader alone",
    settings=Soak,
    points=points,
    command=in_own_process("benchmarks.soak"),
    read=figures_of,
    columns=COLUMNS,
    rate="rate",
    plots=plots,
    over=("loader",),
    curves=(),
)

if __name__ == "__main__":
    measuring(Soak, measure)
