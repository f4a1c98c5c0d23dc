"""`loader`: loaders alone, on 1..N GPUs: the rate, and the time to pass once over a folder, beside PyTorch's own loading on the CPU.

A pass is one window of report.meter: from the request for its first batch until the last one is on the device. Its tail that fills no
batch of all ranks is dropped, as in training; `pass_s` is the time that all files take at the pass's rate.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from engine.distributed import ProcessWorld, cores, prepare_process  # before torch: see there

# isort: split
import numpy as np
import torch
from pydantic import Field, PositiveInt

from benchmarks import _show, pytorch_baseline
from benchmarks._suite import (
    LEAST,
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
    ranks,
)
from config import one_of
from contracts import Feed, Mistake, Pixels, Source, World
from dataset.plan import StillPlan, StillPolicy
from dataset.sources.folder import Folder
from dataset.splits import Split, open_split
from loaders import LOADERS, open_loader
from report import hardware
from report.meter import Meter, spread
from tasks.classification import Classification

BASELINE = "pytorch"
"""benchmarks/pytorch_baseline.py."""
CONTENTS_UP_TO = 50_000
"""Files of which the contents are compared too; of more, only which file on the disk they are."""
HEAD = 1 << 16
"""Bytes of a file that are compared: JPEGs of the same size that begin alike are alike."""
SHORT_S = 2.0
"""A pass below this says little of a steady rate."""

Epochs = Callable[[int], Iterator[int]]
"""epoch -> valid samples of this rank's batches, one after the other; each is awaited by who asks."""


class Loader(Common):
    """Loaders alone: img/s and the time to pass once over a folder, per loader and number of GPUs, beside PyTorch's own on the CPU."""

    data: Path | None = None
    """Folder with <class>/* or train/<class>/*."""
    loaders: tuple[str, ...] = ("auto",)
    """pytorch (the baseline), or names as in --loader of train.py; auto = pytorch and all that run here."""
    gpus: tuple[PositiveInt, ...] = (1,)
    """Processes, one a GPU (on a CPU: gloo)."""
    batch_size: PositiveInt = 32
    """Samples a rank and batch."""
    image_size: Annotated[int, Field(ge=8)] = 640
    """Height and width of the images, pixels."""
    window: Literal["stretch", "random-resized", "center"] = "stretch"
    """The whole image stretched, or the windows of training and validation."""
    workers: Annotated[int, Field(ge=0)] = 8
    """Worker processes (pytorch, torchvision, dali-fed) or threads (dali-cpu, dali-gpu) a rank."""
    passes: Annotated[int, Field(ge=LEAST)] = LEAST
    """Passes to measure, after a first one that is reported apart."""
    reader: str = "auto"
    """Decoder of the torchvision loader, as in --reader of train.py."""


def points(settings: Loader) -> list[Point]:
    class_folders(settings.data)
    devices = torch.cuda.device_count()
    if 0 < devices < max(settings.gpus):
        raise Mistake(f"--gpus {max(settings.gpus)}: there are {devices} GPUs here, and a rank needs one of its own")
    same = settings.model_dump(include={"batch_size", "image_size", "window", "workers", "reader"})
    asked = itertools.product(settings.gpus, expanded("--loaders", settings.loaders, devices))
    return [{"loader": name, "gpus": gpus, **same} for gpus, name in asked]


def expanded(flag: str, names: Sequence[str], devices: int, *, more: tuple[str, ...] = ()) -> list[str]:
    """Loaders by name, each once; auto: those that can run here with so many GPUs. Raises Mistake for an unknown name.

    `more` are names besides the baseline and the loaders.
    """
    known = (BASELINE, *more, *LOADERS)
    dali = bool(find_spec("nvidia") and find_spec("nvidia.dali"))
    auto = [name for name in known if name != "synthetic" and (dali or not name.startswith("dali")) and (devices or name != "dali-gpu")]
    return list(dict.fromkeys(each for name in names for each in (auto if one_of(flag, name, (*known, "auto")) == "auto" else [name])))


def command(settings: Loader, point: Point, folder: Path) -> list[str]:
    found = settings.model_copy(update={"data": class_folders(settings.data)})
    python, *words = in_own_process("benchmarks.loader")(found, point, folder)
    return [python, *ranks(point["gpus"]), *words]


