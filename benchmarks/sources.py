"""`sources`: one set of images in every source, read from the page cache and from the disk, alone and with a
network behind it; beside the stores of other libraries.

Stores are written below --output at the first point that needs them, by scripts.pack and by the libraries'
own writers. A rate is that of windows of passes that follow one another: from one batch that is on the
device to another. For a *cold* rate the store's files are dropped from the page cache (posix_fadvise), behind
a loader that has given one batch: neither its start nor its buffers are in that time, which ends with the
pass or before.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from engine.distributed import ProcessWorld, cores, prepare_process  # before torch: see there

# isort: split
import numpy as np
import psutil
import torch
from pydantic import Field, FiniteFloat, PositiveInt

from benchmarks import _plots, _show, images
from benchmarks._data import class_folders
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
from benchmarks.baselines import peers
from contracts import Batch, Split
from dataset.open import open_split
from engine import precision
from engine.step import Step
from loaders import of_medium
from models import classification
from plan import draws
from report import hardware
from report.console import Console
from report.meter import spread
from report.phases import Phases
from scripts._reencode import Smaller
from scripts.pack import pack_splits
from settings.cli import one_of
from settings.optimisation import Optimisation
from tasks import architecture
from tasks.classification import KIND, Classification

SMALLER = "lmdb, smaller"
"""The store packed as FFCV publishes its own."""
FFCV = Smaller(max_side=500, quality=90, share=0.5)
FFCV_RATE = 31_278
FFCV_CORES = 96
"""What FFCV publishes of such a store: images/s, and on how many cores."""
STORES = ("folder", "tar", "lmdb", "arrow")
PEERS = (peers.LOOSE, *peers.PEERS)
PIL = "torchvision+pil"
"""Our loader torchvision with the decoder of the other libraries' rows."""
PIECE = 1 << 24
"""Bytes that are read at once into the page cache."""
READERS = 16
"""Files that are read at once into the page cache."""


class Sources(Common):
    """Rates of every source, warm and cold, alone and behind a network, and of other libraries' stores."""

    data: Path | None = None
    """Folder with <class>/* or train/<class>/*: the images that every store holds."""
    stores: tuple[str, ...] = STORES
    """Our sources: folder, tar, lmdb, arrow."""
    workers: tuple[PositiveInt, ...] = (1, 8)
    """Worker processes; other libraries' stores are read with the largest of these."""
    loader: str = "dali-fed"
    """Loader of ours that reads each store, as --loader of train.py."""
    peers: tuple[str, ...] = PEERS
    """Other libraries: webdataset, litdata, streaming (mosaicml-streaming), datasets (Hugging Face); pytorch
    reads loose files. Beside them `torchvision` of ours, with their decoder and with its own."""
    packed: bool = True
    """Also a store packed at FFCV's settings, read with all cores."""
    arch: str = "resnet18"
    """Network behind each store of ours, with the largest of --workers; none = the loader alone."""
    batch_size: PositiveInt = 128
    """Samples a batch."""
    image_size: Annotated[int, Field(ge=8)] = 224
    """Height and width of the images, pixels: random resized crops."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 0.5
    """Least seconds of a window; a rate is of three, behind one that is not counted."""
    cold_s: Annotated[FiniteFloat, Field(gt=0)] = 2.0
    """Longest that a store is read from the disk, seconds; a whole pass ends sooner."""


# --- points -------------------------------------------------------------------------------------------------


def points(settings: Sources) -> list[Point]:
    class_folders(settings.data)
    one_of("--loader", settings.loader, of_medium("images"))
    if settings.arch != "none":
        architecture(KIND, settings.arch)
    stores = [one_of("--stores", store, STORES) for store in settings.stores]
    names = [one_of("--peers", name, PEERS) for name in settings.peers]
    same = settings.model_dump(include={"batch_size", "image_size"})
    most = max(settings.workers, default=1)
    found = [
        {"store": store, "loader": settings.loader, "workers": count}
        for count, store in itertools.product(settings.workers, stores)
    ]
    if names:
        ours = [("tar", PIL), ("tar", "torchvision")]
        theirs = [("folder" if name == peers.LOOSE else "its own", name) for name in names]
        found += [{"store": store, "loader": name, "workers": most} for store, name in (*ours, *theirs)]
    if settings.packed:
        found.append({"store": SMALLER, "loader": "torchvision", "workers": max(int(cores()), 1)})
    return [{**point, **same} for point in found]


def stored(data: Path, store: str, stores: Path) -> Split:
    """Open the images of `data` in a store of ours, which is packed first unless it is there."""
    form, smaller = ("lmdb", FFCV) if store == SMALLER else (store, None)
    place = stores / store.replace(", ", "-")
    if not place.exists() or (place / ".packing").exists():
        pack_splits({"train": open_split(data)}, data, place, form, Console(enabled=False), smaller)
    return open_split(place / "train", source=form)


# --- measuring ----------------------------------------------------------------------------------------------


def dropped(folder: Path) -> int:
    """Drop the files below a folder from the page cache, and return their bytes.

    What a process has mapped stays; names and sizes of files, which the kernel keeps elsewhere, do too.
    """
    size = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())  # only what lies on the disk can be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                size += os.fstat(file.fileno()).st_size
    return size


def disk_bytes() -> int | None:
    """Return the bytes read from all disks since the system's start; None where it does not say."""
    counters = psutil.disk_io_counters()
    return None if counters is None else int(counters.read_bytes)


