"""`loader --lines N`: an epoch of index traffic over a list, path and label of every sample, and what it
costs a worker.

    empty workers -> their memory | the list is read | an epoch -> the workers' memory, looked at all the time

No file is opened. A worker's memory is what the kernel says of it (/proc/PID/smaps_rollup): `own`, private
pages that were written, also copies of its parent's; and its share of `shared` memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch

from benchmarks._suite import Absent, Measured, Point, crossed
from benchmarks.baselines import lists as by_hand
from contracts import Array, FileSource, Rows, Split, UserError
from dataset.stores import list as image_list
from engine.distributed import cores, prepare_process
from loaders._workers import Workers
from plan.images import ImagePlan, ImagePolicy
from report import hardware
from report.meter import spread
from settings.cli import one_of

OURS = "ours"
METHODS = (OURS, *by_hand.DATASETS)
CLASSES = 1_000
BATCH_SIZE = 250
"""Samples a batch, where none is asked for."""
KINDS = {"own_mib": "Private_Dirty", "shared_mib": "Pss_Shmem"}
"""Figure of a worker -> line of smaps_rollup."""
EMPTY_BATCHES = 200
WINDOWS = 50
"""Parts of an epoch that are timed on their own."""
EVERY_S = 0.25
COLUMNS = {
    "read_s": ("read the list, s", "{:.1f}"),
    "epoch_s": ("epoch, s", "{:.1f}"),
    "share": ("of the epoch", "{:.0%}"),
    "own_mib": ("own, MiB", "{:,.1f}"),
    "shared_mib": ("shared, MiB", "{:,.1f}"),
}
Epoch = Callable[[], Generator[Array]]
"""() -> an iterator over int64 [B]; closing it ends its workers."""


def points(settings: Any) -> list[Point]:
    """Return the points of settings of `loader`. Raises UserError."""
    asked = METHODS if settings.loaders == ("auto",) else settings.loaders
    names = [one_of("--loaders", name, METHODS) for name in asked]
    size = settings.batch_size or BATCH_SIZE
    if settings.lines % size:
        raise UserError(f"--lines {settings.lines}: no whole batches of {size}")
    same = {"lines": [settings.lines], "batch_size": [size]}
    return crossed(workers=settings.workers, loader=names, **same)


def line(number: int) -> str:
    """Return a line of the list, about 33 bytes."""
    label = number * 7919 % CLASSES
    return f"c{label:03d}/image_{number:09d}.jpg,{label}\n"


def write_list(path: Path, lines: int) -> None:
    """Write a list of that many lines unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".fresh")
        with fresh.open("w") as file:
            file.writelines(map(line, range(lines)))
        fresh.replace(path)


def expected_sum(lines: int) -> int:
    """Return the sum over all samples of their number: whether an epoch had each of them once."""
    labels = np.arange(lines) * 7919 % CLASSES
    return lines * line(0).index(",") + int(labels.sum())


def ours(path: Path, cache: Path, *, batch_size: int, workers: int) -> Epoch:
    """Return an epoch over the list as train.py reads it with --trust-list, in its own worker processes."""
    split = image_list.open(path.parent, "train", cache=cache, unread=True)
    # no file is opened, so there is no header
    sizes = np.broadcast_to(np.int32(64), len(split.columns))
    policy = ImagePolicy(window="stretch", image_size=8)
    plan = ImagePlan(
        heights=sizes, widths=sizes, policy=policy, seed=0, batch_size=batch_size
    )

    def epoch() -> Generator[Array]:
        pool = Workers(
            lambda: Numbers(split),
            workers=workers,
            batch_size=batch_size,
            part_bytes=lambda rows: 8 * rows,
            part_rows=batch_size,  # as a loader by hand hands them out
        )
        with closing(pool):
            for slot, rows, _ in pool.run(plan.rows(0, 0)):
                yield slot[: 8 * len(rows)].view(np.int64)

    return epoch


class Numbers:
    """A worker's work: the length of each sample's path plus its label, as the datasets by hand give it."""

    def __init__(self, split: Split) -> None:
        self._source = cast(FileSource, split.source)
        self._label = split.columns.label
        self._below = len(f"{split.columns.root}/")

    def __call__(self, rows: Rows, slot: Array) -> None:
        ids = rows.ids.tolist()
        slot[: 8 * len(ids)].view(np.int64)[:] = [
            len(self._source.path(sample)) - self._below + int(self._label[sample])
            for sample in ids
        ]