def measure(settings: Loader, point: Point, folder: Path) -> Measured:
    device = prepare_process()
    world = ProcessWorld(device)
    data = open_split(class_folders(settings.data))
    files = len(data.columns)
    with ExitStack() as stack:
        stack.enter_context(world.joined())
        stack.enter_context(world.own_stream())
        meter = Meter(world, min_window_s=0.0, synchronise=world.synchronise)
        load = hardware.Sampler(device, cores=cores()).start()
        stack.callback(load.stop)
        meter.resume(epoch=0)  # the first pass includes the start of the loader
        epochs = stack.enter_context(opened(settings, point["loader"], data, world))
        for epoch in range(settings.passes + 1):
            if epoch:
                meter.resume(epoch)
            for samples in epochs(epoch):
                world.await_batch()
                meter.add(samples)
            meter.pause()
            if epoch == 0:
                load.read()  # the loads are of the passes that count
        busy = load.read()
        host_gib = float(world.sum(np.array([hardware.host_gib()]))[0])
        device_gib = max((found for found in world.gather(hardware.device_gib(device)) if found is not None), default=None)
        different = world.gather(unique(data.source) if world.rank == 0 else None)[0]
    first, *windows = meter.windows
    rates = [window.rate for window in windows]
    if not all(rates):
        raise Mistake(f"--loaders {point['loader']}: none of the {files} files could be decoded")
    passes = [files / rate for rate in rates]
    return Measured(
        figures={
            "rate": float(np.median(rates)),
            "per_gpu": float(np.median(rates)) / world.size,
            "pass_s": float(np.median(passes)),
            "first_pass_s": first.seconds,
            "samples": windows[0].samples,
            "files": files,
            "unique_files": different,
            "host_gib": host_gib,
            "device_gib": device_gib,
            **{name: busy[name] for name in ("cpu_utilisation", "gpu_utilisation", "power_w", "sm_mhz", "throttled")},
        },
        spread={name: its for name, found in (("rate", rates), ("pass_s", passes)) if (its := spread(found))},
        versions=hardware.versions(),
        hardware=hardware.hardware(device, cores()),
    )


def require(data: Split, samples: int) -> None:
    """Raise Mistake when the data set has fewer."""
    found = len(data.columns)
    if found < samples:
        raise Mistake(f"--data has {found} files and {samples} are asked for; python -m scripts.link_set makes more files of few")


def paths(data: Split) -> list[str]:
    """The files of the data set, for loading by hand."""
    return [os.fsdecode(data.columns.path(sample)) for sample in range(len(data.columns))]


@contextmanager
def opened(
    settings: Any, name: str, data: Split, world: World, *, threads: int = 0, read_delay_s: float = 0.0, batches: int | None = None
) -> Iterator[Epochs]:
    """A loader that is ready to give this rank's batches; `batches`: so many an epoch instead of all. Raises Mistake.

    `settings` has batch_size, image_size, window, workers and reader; `threads` are DALI's where they are not as many as the workers.
    """
    policy = StillPolicy(window=settings.window, image_size=settings.image_size, resize=round(settings.image_size * 256 / 224))
    plan = StillPlan.of(data.columns, policy, seed=0, batch_size=settings.batch_size, world_size=world.size, rank=world.rank)
    require(data, (batches or 1) * plan.step_samples)
    if name == BASELINE:
        yield _by_hand(settings, data, world, read_delay_s, None if batches is None else batches * settings.batch_size)
        return
    feed = Feed(
        plan=plan,
        source=Folder(data.columns, read_delay_s),
        columns=data.columns,
        targets=Classification(data.columns.label).targets,
        device=world.device,
        workers=threads if threads and name in ("dali-cpu", "dali-gpu") else settings.workers,
        threads=threads,
        pixels=Pixels(dtype="float16" if world.device.type == "cuda" else "float32"),
        reader=settings.reader,
    )
    first = 0 if batches is None else plan.samples - batches * plan.step_samples
    with open_loader(name, feed) as loader:

        def epochs(epoch: int) -> Iterator[int]:
            for batch in loader.batches(epoch, first):
                yield int((batch.ids >= 0).sum()) - len(batch.failed)

        yield epochs


def _by_hand(settings: Any, data: Split, world: World, read_delay_s: float, samples: int | None) -> Epochs:
    transform = pytorch_baseline.transform(settings.window, settings.image_size)
    loader = pytorch_baseline.loader(
        pytorch_baseline.Images(paths(data), data.columns.label.tolist(), transform, read_delay_s),
        batch_size=settings.batch_size,
        workers=settings.workers,
        pinned=world.device.type == "cuda",
        world_size=world.size,
        rank=world.rank,
        samples=samples,
    )
    return lambda epoch: (len(images) for images, _ in pytorch_baseline.batches(loader, world.device, epoch))


def unique(source: Source) -> int:
    """Different files among a source's: links to one file are one, and so are copies (up to CONTENTS_UP_TO files)."""
    found = {}
    for sample in range(len(source)):
        path = source.path(sample)
        status = os.stat(path)
        found[status.st_dev, status.st_ino] = (status.st_size, path)
    if len(found) > CONTENTS_UP_TO:
        return len(found)
    sizes = Counter(size for size, _ in found.values())
    return len({(size, _begins(path) if sizes[size] > 1 else b"") for size, path in found.values()})