def cached(folder: Path) -> None:
    """Read the files below a folder, so that they are in the page cache."""

    def read(path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            while file.read(PIECE):
                pass

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, filter(Path.is_file, folder.rglob("*"))))


def timed(
    batches: Iterator[int], world: ProcessWorld, *, seconds: float, least: int = 1
) -> tuple[int, float]:
    """Return (samples, seconds) of the next batches: at least `least`, until `seconds` are over or none comes
    any more."""
    samples = 0
    began = time.perf_counter()
    for number, each in enumerate(batches, 1):
        samples += each
        if number >= least and time.perf_counter() - began >= seconds:
            break
    world.synchronise()
    return samples, time.perf_counter() - began


def warm(epochs: images.Epochs, least_s: float, world: ProcessWorld, *, least: int = 1) -> list[float]:
    """Return the samples/s of three windows of `least` batches or more, behind one that is not counted.

    A window that a pass ends in goes on in the next pass.
    """
    batches = itertools.chain.from_iterable(map(epochs, itertools.count(1)))
    windows = [timed(batches, world, seconds=least_s, least=least) for _ in range(1 + LEAST)]
    return [samples / seconds for samples, seconds in windows[1:]]


def cold(
    epochs: images.Epochs, folder: Path, world: ProcessWorld, *, longest_s: float, images: int
) -> tuple[float, float | None]:
    """Return samples/s of a store of so many `images` that is not in the page cache, and the bytes that came
    from disks over those of these samples: more than 1 where the system reads ahead, or other processes read.

    It is read once, or for `longest_s`.
    """
    # before a reader of an LMDB maps what is cached: in pieces of 2 MiB, which then stay
    dropped(folder)
    sum(epochs(0, 1))  # starts the workers, and reads nothing ahead
    size = dropped(folder)
    before = disk_bytes()
    samples, seconds = timed(epochs(1), world, seconds=longest_s)
    after = disk_bytes()
    share = None if before is None or after is None else (after - before) / (size * samples / images)
    return samples / seconds, share


def training(arch: str, shape: tuple[int, ...], split: Split, world: ProcessWorld) -> Callable[[Batch], None]:
    """Return a step of a network for batches of `shape` [B, 3, H, W], which hardly moves the weights."""
    torch.backends.cudnn.benchmark = True
    module, _ = classification.build(arch, classes=len(split.columns.classes), shape=shape)
    step = Step(
        module=module.to(world.device).to(memory_format=torch.channels_last).train(),
        task=Classification(split.columns.label),
        optimisation=Optimisation(),
        precision=precision.choose("auto", world.device),
        world=world,
        draw_key=partial(draws.key, 0, draws.Purpose.MODEL),
        phases=Phases(world.device),
    )

    def take(batch: Batch) -> None:
        step(iter([batch]), lr=1e-8, epoch=0, position=0)
        batch.launched()
        step.phases.interrupt()

    return take


def trains(settings: Sources, point: Point) -> bool:
    """Whether a point has a network behind it."""
    of_ours = point["store"] != SMALLER and point["loader"] == settings.loader
    return settings.arch != "none" and of_ours and point["workers"] == max(settings.workers)


def measure(settings: Sources, point: Point, folder: Path) -> Measured:
    device = prepare_process()
    world = ProcessWorld(device)
    data = class_folders(settings.data)
    stores = folder.parents[1] / "stores"
    by_hand = point["loader"] in PEERS
    split = stored(data, "folder" if by_hand else point["store"], stores)
    theirs_alone = point["loader"] in peers.PEERS
    place = stores / ("peers/" + point["loader"] if theirs_alone else point["store"].replace(", ", "-"))
    figures: dict[str, Any] = {"images": len(split.columns)}
    installed = {}
    with ExitStack() as stack:
        stack.enter_context(world.joined())
        stack.enter_context(world.own_stream())
        if by_hand:
            theirs = by_others(point, split, stores, world)
            cached(place)
            # each of their workers gives a whole batch, and these come together
            rates = warm(theirs, settings.seconds, world, least=2 * point["workers"])
            package = peers.PEERS[point["loader"]].package if theirs_alone else "torch"
            installed = {package: metadata.version(package)}
        else:
            alone = partial(ours, point, split, world)
            warmly = partial(warm, least_s=settings.seconds, world=world)
            how = {"longest_s": settings.cold_s, "images": figures["images"]}
            coldly = partial(cold, folder=place, world=world, **how)
            cached(place)
            rates = alone(warmly)
            if trains(settings, point):
                shape = (point["batch_size"], 3, point["image_size"], point["image_size"])
                behind = partial(alone, use=training(settings.arch, shape, split, world))
                figures["train"] = float(np.median(behind(warmly)))
                figures["train_cold"], _ = behind(coldly)
            if point["store"] == SMALLER or point["loader"] == settings.loader:
                figures["cold"], figures["from_disk"] = alone(coldly)
    figures["rate"] = float(np.median(rates))
    figures["per_core"] = figures["rate"] / point["workers"]
    return Measured(
        figures=figures,
        spread={"rate": spread(rates) or {}},
        versions={**hardware.versions(), **installed},
        hardware=hardware.hardware(device, cores()),
    )


