"""`readers`: JPEG decoders on the CPU, a core and by cores: to a PIL image, to an array, a region, and the
work of a loader's worker.

Each process decodes parts of the plan for itself and counts; the parent reads the counters.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import cv2
import numpy as np
import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _plots, _show
from benchmarks._data import class_folders
from benchmarks._decoders import AUGMENTED, DALI, OTHERS, Files, Task, parts_of
from benchmarks._suite import (
    LEAST,
    Absent,
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
from contracts import Array, RateWindow, UserError
from dataset.open import open_split
from engine.distributed import cores
from loaders.images.decoders import PNG, READERS, plain_jpeg
from report.hardware import hardware, versions
from report.meter import spread, steady
from settings.cli import one_of
from settings.types import NotNegative

KNOWN = (*READERS, *OTHERS, DALI)
OF_PNG = ("nvimgcodec", "opencv", "imageio", "pil", DALI)
"""Readers of PNGs, for the tasks without a loader: it leaves every PNG to PIL."""
BLOCKS = 5
"""Windows that --seconds are cut into."""
CLOSE = 0.5
"""Grey levels: mean difference to PIL's pixels, in the worst file, of a reader that counts as one with the
same pixels."""
COMPARED = 100
"""Files whose pixels are compared with PIL's."""
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


class Readers(Common):
    """Rate, CPU time and pixels of JPEG decoders on the CPU."""

    data: Path | None = None
    """Folder with <class>/* (or train/<class>/*). Its plain JPEGs are used: grey or YCbCr, with all their
    bytes."""
    readers: tuple[str, ...] = ()
    """Decoders; default: all that are known. One that is not installed is a row that says so."""
    tasks: tuple[Task, ...] = ("to-pil", "to-array", "region", "train", "entropy")
    """to-pil, to-array: the whole image. region: a training window of it. train: read, decode the window,
    resize to 224, flip, as a worker of the torchvision loader. entropy: the last row of each window, which
    nothing can have without all rows above it. train-torchvision-v2, train-albumentations: train, and a
    function of that library (loaders.images.presets) on its result, but for dali."""
    format: Literal["jpeg", "png"] = "jpeg"
    """Files that are decoded: plain JPEGs, or the PNGs among the data, by the readers that know them."""
    processes: tuple[PositiveInt, ...] = ()
    """Processes with one thread each (dali: threads of one process). Default: 1 and all cores."""
    files: PositiveInt = 2000
    """At most so many files, evenly from the folder. They are held in memory."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 3.0
    """Seconds of steady windows to measure at each point."""
    warmup_s: NotNegative = 1.0
    """Before the first window, after every process has decoded something; the windows until the rate is
    steady are left out too."""


# --- points -------------------------------------------------------------------------------------------------


def points(settings: Readers) -> list[Point]:
    class_folders(settings.data)
    readers = [one_of("--readers", reader, KNOWN) for reader in settings.readers or KNOWN]
    processes = settings.processes or tuple(dict.fromkeys((1, max(int(cores()), 1))))
    asked = itertools.product(settings.tasks, processes, readers)
    # the others decode all rows of a region anyway
    found: list[Point] = [
        {"reader": reader, "task": task, "processes": count}
        for task, count, reader in asked
        if (task != "entropy" or reader == "nvimgcodec") and (task not in AUGMENTED or reader != DALI)
    ]
    if settings.format == "jpeg":
        return found
    of_png = ("to-pil", "to-array", "region")
    return [
        {**point, "format": "png"} for point in found if point["reader"] in OF_PNG and point["task"] in of_png
    ]


def files_of(settings: Readers) -> Files:
    """Read the files into memory, and so into the page cache. Raises UserError."""
    split = open_split(class_folders(settings.data))
    if settings.format == "png":
        plain = np.flatnonzero((split.columns.format == PNG) & (split.columns.depth == 8))
    else:
        plain = np.flatnonzero(plain_jpeg(split.columns, np.arange(len(split.columns))))
    if not len(plain):
        what = "PNG of 8 bits" if settings.format == "png" else "plain JPEG"
        raise UserError(f"--data {settings.data} has no {what} among its {len(split.columns)} images")
    ids = plain[np.linspace(0, len(plain) - 1, min(settings.files, len(plain))).round().astype(np.int64)]
    return Files(split, ids, {int(i): split.source.read(int(i)) for i in ids})


# --- measuring ----------------------------------------------------------------------------------------------


class Counters:
    """Shared counters of each process: images so far, when (seconds), with how much CPU time (seconds)."""

    def __init__(self, context: Any, processes: int) -> None:
        self._shared = context.Array("d", 3 * processes)

    def write(self, process: int, images: int) -> None:
        with self._shared.get_lock():
            self._shared[3 * process : 3 * process + 3] = [images, time.perf_counter(), time.process_time()]

    def read(self) -> Array:
        """Return the counters, float64 [processes, 3]."""
        with self._shared.get_lock():
            return np.array(self._shared[:]).reshape(-1, 3)


def between(before: Array, after: Array) -> tuple[RateWindow, float]:
    """Return the rate of all processes, each by its own clock, and the CPU microseconds of an image. Raises
    UserError when none was decoded."""
    images, seconds, cpu_s = (after - before).T
    total = int(images.sum())
    if not total:
        raise UserError("it refuses every file")
    return RateWindow(total, total, total / float((images / seconds).sum()), 0), 1e6 * float(
        cpu_s.sum()
    ) / total


def measure(settings: Readers, point: Point, _folder: Path) -> Measured:
    _one_thread()
    files = files_of(settings)
    reader = point["reader"]
    task = point["task"]
    count = point["processes"]
    threads = count if reader == DALI else 1
    blocks = _timed(
        lambda number: parts_of(reader, task, files, seed=number, threads=threads), count // threads, settings
    )
    windows = steady([window for window, _ in blocks])
    cpu_us = [microseconds for window, microseconds in blocks if window in windows]
    rates = [window.rate for window in windows]
    rate = float(np.median(rates))
    columns = files.split.columns
    figures = {
        "rate": rate,
        "per_core": rate / count,
        "cpu_us": float(np.median(cpu_us)),
        **({} if task == "entropy" else compare(reader, task, files)),
        "files": len(files.ids),
        **{name: float(getattr(columns, name)[files.ids].mean()) for name in ("size", "width", "height")},
    }
    libraries = [reader] if reader in OTHERS else []
    libraries += AUGMENTED[task][:1] if task in AUGMENTED else ()
    installed = {library: metadata.version(library) for library in libraries}
    machine = hardware(torch.device("cpu"), cores())
    return Measured(
        figures=figures,
        spread={"rate": spread(rates) or {}},
        versions={**versions(), **installed},
        hardware=machine,
    )


def _one_thread() -> None:
    """Limit this process to one thread, as in a loader's worker. Call it before any decoder is imported."""
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    torch.set_num_threads(1)
    cv2.setNumThreads(0)


