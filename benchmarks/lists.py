"""`lists`: an epoch of index traffic over a list, path and label of every sample, and what it costs a worker.

    empty workers -> their memory | the list is read | an epoch -> the workers' memory, looked at all the time

No file is opened. A worker's memory is what the kernel says of it (/proc/PID/smaps_rollup):

    own         private pages that were written: what this worker alone takes, also copies of its parent's
    anonymous   all pages that lie in no file, also those that it has from its parent and has not written
    shared      its share of shared memory
    file        its share of pages of files, which the kernel may drop at any time
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, cast

from engine.distributed import cores, prepare_process  # before torch: see there

# isort: split
import numpy as np
import psutil
import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _plots, _show
from benchmarks._suite import (
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
from benchmarks.baselines import lists as by_hand
from contracts import Array, FileSource, Rows, Split, UserError
from dataset.stores import list as image_list
from loaders._workers import Workers
from plan.images import ImagePlan, ImagePolicy
from report import hardware
from report.meter import spread
from settings.cli import one_of

OURS = "ours"
METHODS = (OURS, *by_hand.DATASETS)
CLASSES = 1_000
KINDS = {"own": "Private_Dirty", "anonymous": "Anonymous", "shared": "Pss_Shmem", "file": "Pss_File"}
"""Kind of memory -> line of smaps_rollup."""
MOST_MIB = 20.0
"""What a worker may grow by over an empty one."""
EMPTY_BATCHES = 200
WINDOWS = 50
"""Parts of an epoch that are timed on their own."""
EVERY_S = 0.25


class Lists(Common):
    """Seconds of an epoch of index traffic over a list, and the memory of a worker, by way of holding it."""

    lines: Annotated[int, Field(ge=1_000)] = 20_000
    """Lines of the list, about 33 bytes each."""
    methods: tuple[str, ...] = METHODS
    """ours, or a dataset by hand (benchmarks/baselines/lists.py): python-list, numpy, pandas, walk (each
    worker reads the file)."""
    workers: tuple[PositiveInt, ...] = (1, 16)
    """Worker processes."""
    batch_size: PositiveInt = 250
    """Samples a batch; --lines are whole batches."""
    epoch_s: Annotated[FiniteFloat, Field(gt=0)] = 300.0
    """An epoch that takes longer is broken off, and the share of it is told."""
    reserve_gib: Annotated[FiniteFloat, Field(ge=0)] = 2.0
    """An epoch is broken off when the machine has less memory left."""


def points(settings: Lists) -> list[Point]:
    methods = [one_of("--methods", name, METHODS) for name in settings.methods]
    if settings.lines % settings.batch_size:
        raise UserError(
            f"--lines {settings.lines} are no whole batches of --batch-size {settings.batch_size}"
        )
    same = settings.model_dump(include={"lines", "batch_size"})
    return [{"method": name, "workers": count, **same} for count in settings.workers for name in methods]


def write_list(path: Path, lines: int) -> None:
    """Write a list of that many lines, unless it is there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{time.time_ns()}")
    with fresh.open("w") as file:
        for first in range(0, lines, 100_000):
            ids = range(first, min(first + 100_000, lines))
            file.write(
                "".join(f"c{i * 7919 % CLASSES:03d}/image_{i:09d}.jpg,{i * 7919 % CLASSES}\n" for i in ids)
            )
    fresh.replace(path)


def expected_sum(lines: int) -> int:
    """Return the sum over all samples of their number: whether an epoch had each of them once."""
    return lines * len("c000/image_000000000.jpg") + int((np.arange(lines) * 7919 % CLASSES).sum())


Epoch = Callable[[], Generator[Array]]
"""-> an iterator over int64 [B], which is closed to end its workers."""


def ours(path: Path, cache: Path, *, batch_size: int, workers: int) -> Epoch:
    """Return an epoch over the list as train.py reads it with --trust-list, in its own worker processes."""
    split = image_list.open_trusted(path.parent, "train", cache=cache)
    sizes = np.broadcast_to(np.int32(64), len(split.columns))  # no file is opened, so there is no header
    policy = ImagePolicy(window="stretch", image_size=8)
    plan = ImagePlan(heights=sizes, widths=sizes, policy=policy, seed=0, batch_size=batch_size)

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
            len(self._source.path(sample)) - self._below + int(self._label[sample]) for sample in ids
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
        self.total_mib = 0.0  # of this process and all children at a time: each page once
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
                    found = rollup(process.pid)
                    total += found["Pss_Anon"] + found["Pss_Shmem"]
                    if process.pid != this.pid:
                        peak = self.peaks.setdefault(process.pid, dict.fromkeys(KINDS, 0.0))
                        self.peaks[process.pid] = {
                            kind: max(peak[kind], found[line]) for kind, line in KINDS.items()
                        }
            self.total_mib = max(self.total_mib, total)