def ours(
    point: Point,
    split: Split,
    world: ProcessWorld,
    measured: Callable[[images.Epochs], Any],
    *,
    use: Callable[[Batch], object] | None = None,
) -> Any:
    """Return what is measured of our loader, opened anew: no process has the store mapped."""
    name, _, reader = point["loader"].partition("+")
    how = SimpleNamespace(
        batch_size=point["batch_size"],
        image_size=point["image_size"],
        workers=point["workers"],
        window="random-resized",
        reader=reader or "auto",
    )

    def alone(batch: Batch) -> None:
        batch.launched()
        world.await_batch()

    with images.opened(how, name, split, world, use=use or alone, threads=max(int(cores()) - 1, 1)) as epochs:
        return measured(epochs)


def by_others(point: Point, split: Split, stores: Path, world: ProcessWorld) -> images.Epochs:
    """Return the passes of another library's loader. Raises Absent where it is not installed."""
    files = list(zip(images.paths(split), split.columns.label.tolist(), strict=True))
    try:
        loader = peers.loader(
            point["loader"],
            stores / "peers",
            files,
            size=point["image_size"],
            batch_size=point["batch_size"],
            workers=point["workers"],
            pinned=world.device.type == "cuda",
        )
    except ImportError as error:
        raise Absent(f"--peers {point['loader']}: {error}") from None

    def epochs(_: int) -> Iterator[int]:
        for batch in peers.batches(loader, world.device):
            world.await_batch()
            yield len(batch)

    return epochs


# --- what is told -------------------------------------------------------------------------------------------


def remarks(rows: Sequence[Row]) -> list[str]:
    """Say which images these were, and what FFCV publishes."""
    good = [row for row in rows if row["status"] == "ok"]
    said = [
        f"{count:,} images in every store." for count in sorted({row["figures"]["images"] for row in good})
    ]
    if any(row["point"]["store"] == SMALLER for row in good):
        each = FFCV_RATE / FFCV_CORES
        said.append(
            f"FFCV publishes {FFCV_RATE:,} img/s on {FFCV_CORES} cores, {each:,.0f} a core, packed alike."
        )
    return said


def conclude(rows: Sequence[Row]) -> list[str]:
    """Say how many times the rate of each other library ours is, with their decoder and with its own."""
    good = {
        row["point"]["loader"]: row
        for row in rows
        if row["status"] == "ok" and row["point"]["store"] != SMALLER
    }
    told = []
    for ours in (PIL, "torchvision"):
        if ours in good:
            rate = good[ours]["figures"]["rate"]
            ratios = [
                f"{rate / good[name]['figures']['rate']:.2f} x {name}" for name in PEERS if name in good
            ]
            told += [f"{ours}: {', '.join(ratios)}."] if ratios else []
    return told


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    series: _plots.Series = {
        figure: [_show.best([row], figure) for row in rows]
        for figure in ("rate", "cold", "train", "train_cold")
    }
    names = [f"{row['point']['store']}, {row['point']['loader']}, {row['point']['workers']}" for row in rows]
    return [_plots.bars(folder / "rates.png", names, series, title="img/s by store", unit="img/s")]


COLUMNS = (
    *(Column(key=key, title=key) for key in ("store", "loader", "workers")),
    Column(key="rate", title="{unit}, warm", form="{:,.0f}"),
    Column(key="cold", title="cold", form="{:,.0f}"),
    Column(key="from_disk", title="read from disks", form="{:.0%}", detail=True),
    Column(key="train", title="with the network, warm", form="{:,.0f}"),
    Column(key="train_cold", title="cold", form="{:,.0f}"),
    Column(key="per_core", title="a worker", form="{:,.0f}"),
    Column(key="batch_size", title="batch size", detail=True),
    Column(key="image_size", title="pixels", detail=True),
)

SUITE = Suite(
    name="sources",
    about="one set of images in every source: warm, cold, with a network, and other libraries' stores",
    settings=Sources,
    points=points,
    command=in_own_process("benchmarks.sources"),
    read=figures_of,
    columns=COLUMNS,
    rate="rate",
    plots=plots,
    remarks=remarks,
    conclude=conclude,
)

if __name__ == "__main__":
    measuring(Sources, measure)
