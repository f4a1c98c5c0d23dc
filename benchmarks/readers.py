"""`readers`: JPEG decoders on the CPU, a core and by cores: to a PIL image, to an array, a region, and the work of a loader's worker.

Each process decodes parts of the plan for itself and counts; the parent reads the counters. Decoders of saturate are those of
loaders/_readers.py; the others, which it does not need, are here in a few lines each and may be absent.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import cv2
import numpy as np
import torch
from PIL import Image
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _show
from benchmarks._suite import (
    LEAST,
    Absent,
    Column,
    Common,
    Measured,
    Point,
    Row,
    Suite,
    class_folders,
    figures_of,
    in_own_process,
    measuring,
)
from config import NotNegative, one_of
from contracts import Feed, Mistake, Rows
from dataset.plan import StillPlan, StillPolicy
from dataset.splits import Split, open_split
from engine.distributed import cores
from loaders._dali import PathPreparer, Runner, build
from loaders._readers import READERS, Decode, Region, decode_many, plain_jpeg
from loaders._workers import PART
from loaders.torchvision import Decoding
from report.hardware import hardware, versions
from report.meter import Window, spread, steady

Array = np.ndarray[Any, Any]
Task = Literal["to-pil", "to-array", "region", "train", "entropy"]
DALI = "dali"
SIZE = 224
"""Side of a training image, pixels."""
BLOCKS = 5
"""Windows that --seconds are cut into."""
CLOSE = 0.5
"""Grey levels: mean difference to PIL's pixels, in the worst file, of a reader that counts as one with the same pixels."""
COMPARED = 100
"""Files whose pixels are compared with PIL's."""
AHEAD = 128
"""Parts whose windows are drawn before the clock starts, and then used again and again."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")


class Readers(Common):
    """Rate, CPU time and pixels of JPEG decoders on the CPU."""

    data: Path | None = None
    """Folder with <class>/* (or train/<class>/*). Its plain JPEGs are used: grey or YCbCr, with all their bytes."""
    readers: tuple[str, ...] = ()
    """Decoders; default: all that are known. One that is not installed is a row that says so."""
    tasks: tuple[Task, ...] = ("to-pil", "to-array", "region", "train", "entropy")
    """to-pil, to-array: the whole image. region: a training window of it. train: read, decode the window, resize to 224, flip, as a
    worker of the torchvision loader. entropy: the last row of each window, which nothing can have without all rows above it."""
    processes: tuple[PositiveInt, ...] = ()
    """Processes with one thread each (dali: threads of one process). Default: 1 and all cores."""
    files: PositiveInt = 2000
    """At most so many files, evenly from the folder. They are held in memory."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 3.0
    """Of steady windows to measure at each point."""
    warmup_s: NotNegative = 1.0
    """Before the first window, after every process has decoded something; the windows until the rate is steady are left out too."""


# --- other people's decoders ----------------------------------------------------------------------------------------------------------


def _whole(decode: Callable[[bytes], Array]) -> Decode:
    """For a decoder that knows whole images only."""
    return lambda data, region: decode(data)[region[1] : region[3], region[0] : region[2]]


def _make_simplejpeg() -> Decode:
    return _whole(import_module("simplejpeg").decode_jpeg)


def _make_kornia_rs() -> Decode:
    return _whole(partial(import_module("kornia_rs.io").decode_image_jpegturbo, mode="rgb"))


def _make_imagecodecs() -> Decode:
    return _whole(partial(import_module("imagecodecs").jpeg8_decode, outcolorspace="RGB"))


def _make_av() -> Decode:
    av = import_module("av")
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.thread_count = 1
    return _whole(lambda data: decoder.decode(av.Packet(data))[0].to_ndarray(format="rgb24"))


OTHERS: dict[str, Callable[[], Decode]] = {
    "simplejpeg": _make_simplejpeg,
    "kornia-rs": _make_kornia_rs,
    "imagecodecs": _make_imagecodecs,
    "av": _make_av,
}
"""Name on PyPI -> a function that makes the decoder."""
KNOWN = (*READERS, *OTHERS, DALI)


# --- points ---------------------------------------------------------------------------------------------------------------------------


def points(settings: Readers) -> list[Point]:
    class_folders(settings.data)
    readers = [one_of("--readers", reader, KNOWN) for reader in settings.readers or KNOWN]
    processes = settings.processes or tuple(dict.fromkeys((1, max(int(cores()), 1))))
    asked = itertools.product(settings.tasks, processes, readers)
    # the others decode all rows of a region anyway
    return [
        {"reader": reader, "task": task, "processes": count} for task, count, reader in asked if task != "entropy" or reader == "nvimgcodec"
    ]


# --- what is decoded ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """Plain JPEGs: their ids in the manifest, and their bytes by id."""

    split: Split
    ids: Array
    bytes_of: Mapping[int, bytes]

    def parts(self, seed: int, size: int = PART) -> Iterator[Rows]:
        """Endless: `size` training samples each, in the order and with the windows that a run with this seed would have."""
        ids = np.resize(self.ids, max(len(self.ids), size))  # again from the first, where there are too few
        plan = self._plan(ids, seed, size)
        drawn = (replace(rows, ids=ids[rows.ids]) for epoch in itertools.count() for rows in plan.rows(epoch, 0))
        return itertools.cycle(list(itertools.islice(drawn, max(AHEAD * PART // size, 4))))

    def feed(self, size: int = PART) -> Feed:
        """For a loader's parts."""
        plan, columns = self._plan(self.ids, 0, size), self.split.columns
        return Feed(plan=plan, source=self.split.source, columns=columns, targets=lambda rows: {}, device=torch.device("cpu"), workers=1)

    def _plan(self, ids: Array, seed: int, size: int) -> StillPlan:
        policy = StillPolicy(window="random-resized", image_size=SIZE, flip=0.5)
        columns = self.split.columns
        return StillPlan(heights=columns.height[ids], widths=columns.width[ids], policy=policy, seed=seed, batch_size=size)

    def regions(self, task: Task, rows: Rows) -> list[Region]:
        """What of each sample a task decodes."""
        columns = self.split.columns
        if task in ("to-pil", "to-array"):
            return [(0, 0, int(columns.width[i]), int(columns.height[i])) for i in rows.ids]
        return [(x0, y1 - 1 if task == "entropy" else y0, x1, y1) for x0, y0, x1, y1 in rows.regions.tolist()]


def files_of(settings: Readers) -> Files:
    """Read into memory, and so into the page cache. Raises Mistake."""
    split = open_split(class_folders(settings.data))
    plain = np.flatnonzero(plain_jpeg(split.columns, np.arange(len(split.columns))))
    if not len(plain):
        raise Mistake(f"--data {settings.data} has no plain JPEG among its {len(split.columns)} images")
    ids = plain[np.linspace(0, len(plain) - 1, min(settings.files, len(plain))).round().astype(np.int64)]
    return Files(split, ids, {int(i): split.source.read(int(i)) for i in ids})


# --- decoding: endless parts, of which each item is what became of a file, None where it was refused ----------------------------------


def parts_of(reader: str, task: Task, files: Files, *, seed: int, threads: int = 1) -> Iterator[list[Any]]:
    """In the order of the plan, whatever the reader."""
    if reader == DALI:
        import_module("nvidia.dali")  # ImportError, as of the others
        parts = files.parts(seed, PART * threads)
        found = _dali_train(files, parts, threads) if task == "train" else _dali_decode(task, files, parts, threads)
    else:
        READERS.update(OTHERS)  # so that a worker's code finds them
        found = _train(reader, files, files.parts(seed)) if task == "train" else _decode(reader, task, files, files.parts(seed))
    if task != "to-pil" or reader == "pil":
        return found
    return ([None if one is None else Image.fromarray(one) for one in part] for part in found)


def pil_image(data: bytes, _region: Region) -> Any:
    """As torchvision's ImageFolder has it: a PIL image that is decoded."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")


def _decode(reader: str, task: Task, files: Files, parts: Iterator[Rows]) -> Iterator[list[Any]]:
    decode: Any = READERS[reader]()
    if reader == "pil" and task in ("to-pil", "to-array"):  # without the copy that cutting out a region takes
        decode = pil_image if task == "to-pil" else lambda data, region: np.asarray(pil_image(data, region))
    at_once = PART if hasattr(decode, "many") else 1
    for rows in parts:
        regions, datas = files.regions(task, rows), [files.bytes_of[i] for i in rows.ids.tolist()]
        for at in range(0, len(rows), at_once):
            yield decode_many(decode, datas[at : at + at_once], regions[at : at + at_once])


def _train(reader: str, files: Files, parts: Iterator[Rows]) -> Iterator[list[Any]]:
    work = Decoding(files.feed(), reader)
    slot = np.empty(PART * SIZE * SIZE * 3, np.uint8)
    pixels = slot.reshape(PART, SIZE, SIZE, 3)
    for rows in parts:
        failed = work(rows, slot)
        yield [None if i in failed else one for i, one in zip(rows.ids.tolist(), pixels, strict=False)]


def _dali_decode(task: Task, files: Files, parts: Iterator[Rows], threads: int) -> Iterator[list[Any]]:
    dali = import_module("nvidia.dali")
    fn, options = dali.fn, {"adjust_orientation": False, "output_type": dali.types.RGB}
    given = 3 if task == "region" else 1

    def inputs() -> Iterator[tuple[Any, ...]]:
        for rows in parts:
            regions = np.array(files.regions(task, rows), np.int32)
            low, high = regions[:, 1::-1], regions[:, :1:-1]  # y x
            data = [np.frombuffer(files.bytes_of[i], np.uint8) for i in rows.ids.tolist()]
            yield (data, np.ascontiguousarray(low), np.ascontiguousarray(high - low))[:given]

    pipeline = dali.Pipeline(batch_size=PART * threads, num_threads=threads, device_id=None, prefetch_queue_depth=2)
    with pipeline:
        data, *where = fn.external_source(source=inputs(), num_outputs=given)
        if where:
            pipeline.set_outputs(fn.decoders.image_slice(data, start=where[0], shape=where[1], axes=[0, 1], **options))
        else:
            pipeline.set_outputs(fn.decoders.image(data, **options))
    pipeline.build()
    while True:
        (images,) = pipeline.run()
        yield [np.asarray(images[i]) for i in range(len(images))]


def _dali_train(files: Files, parts: Iterator[Rows], threads: int) -> Iterator[list[Any]]:
    prepare = PathPreparer(files.feed(PART * threads))
    runner = Runner(
        lambda: build(batch_size=PART * threads, threads=threads, device=None, reads=True),
        warm=prepare.nothing(),
        diagnose=prepare.diagnose,
        again=lambda batch, bad: prepare(batch.rows, bad),
    )
    try:
        for (images, _), batch in runner.run(prepare(rows, runner.bad) for rows in parts):
            pixels = np.asarray(images.as_tensor())
            yield [None if i in batch.failed else one for i, one in zip(batch.rows.ids.tolist(), pixels, strict=True)]
    finally:
        runner.close()
        prepare.close()


# --- measuring ------------------------------------------------------------------------------------------------------------------------


class Counters:
    """What each process has done so far: images, when (seconds), with how much CPU time (seconds)."""

    def __init__(self, context: Any, processes: int) -> None:
        self._shared = context.Array("d", 3 * processes)

    def write(self, process: int, images: int) -> None:
        with self._shared.get_lock():
            self._shared[3 * process : 3 * process + 3] = [images, time.perf_counter(), time.process_time()]

    def read(self) -> Array:
        """float64 [processes, 3]."""
        with self._shared.get_lock():
            return np.array(self._shared[:]).reshape(-1, 3)


def between(before: Array, after: Array) -> tuple[Window, float]:
    """The rate of all processes, each by its own clock, and the CPU microseconds of an image. Raises Mistake when none was decoded."""
    images, seconds, cpu_s = (after - before).T
    total = int(images.sum())
    if not total:
        raise Mistake("it refuses every file")
    return Window(total, total, total / float((images / seconds).sum()), 0), 1e6 * float(cpu_s.sum()) / total


def measure(settings: Readers, point: Point, _folder: Path) -> Measured:
    _one_thread()
    files = files_of(settings)
    reader, task, count = point["reader"], point["task"], point["processes"]
    threads = count if reader == DALI else 1
    blocks = _timed(lambda number: parts_of(reader, task, files, seed=number, threads=threads), count // threads, settings)
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
    installed = {reader: metadata.version(reader)} if reader in OTHERS else {}
    machine = hardware(torch.device("cpu"), cores())
    return Measured(figures=figures, spread={"rate": spread(rates) or {}}, versions={**versions(), **installed}, hardware=machine)


def _one_thread() -> None:
    """As in a loader's worker; before any decoder is imported."""
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    torch.set_num_threads(1)
    cv2.setNumThreads(0)


def _timed(parts: Callable[[int], Iterator[list[Any]]], processes: int, settings: Readers) -> list[tuple[Window, float]]:
    """Blocks until the steady ones make `seconds`. Raises Mistake with what a process says."""
    context = multiprocessing.get_context("fork")
    counters, said = Counters(context, processes), context.SimpleQueue()
    workers = [context.Process(target=_work, args=(parts, number, counters, said), daemon=True) for number in range(processes)]
    for worker in workers:
        worker.start()

    def after(before: Array, wait_s: float) -> Array:
        """The counters, once the time is over and every process has moved."""
        time.sleep(wait_s)
        while not ((now := counters.read())[:, 1] > before[:, 1]).all():
            if not said.empty():
                kind, what = said.get()
                raise (Absent if kind == "absent" else Mistake)(what)
            if not all(worker.is_alive() for worker in workers):
                raise Mistake(f"a process was ended: {[worker.exitcode for worker in workers]}")
            time.sleep(0.01)
        return now

    try:
        now = after(after(counters.read(), 0.0), settings.warmup_s)
        blocks: list[tuple[Window, float]] = []
        while len(kept := steady([window for window, _ in blocks])) < LEAST or sum(one.seconds for one in kept) < settings.seconds:
            before, now = now, after(now, settings.seconds / BLOCKS)
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
    """Mean absolute difference to PIL's pixels, grey levels: `mad` over the files, `worst` file; how many were `compared`, `refused`."""
    ours, pils = (itertools.chain.from_iterable(parts_of(name, task, files, seed=0)) for name in (reader, "pil"))
    found = [difference(*pair) for pair in itertools.islice(zip(ours, pils, strict=False), min(COMPARED, len(files.ids)))]
    kept = [one for one in found if one is not None]
    mads = {"mad": float(np.mean(kept)), "worst": max(kept)} if kept else {}
    return {**mads, "compared": len(kept), "refused": len(found) - len(kept)}


def difference(ours: Any, pil: Any) -> float | None:
    """Of two images, grey levels; None when there is no first one, or it is of another size."""
    if ours is None or pil is None or np.shape(ours) != np.shape(pil):
        return None
    return float(np.abs(np.asarray(ours, np.int16) - np.asarray(pil, np.int16)).mean())


# --- what is told ---------------------------------------------------------------------------------------------------------------------


def derive(rows: Sequence[Row]) -> list[Row]:
    """Adds, at the same task and number of processes, `against_pil`: the rate over PIL's; `cpu_against_pil`: PIL's CPU time over its."""
    pils = {(row["point"]["task"], row["point"]["processes"]): row["figures"] for row in good(rows, reader="pil")}

    def compared(row: Row) -> dict[str, float]:
        pil, its = pils.get((row["point"]["task"], row["point"]["processes"])), row["figures"]
        if not pil or row["status"] != "ok":
            return {}
        return {"against_pil": its["rate"] / pil["rate"], "cpu_against_pil": pil["cpu_us"] / its["cpu_us"]}

    return [{**row, "figures": {**row["figures"], **compared(row)}} for row in rows]


def good(rows: Sequence[Row], **where: Any) -> list[Row]:
    """Rows with figures whose point has these values."""
    return [row for row in rows if row["status"] == "ok" and where.items() <= row["point"].items()]


def conclude(rows: Sequence[Row]) -> list[str]:
    """What was decoded, the fastest reader of each task, and the floor of a region."""
    told = []
    if found := good(rows):
        figures = found[0]["figures"]
        size = f"mean {figures['size'] / 1024:.0f} KiB and {figures['width']:.0f} x {figures['height']:.0f} pixels"
        told.append(f"Files: {figures['files']:,} plain JPEGs, {size}; pixels of up to {COMPARED} compared with PIL's.")
    for task, its in _show.by(found, "task").items():
        count = max(_show.by(its, "processes"))
        close = [row for row in good(its, processes=count) if row["figures"].get("worst", CLOSE) < CLOSE]
        if len(close) < 2:
            continue
        best = max(close, key=lambda row: float(row["figures"]["rate"]))
        reader, figures = best["point"]["reader"], best["figures"]
        line = f"{task}: with PIL's pixels (worst file within {CLOSE} grey levels) {reader} is the fastest at {_processes(count)}"
        line += f", {figures['against_pil']:.2f}x PIL" if "against_pil" in figures else ""
        for one in good(its, processes=1, reader=reader) if count > 1 else []:
            line += f"; its rate is {figures['rate'] / one['figures']['rate']:.1f} times that of one process"
        told.append(f"{line}.")
    for row in good(rows, task="entropy", processes=1):
        reader = row["point"]["reader"]
        for region in good(rows, task="region", processes=1, reader=reader):
            floor, whole = (one["figures"]["cpu_us"] for one in (row, region))
            told.append(f"The last row of a region alone takes {reader} {floor:,.0f} of the region's {whole:,.0f} µs, {floor / whole:.0%}.")
    return told


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    drawn = []
    for count, its in _show.by(rows, "processes").items():
        readers = list(_show.by(its, "reader"))
        tasks = [task for task in _show.by(its, "task") if task != "entropy"]
        series = {task: [_show.best(its, "rate", reader=reader, task=task) for reader in readers] for task in tasks}
        if series:
            drawn.append(_show.bars(folder / f"bars-{count}.png", readers, series, title=f"img/s, {_processes(count)}", unit="img/s"))
    for task, its in _show.by(rows, "task").items():
        lines: dict[str, Sequence[tuple[float, float]]] = {
            reader: [(row["point"]["processes"], row["figures"]["rate"]) for row in same]
            for reader, same in _show.by(its, "reader").items()
        }
        if len(_show.by(its, "processes")) > 1:
            drawn.append(_show.lines(folder / f"processes-{task}.png", lines, title=task, x="processes (dali: threads)", y="img/s"))
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
    conclude=conclude,
)

if __name__ == "__main__":
    measuring(Readers, measure)