def rollup(pid: int) -> dict[str, float]:
    """Return the lines of /proc/PID/smaps_rollup, MiB. Raises OSError."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.partition(":")[0]: int(line.split()[1]) / 1024 for line in lines}


def passed(
    epoch: Epoch, *, lines: int, batch_size: int, most_s: float, watch: Watch
) -> tuple[int, int, list[float]]:
    """Return (samples, their sum, samples a second in each window) of an epoch, or of the begin of one."""
    samples = total = 0
    window = max(lines // WINDOWS, batch_size)
    rates = []
    began = mark = time.perf_counter()
    marked = 0
    with closing(epoch()) as batches:
        for batch in batches:
            samples += len(batch)
            total += int(batch.sum())
            if samples - marked >= window or samples == lines:
                watch.look()
                now = time.perf_counter()
                rates.append((samples - marked) / (now - mark))
                mark = now
                marked = samples
                if watch.short or now - began > most_s:
                    break
    return samples, total, rates


def measure(settings: Lists, point: Point, folder: Path) -> Measured:
    prepare_process()
    method = point["method"]
    lines = point["lines"]
    how = {"batch_size": point["batch_size"], "workers": point["workers"]}
    path = folder.parents[1] / f"list-{lines}" / "train.csv"
    write_list(path, lines)
    empty = Watch(settings.reserve_gib)
    nothing = hand_made(by_hand.Nothing(EMPTY_BATCHES * how["batch_size"]), **how)
    passed(
        nothing,
        lines=EMPTY_BATCHES * how["batch_size"],
        batch_size=how["batch_size"],
        most_s=60.0,
        watch=empty,
    )
    empty.close()
    began = time.perf_counter()
    try:
        epoch = (
            ours(path, folder.parents[1] / "cache", **how)
            if method == OURS
            else hand_made(by_hand.DATASETS[method](path), **how)
        )
    except ImportError as error:
        raise Absent(f"--methods {method}: {error}: pip install {method}") from None
    read_s = time.perf_counter() - began
    watch = Watch(settings.reserve_gib)
    began = time.perf_counter()
    samples, total, rates = passed(
        epoch, lines=lines, batch_size=how["batch_size"], most_s=settings.epoch_s, watch=watch
    )
    epoch_s = time.perf_counter() - began
    watch.close()
    whole = samples == lines
    wrong = whole and total != expected_sum(lines)
    grown = growth(watch.peaks, empty.peaks)
    figures: dict[str, float | int | str | None] = {
        "rate": float(np.median(rates)),
        "read_s": read_s,
        **({"epoch_s": epoch_s} if whole else {}),
        "share": samples / lines,
        **{f"{kind}_mib": max(values) for kind, values in grown.items()},
        "total_mib": watch.total_mib,
        "ended": "whole" if whole else "memory" if watch.short else "time",
    }
    spreads = {f"{kind}_mib": spread(values) for kind, values in grown.items()} | {"rate": spread(rates)}
    versions = hardware.versions()
    if method == "pandas":
        versions["pandas"] = metadata.version("pandas")
    return Measured(
        figures=figures,
        spread={name: found for name, found in spreads.items() if found},
        versions=versions,
        hardware=hardware.hardware(torch.device("cpu"), cores()),
        error="an epoch did not have each sample once" if wrong else None,
    )


def growth(
    peaks: Mapping[int, Mapping[str, float]], empty: Mapping[int, Mapping[str, float]]
) -> dict[str, list[float]]:
    """Return MiB that each worker has more than an empty one has in the median, by kind of memory."""
    return {
        kind: [
            peak[kind] - float(np.median([one[kind] for one in empty.values()])) for peak in peaks.values()
        ]
        for kind in KINDS
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """Say by how much a worker grows, and whether ours keeps the bound."""
    said = []
    for workers, its in _show.by([row for row in rows if row["status"] == "ok"], "workers").items():
        grown = {
            row["point"]["method"]: row["figures"]["own_mib"] + row["figures"]["shared_mib"] for row in its
        }
        told = ", ".join(f"{name} {mib:,.1f} MiB" for name, mib in grown.items())
        said.append(f"Own and shared memory of a worker, over an empty one, --workers {workers}: {told}.")
        if OURS in grown:
            kept = "keeps" if grown[OURS] <= MOST_MIB else "does not keep"
            said.append(f"{OURS} {kept} the bound of {MOST_MIB:g} MiB.")
    return said


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    counts = list(_show.by(rows, "workers"))
    grown: _plots.Series = {
        method: [_show.best(rows, "own_mib", method=method, workers=count) for count in counts]
        for method in _show.by(rows, "method")
    }
    groups = [f"{count} worker{'s' * (count > 1)}" for count in counts]
    title = f"memory that a worker takes for itself, {rows[0]['point']['lines']:,} lines"
    return [_plots.bars(folder / "own.png", groups, grown, title=title, unit="MiB")]


SUITE = Suite(
    name="lists",
    about="an epoch of index traffic over a list: seconds, and what a worker's memory grows by",
    settings=Lists,
    points=points,
    command=in_own_process("benchmarks.lists"),
    read=figures_of,
    columns=(
        Column(key="workers", title="workers"),
        Column(key="method", title="method"),
        Column(key="lines", title="lines", form="{:,}"),
        Column(key="batch_size", title="batch size"),
        Column(key="read_s", title="read the list, s", form="{:.1f}"),
        Column(key="epoch_s", title="epoch, s", form="{:.1f}"),
        Column(key="share", title="of the epoch", form="{:.0%}"),
        Column(key="ended", title="ended by", detail=True),
        Column(key="rate", title="lines/s", form="{:,.0f}"),
        Column(key="own_mib", title="own, MiB", form="{:,.1f}"),
        Column(key="anonymous_mib", title="anonymous, MiB", form="{:,.1f}"),
        Column(key="shared_mib", title="shared, MiB", form="{:,.1f}"),
        Column(key="file_mib", title="file, MiB", form="{:,.1f}"),
        Column(key="total_mib", title="all processes, MiB", form="{:,.0f}"),
    ),
    rate="rate",
    plots=plots,
    remarks=remarks,
)

if __name__ == "__main__":
    measuring(Lists, measure)
