"""`loader --lines N`: an epoch of index traffic over a list, path and label of every sample, and what it
costs a worker.

    empty workers -> their memory | the list is read | an epoch -> the workers' memory, looked at all the time

No file is opened. A worker's memory is what the kernel says of it (/proc/PID/smaps_rollup): `own`, private
pages that were written, also copies of its parent's; and its share of `shared` memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch

from benchmarks._suite import Absent, Column, Measured, Point, Row, crossed, grouped
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
KINDS = {"own": "Private_Dirty", "shared": "Pss_Shmem"}
"""Kind of memory -> line of smaps_rollup."""
MOST_MIB = 20.0
"""What a worker may grow by over an empty one."""
EMPTY_BATCHES = 200
WINDOWS = 50
"""Parts of an epoch that are timed on their own."""
EVERY_S = 0.25
COLUMNS = (
    Column(key="read_s", title="read the list, s", form="{:.1f}"),
    Column(key="epoch_s", title="epoch, s", form="{:.1f}"),
    Column(key="share", title="of the epoch", form="{:.0%}"),
    Column(key="own_mib", title="own, MiB", form="{:,.1f}"),
    Column(key="shared_mib", title="shared, MiB", form="{:,.1f}"),
    Column(key="total_mib", title="all processes, MiB", form="{:,.0f}"),
)


def points(settings: Any) -> list[Point]:
    """Return the points of settings of `loader`. Raises UserError."""
    asked = METHODS if settings.loaders == ("auto",) else settings.loaders
    names = [one_of("--loaders", name, METHODS) for name in asked]
    batch_size = settings.batch_size or BATCH_SIZE
    if settings.lines % batch_size:
        raise UserError(
            f"--lines {settings.lines} are no whole batches of --batch-size {batch_size}"
        )
    return [
        point | {"lines": settings.lines, "batch_size": batch_size}
        for point in crossed(workers=settings.workers, loader=names)
    ]


def write_list(path: Path, lines: int) -> None:
    """Write a list of that many lines, about 33 bytes each, unless it is there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{time.time_ns()}")
    with fresh.open("w") as file:
        for first in range(0, lines, 100_000):
            ids = range(first, min(first + 100_000, lines))
            file.write(
                "".join(
                    f"c{i * 7919 % CLASSES:03d}/image_{i:09d}.jpg,{i * 7919 % CLASSES}\n"
                    for i in ids
                )
            )
    fresh.replace(path)


def expected_sum(lines: int) -> int:
    """Return the sum over all samples of their number: whether an epoch had each of them once."""
    return lines * len("c000/image_000000000.jpg") + int(
        (np.arange(lines) * 7919 % CLASSES).sum()
    )


Epoch = Callable[[], Generator[Array]]
"""-> an iterator over int64 [B], which is closed to end its workers."""


def ours(path: Path, cache: Path, *, batch_size: int, workers: int) -> Epoch:
    """Return an epoch over the list as train.py reads it with --trust-list, in its own worker processes."""
    split = image_list.open(path.parent, "train", cache=cache, unread=True)
    sizes = np.broadcast_to(
        np.int32(64), len(split.columns)
    )  # no file is opened, so there is no header
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


class Watch:
    """Looks at the memory of all child processes until it is closed, and keeps the largest of each."""

    def __init__(self, reserve_gib: float) -> None:
        self.peaks: dict[int, dict[str, float]] = {}  # process -> KINDS, MiB
        # of this process and all children at a time: each page once
        self.total_mib = 0.0
        self.short = False  # the machine has less than the reserve left
        self._reserve = reserve_gib * 2**30
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        """Look now: workers may end before the next time comes."""
        this = psutil.Process()
        with self._lock:
            self.short = self.short or psutil.virtual_memory().available < self._reserve
            total = 0.0
            for process in [this, *this.children()]:
                with suppress(OSError, psutil.Error):
                    memory = rollup(process.pid)
                    total += memory["Pss_Anon"] + memory["Pss_Shmem"]
                    if process.pid != this.pid:
                        peak = self.peaks.setdefault(
                            process.pid, dict.fromkeys(KINDS, 0.0)
                        )
                        for kind, line in KINDS.items():
                            peak[kind] = max(peak[kind], memory[line])
            self.total_mib = max(self.total_mib, total)