def hand_made(dataset: Any, *, batch_size: int, workers: int) -> Epoch:
    """Return an epoch over a dataset by hand."""

    def epoch() -> Generator[Array]:
        yield from by_hand.loader(dataset, batch_size=batch_size, workers=workers)

    return epoch


Peaks = dict[int, dict[str, float]]
"""Process -> the largest of each of KINDS so far, MiB."""


def look(peaks: Peaks) -> None:
    """Look at the memory of all child processes."""
    for process in psutil.Process().children():
        with suppress(OSError, psutil.Error):  # it has ended
            memory = rollup(process.pid)
            peak = peaks.setdefault(process.pid, dict.fromkeys(KINDS, 0.0))
            for kind, name in KINDS.items():
                peak[kind] = max(peak[kind], memory[name])


def rollup(pid: int) -> dict[str, float]:
    """Return the lines of /proc/PID/smaps_rollup, MiB. Raises OSError."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {each.partition(":")[0]: int(each.split()[1]) / 1024 for each in lines}


def passed(
    epoch: Epoch, lines: int, peaks: Peaks, *, most_s: float, reserve_gib: float = 0.0
) -> tuple[int, int, list[float]]:
    """Return (samples, their sum, samples a second in each window) of an epoch; of the begin of one where it
    takes longer than `most_s`, or where the machine has less memory than the reserve.
    """
    samples = total = marked = 0
    rates = []
    began = mark = looked = time.perf_counter()
    with closing(epoch()) as batches:
        for batch in batches:
            samples += len(batch)
            total += int(batch.sum())
            now = time.perf_counter()
            if now - looked > EVERY_S or samples == lines:
                look(peaks)
                looked = now
                free_gib = psutil.virtual_memory().available / 2**30
                if free_gib < reserve_gib or now - began > most_s:
                    break
            if samples - marked >= lines // WINDOWS:
                rates.append((samples - marked) / (now - mark))
                mark, marked = now, samples
    return samples, total, rates


def measure(settings: Any, point: Point, folder: Path) -> Measured:
    """Measure one point: an epoch by one way of holding the list."""
    prepare_process()
    name, lines = point["loader"], point["lines"]
    how = {key: point[key] for key in ("batch_size", "workers")}
    path = folder.parents[1] / f"list-{lines}" / "train.csv"
    write_list(path, lines)
    empty: Peaks = {}
    peaks: Peaks = {}
    samples = EMPTY_BATCHES * how["batch_size"]
    passed(hand_made(range(samples), **how), samples, empty, most_s=60.0)
    began = time.perf_counter()
    try:
        epoch = (
            ours(path, folder.parents[1] / "cache", **how)
            if name == OURS
            else hand_made(by_hand.DATASETS[name](path), **how)
        )
    except ImportError as error:
        raise Absent(f"--loaders {name}: {error}") from None
    read_s = time.perf_counter() - began
    limits = {"most_s": settings.epoch_s, "reserve_gib": settings.reserve_gib}
    began = time.perf_counter()
    samples, total, rates = passed(epoch, lines, peaks, **limits)
    epoch_s = time.perf_counter() - began
    whole = samples == lines
    repeated = {kind: growth(peaks, empty, kind) for kind in KINDS}
    wrong = whole and total != expected_sum(lines)
    packages = {name: metadata.version(name)} if name == "pandas" else {}
    return Measured(
        figures={
            "rate": float(np.median(rates)),
            "unit": "line/s",
            "read_s": read_s,
            "epoch_s": epoch_s if whole else None,
            "share": samples / lines,
            **{kind: max(values) for kind, values in repeated.items()},
        },
        spread={
            kind: its
            for kind, values in {"rate": rates, **repeated}.items()
            if (its := spread(values))
        },
        versions=hardware.versions() | packages,
        hardware=hardware.hardware(torch.device("cpu"), cores()),
        error="an epoch did not have each sample once" if wrong else None,
    )


def growth(peaks: Peaks, empty: Peaks, kind: str) -> list[float]:
    """Return MiB that each worker has more than an empty one has in the median."""
    base = float(np.median([peak[kind] for peak in empty.values()]))
    return [peak[kind] - base for peak in peaks.values()]