def _begins(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return blake2b(file.read(HEAD)).digest()


def derive(rows: Sequence[Row]) -> list[Row]:
    """With `speed_up` (pass time of the baseline on as many GPUs / this one's) and `scaling` (rate / GPUs / the rate on one GPU)."""

    def figure(loader: str, gpus: int, name: str) -> float | None:
        return _show.best([row for row in rows if row["status"] == "ok"], name, loader=loader, gpus=gpus)

    def more(row: Row) -> dict[str, float | None]:
        loader, gpus = row["point"]["loader"], row["point"]["gpus"]
        by_hand, alone = figure(BASELINE, gpus, "pass_s"), figure(loader, 1, "rate")
        return {
            "speed_up": by_hand and by_hand / row["figures"]["pass_s"],
            "scaling": row["figures"]["rate"] / gpus / alone if alone and gpus > 1 else None,
        }

    return [{**row, "figures": {**row["figures"], **more(row)}} if row["status"] == "ok" else row for row in rows]


def conclude(rows: Sequence[Row]) -> list[str]:
    good = [row for row in rows if row["status"] == "ok"]
    said = []
    for files, links in sorted({(row["figures"]["files"], row["figures"]["unique_files"]) for row in good}):
        rest = "the others are links to these, or copies" if links < files else "no two are alike"
        said.append(f"{files:,} files, {links:,} of them unique: {rest}.")
    for gpus, its in _show.by(good, "gpus").items():
        fastest = min(its, key=lambda row: row["figures"]["pass_s"])
        times, figures = f"{gpus} process{'es' if gpus > 1 else ''}", fastest["figures"]
        beside = f", {figures['speed_up']:.1f} times as fast as {BASELINE}" if figures.get("speed_up") else ""
        said.append(f"{times}: {fastest['point']['loader']} passes over all files in {figures['pass_s']:.3g} s{beside}.")
    if any(row["figures"]["samples"] / row["figures"]["rate"] < SHORT_S for row in good):
        said.append(f"Some passes took less than {SHORT_S:g} s: python -m scripts.link_set makes a longer set of these files.")
    return said


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    gpus, names = list(_show.by(rows, "gpus")), list(_show.by(rows, "loader"))
    passes: _show.Series = {name: [_show.best(rows, "pass_s", loader=name, gpus=count) for count in gpus] for name in names}
    groups = [f"{count} process{'es' if count > 1 else ''}" for count in gpus]
    drawn = [_show.bars(folder / "pass.png", groups, passes, title="seconds to pass once over the files", unit="s")]
    if len(gpus) > 1:
        rates: dict[str, Sequence[tuple[float, float]]] = {
            name: [(row["point"]["gpus"], row["figures"]["rate"]) for row in its] for name, its in _show.by(rows, "loader").items()
        }
        drawn.append(_show.lines(folder / "rate.png", rates, title="img/s of all ranks", x="processes, one a GPU", y="img/s"))
    return drawn


COLUMNS = (
    *(
        Column(key=key, title=key.replace("_", " "))
        for key in ("loader", "gpus", "batch_size", "image_size", "window", "workers", "reader")
    ),
    Column(key="rate", title="img/s", form="{:,.0f}"),
    Column(key="pass_s", title="pass, s", form="{:,.3g}"),
    Column(key="speed_up", title="speed-up", form="{:.2f}"),
    Column(key="per_gpu", title="img/s a GPU", form="{:,.0f}"),
    Column(key="scaling", title="scaling", form="{:.0%}"),
    Column(key="first_pass_s", title="first pass, s", form="{:,.3g}"),
    Column(key="host_gib", title="host GiB", form="{:.1f}"),
    Column(key="device_gib", title="GPU GiB", form="{:.1f}"),
    Column(key="cpu_utilisation", title="CPU busy", form="{:.0%}"),
    Column(key="gpu_utilisation", title="GPU busy", form="{:.0%}", detail=True),
    Column(key="power_w", title="W", form="{:.0f}", detail=True),
    Column(key="files", title="files", form="{:,}", detail=True),
    Column(key="unique_files", title="unique", form="{:,}", detail=True),
    Column(key="samples", title="samples a pass", form="{:,}", detail=True),
)

SUITE = Suite(
    name="loader",
    about="loaders alone: img/s of all ranks, and the time to pass once over the files, beside PyTorch's own loading on the CPU",
    settings=Loader,
    points=points,
    command=command,
    read=figures_of,
    columns=COLUMNS,
    rate="rate",
    plots=plots,
    conclude=conclude,
    derive=derive,
)

if __name__ == "__main__":
    measuring(Loader, measure)