def rollup(pid: int) -> dict[str, float]:
    """Return the lines of /proc/PID/smaps_rollup, MiB. Raises OSError."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.partition(":")[0]: int(line.split()[1]) / 1024 for line in lines}


def passed(
    epoch: Epoch, *, lines: int, batch_size: int, most_s: float, watch: Watch
) -> tuple[int, int, list[float]]:
    """Return (samples, their sum, samples a second in each window) of an epoch, or of the begin of one."""
    samples = total = marked = 0
    window = max(lines // WINDOWS, batch_size)
    rates = []
    began = mark = time.perf_counter()
    with closing(epoch()) as batches:
        for batch in batches:
            samples += len(batch)
            total += int(batch.sum())
            if samples - marked >= window or samples == lines:
                watch.look()
                now = time.perf_counter()
                rates.append((samples - marked) / (now - mark))
                mark, marked = now, samples
                if watch.short or now - began > most_s:
                    break
    return samples, total, rates


def measure(settings: Any, point: Point, folder: Path) -> Measured:
    """Measure one point: an epoch by one way of holding the list."""
    prepare_process()
    name, lines = point["loader"], point["lines"]
    batch_size, workers = point["batch_size"], point["workers"]
    path = folder.parents[1] / f"list-{lines}" / "train.csv"
    write_list(path, lines)
    empty = Watch(settings.reserve_gib)
    samples = EMPTY_BATCHES * batch_size
    nothing = hand_made(
        by_hand.Nothing(samples), batch_size=batch_size, workers=workers
    )
    passed(nothing, lines=samples, batch_size=batch_size, most_s=60.0, watch=empty)
    empty.close()
    began = time.perf_counter()
    try:
        epoch = (
            ours(
                path,
                folder.parents[1] / "cache",
                batch_size=batch_size,
                workers=workers,
            )
            if name == OURS
            else hand_made(
                by_hand.DATASETS[name](path), batch_size=batch_size, workers=workers
            )
        )
    except ImportError as error:
        raise Absent(f"--loaders {name}: {error}: pip install {name}") from None
    read_s = time.perf_counter() - began
    watch = Watch(settings.reserve_gib)
    began = time.perf_counter()
    samples, total, rates = passed(
        epoch, lines=lines, batch_size=batch_size, most_s=settings.epoch_s, watch=watch
    )
    epoch_s = time.perf_counter() - began
    watch.close()
    whole = samples == lines
    grown = growth(watch.peaks, empty.peaks)
    repeated = {
        "rate": rates,
        **{f"{kind}_mib": values for kind, values in grown.items()},
    }
    return Measured(
        figures={
            "rate": float(np.median(rates)),
            "unit": "line/s",
            "read_s": read_s,
            "epoch_s": epoch_s if whole else None,
            "share": samples / lines,
            **{f"{kind}_mib": max(values) for kind, values in grown.items()},
            "total_mib": watch.total_mib,
        },
        spread={
            key: its for key, values in repeated.items() if (its := spread(values))
        },
        versions=hardware.versions()
        | ({name: metadata.version(name)} if name == "pandas" else {}),
        hardware=hardware.hardware(torch.device("cpu"), cores()),
        error="an epoch did not have each sample once"
        if whole and total != expected_sum(lines)
        else None,
    )


def growth(
    peaks: Mapping[int, Mapping[str, float]], empty: Mapping[int, Mapping[str, float]]
) -> dict[str, list[float]]:
    """Return MiB that each worker has more than an empty one has in the median, by kind of memory."""
    return {
        kind: [
            peak[kind] - float(np.median([one[kind] for one in empty.values()]))
            for peak in peaks.values()
        ]
        for kind in KINDS
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """Say whether a worker of ours keeps the bound."""
    told = []
    for workers, its in grouped(rows, lambda row: row["point"]["workers"]).items():
        grown = {
            row["point"]["loader"]: row["figures"]["own_mib"]
            + row["figures"]["shared_mib"]
            for row in its
        }
        if OURS in grown:
            keeps = "keeps" if grown[OURS] <= MOST_MIB else "does not keep"
            told.append(
                f"Own and shared memory of a worker over an empty one, --workers {workers}: {OURS} "
                f"{grown[OURS]:,.1f} MiB {keeps} the bound of {MOST_MIB:g} MiB."
            )
    return told