def _timed(
    parts: Callable[[int], Iterator[list[Any]]], processes: int, settings: Readers
) -> list[tuple[RateWindow, float]]:
    """Measure blocks until the steady ones make `seconds`. Raises UserError with what a process says."""
    context = multiprocessing.get_context("fork")
    counters = Counters(context, processes)
    said = context.SimpleQueue()
    workers = [
        context.Process(target=_work, args=(parts, number, counters, said), daemon=True)
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()

    def after(before: Array, wait_s: float) -> Array:
        """Return the counters, once the time is over and every process has moved."""
        time.sleep(wait_s)
        while not ((now := counters.read())[:, 1] > before[:, 1]).all():
            if not said.empty():
                kind, what = said.get()
                raise (Absent if kind == "absent" else UserError)(what)
            if not all(worker.is_alive() for worker in workers):
                raise UserError(f"a process was ended: {[worker.exitcode for worker in workers]}")
            time.sleep(0.01)
        return now

    try:
        now = after(after(counters.read(), 0.0), settings.warmup_s)
        blocks: list[tuple[RateWindow, float]] = []
        while (
            len(kept := steady([window for window, _ in blocks])) < LEAST
            or sum(one.seconds for one in kept) < settings.seconds
        ):
            before = now
            now = after(now, settings.seconds / BLOCKS)
            blocks.append(between(before, now))
        return blocks
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(parts: Callable[[int], Iterator[list[Any]]], number: int, counters: Counters, said: Any) -> None:
    images = 0
    try:
        for part in parts(number):
            images += sum(one is not None for one in part)
            counters.write(number, images)
    except ImportError as error:
        said.put(("absent", f"not installed ({error})"))
    except Exception as error:
        traceback.print_exc()
        said.put(("failed", f"{type(error).__name__}: {error}"))


def compare(reader: str, task: Task, files: Files) -> dict[str, float]:
    """Return the mean absolute difference to PIL's pixels, grey levels: `mad` over the files, `worst` file;
    how many were `compared`, `refused`."""
    ours, pils = (
        itertools.chain.from_iterable(parts_of(name, task, files, seed=0)) for name in (reader, "pil")
    )
    found = [
        difference(*pair)
        for pair in itertools.islice(zip(ours, pils, strict=False), min(COMPARED, len(files.ids)))
    ]
    kept = [one for one in found if one is not None]
    mads = {"mad": float(np.mean(kept)), "worst": max(kept)} if kept else {}
    return {**mads, "compared": len(kept), "refused": len(found) - len(kept)}


def difference(ours: Any, pil: Any) -> float | None:
    """Return the mean difference of two images, grey levels; None when one is missing, or their sizes
    differ."""
    if ours is None or pil is None or np.shape(ours) != np.shape(pil):
        return None
    return float(np.abs(np.asarray(ours, np.int16) - np.asarray(pil, np.int16)).mean())


# --- what is told -------------------------------------------------------------------------------------------


def derive(rows: Sequence[Row]) -> list[Row]:
    """Add to each row, at the same task and number of processes, `against_pil`: the rate over PIL's;
    `cpu_against_pil`: PIL's CPU time over its."""
    pils = {
        (row["point"]["task"], row["point"]["processes"]): row["figures"] for row in good(rows, reader="pil")
    }

    def compared(row: Row) -> dict[str, float]:
        pil = pils.get((row["point"]["task"], row["point"]["processes"]))
        its = row["figures"]
        if not pil or row["status"] != "ok":
            return {}
        return {"against_pil": its["rate"] / pil["rate"], "cpu_against_pil": pil["cpu_us"] / its["cpu_us"]}

    return [{**row, "figures": {**row["figures"], **compared(row)}} for row in rows]


def good(rows: Sequence[Row], **where: Any) -> list[Row]:
    """Return the rows with figures whose point has these values."""
    return [row for row in rows if row["status"] == "ok" and where.items() <= row["point"].items()]


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return a line that says which files were decoded."""
    if not (found := good(rows)):
        return []
    figures = found[0]["figures"]
    size = (
        f"mean {figures['size'] / 1024:.0f} KiB and {figures['width']:.0f} x {figures['height']:.0f} pixels"
    )
    kind = "PNGs" if found[0]["point"].get("format") == "png" else "plain JPEGs"
    return [f"Files: {figures['files']:,} {kind}, {size}; pixels of up to {COMPARED} compared with PIL's."]


def conclude(rows: Sequence[Row]) -> list[str]:
    """Say the fastest reader of each task, and the floor of a region."""
    told = []
    for task, its in _show.by(good(rows), "task").items():
        count = max(_show.by(its, "processes"))
        close = [row for row in good(its, processes=count) if row["figures"].get("worst", CLOSE) < CLOSE]
        if len(close) < 2:
            continue
        best = max(close, key=lambda row: float(row["figures"]["rate"]))
        reader = best["point"]["reader"]
        figures = best["figures"]
        line = (
            f"{task}: with PIL's pixels (worst file within {CLOSE} grey levels) {reader} is the fastest "
            f"at {_show.processes(count)}"
        )
        line += f", {figures['against_pil']:.2f}x PIL" if "against_pil" in figures else ""
        for one in good(its, processes=1, reader=reader) if count > 1 else []:
            line += f"; its rate is {figures['rate'] / one['figures']['rate']:.1f} times that of one process"
        told.append(f"{line}.")
    for row in good(rows, task="entropy", processes=1):
        reader = row["point"]["reader"]
        for region in good(rows, task="region", processes=1, reader=reader):
            floor, whole = (one["figures"]["cpu_us"] for one in (row, region))
            told.append(
                f"The last row of a region alone takes {reader} {floor:,.0f} of the region's {whole:,.0f} "
                f"µs, {floor / whole:.0%}."
            )
    return told


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    drawn = []
    for count, its in _show.by(rows, "processes").items():
        readers = list(_show.by(its, "reader"))
        tasks = [task for task in _show.by(its, "task") if task != "entropy"]
        series = {
            task: [_show.best(its, "rate", reader=reader, task=task) for reader in readers] for task in tasks
        }
        if series:
            drawn.append(
                _plots.bars(
                    folder / f"bars-{count}.png",
                    readers,
                    series,
                    title=f"img/s, {_show.processes(count)}",
                    unit="img/s",
                )
            )
    for task, its in _show.by(rows, "task").items():
        lines: dict[str, Sequence[tuple[float, float]]] = {
            reader: [(row["point"]["processes"], row["figures"]["rate"]) for row in same]
            for reader, same in _show.by(its, "reader").items()
        }
        if len(_show.by(its, "processes")) > 1:
            drawn.append(
                _plots.lines(
                    folder / f"processes-{task}.png",
                    lines,
                    title=task,
                    x="processes (dali: threads)",
                    y="img/s",
                )
            )
    return drawn


COLUMNS = (
    *(Column(key=key, title=key) for key in ("reader", "task", "processes")),
    Column(key="rate", title="img/s", form="{:,.0f}"),
    Column(key="against_pil", title="/ PIL", form="{:.2f}"),
    Column(key="cpu_against_pil", title="PIL's CPU time / its", form="{:.2f}"),
    Column(key="per_core", title="a process", form="{:,.0f}"),
    Column(key="cpu_us", title="CPU µs an image", form="{:,.0f}"),
    Column(key="mad", title="difference to PIL", form="{:.3f}"),
    Column(key="worst", title="worst file", form="{:.3f}"),
    Column(key="refused", title="refused", form="{}"),
    Column(key="compared", title="compared", form="{}", detail=True),
)

SUITE = Suite(
    name="readers",
    about=f"JPEG decoders on the CPU, img/s of all processes; at least {LEAST} windows after the warm-up",
    settings=Readers,
    points=points,
    command=in_own_process("benchmarks.readers"),
    read=figures_of,
    columns=COLUMNS,
    rate="rate",
    derive=derive,
    plots=plots,
    remarks=remarks,
    conclude=conclude,
)

if __name__ == "__main__":
    measuring(Readers, measure)
