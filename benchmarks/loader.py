"""`loader`: loaders alone, on 1..N GPUs: the rate, and the time to pass once over a folder, beside PyTorch's
and DALI's own loading.

Of images (benchmarks/images.py), or of clips of videos (--task video, benchmarks/videos.py).

A window of report.meter is as many passes as take two seconds, from the request for a first batch until the
last one is on the device. A pass's tail that fills no batch of all ranks is dropped, as in training; `pass_s`
is the time of all files at a window's rate.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal, cast

from engine.distributed import ProcessWorld, cores, prepare_process  # before torch: see there

# isort: split
import numpy as np
import torch
from pydantic import Field, PositiveInt

from benchmarks import _plots, _show, images, videos
from benchmarks._data import class_folders, medium_of
from benchmarks._suite import (
    LEAST,
    LEAST_STEPS,
    Column,
    Common,
    Measured,
    Point,
    Rates,
    Row,
    Suite,
    figures_of,
    in_own_process,
    measuring,
    ranks,
    require_gpus,
)
from contracts import FileSource, UserError
from dataset.open import open_split
from loaders import LOADERS, installed
from report import hardware
from report.meter import Meter, spread
from settings.cli import one_of
from tasks import kind_named, task_with_loader

BASELINES = {"images": images.BASELINES, "videos": videos.BASELINES}
"""Medium -> what is written by hand, with PyTorch on the CPU and with DALI's own readers."""
DEFAULTS = {
    "images": {"batch_size": 32, "image_size": 640},
    "videos": {"batch_size": 8, "image_size": 224},
}
NEEDS = {"opencv": "cv2", "dali": "nvidia.dali", "decord": "decord"}
"""Part of the name of a loop by hand -> the module that it needs."""
CONTENTS_UP_TO = 50_000
"""Files of which the contents are compared too; of more, only which file on the disk they are."""
HEAD = 1 << 16
"""Bytes of a file that are compared: JPEGs of the same size that begin alike are alike."""
LEAST_S = 2.0
"""A window below this says little of a steady rate."""
POINT = {
    "images": {"batch_size", "image_size", "window", "workers", "reader"},
    "videos": {"batch_size", "image_size", "workers", "clip_frames", "clip_stride", "clips"},
}
"""Medium -> the settings that are a point's."""


class Loader(Common):
    """Loaders alone: the rate and the time to pass once over a folder, per loader and number of GPUs, beside
    PyTorch's and DALI's own."""

    task: str = "classification"
    """Task of train.py, of images with a label or of clips of videos."""
    data: Path | None = None
    """Folder with <class>/* or train/<class>/*; of videos also with a list, train.csv."""
    loaders: tuple[str, ...] = ("auto",)
    """By hand, pytorch, pytorch+opencv (uint8, --window stretch) and dali (DALI's own reader; of clips
    pytorch with PyAV, pytorch+decord, on a GPU dali and dali-experimental), or as in --loader of train.py;
    auto = all that run here but nvdec+ANOTHER. Of clips also decord-alone, pyav-alone and nvdec-alone, which
    drop frames."""
    gpus: tuple[PositiveInt, ...] = (1,)
    """Processes, one a GPU (on a CPU: gloo)."""
    batch_size: PositiveInt | None = None
    """Samples a rank and batch. Default: 32; of clips 8."""
    image_size: Annotated[int, Field(ge=8)] | None = None
    """Height and width of the images, pixels. Default: 640; of clips 224."""
    window: Literal["stretch", "random-resized", "center"] = "stretch"
    """Images: the whole image stretched, or the windows of training and validation."""
    workers: Annotated[int, Field(ge=0)] = 8
    """Worker processes (pytorch, torchvision, dali-fed, all of clips) or threads (dali, dali-cpu, dali-gpu) a
    rank."""
    passes: Annotated[int, Field(ge=LEAST)] = LEAST
    """Windows to measure, each of whole passes (one, or as many as take 2 s), after a first pass that is
    reported apart."""
    reader: str = "auto"
    """Images: decoder of the torchvision loader, as in --reader of train.py."""
    clip_frames: Annotated[int, Field(ge=0)] = 16
    """Frames of a clip; 0 = all frames of a video, from its first to its last: decoding in sequence. That
    takes memory: a smaller --batch-size."""
    clip_stride: PositiveInt = 1
    """Distance from one frame of a clip to the next, in frames of the video."""
    clips: Annotated[int, Field(ge=0)] = 0
    """Clips of a video in a pass, evenly spaced: 300 / --clip-frames pass over all of 300 frames. 0 = one at
    random, as in training."""


def points(settings: Loader) -> list[Point]:
    medium = medium_of(settings.task)
    class_folders(settings.data, medium=medium)
    devices = torch.cuda.device_count()
    require_gpus(settings.gpus, devices)
    same = settled(settings).model_dump(include=POINT[medium])
    names = expanded("--loaders", settings.loaders, devices, task=settings.task)
    if settings.window != "stretch" and images.OPENCV not in settings.loaders:
        names = [name for name in names if name != images.OPENCV]  # it stretches, and auto leaves it out
    return [{"loader": name, "gpus": gpus, **same} for gpus, name in itertools.product(settings.gpus, names)]


def settled(settings: Loader) -> Loader:
    """Return the settings with what the task sets where the user does not."""
    missing = {
        name: value
        for name, value in DEFAULTS[medium_of(settings.task)].items()
        if getattr(settings, name) is None
    }
    return settings.model_copy(update=missing)


def expanded(
    flag: str,
    names: Sequence[str],
    devices: int,
    *,
    more: tuple[str, ...] | None = None,
    task: str = "classification",
) -> list[str]:
    """Return loaders by name, each once; auto: those that can run here with so many GPUs. Raises UserError
    for an unknown name.

    `more` are names besides the loaders; by default the baselines.
    """
    kind = kind_named(task)
    of_videos = kind.medium == "videos"
    by_hand = (*BASELINES[kind.medium], *(videos.ALONE if of_videos else ())) if more is None else more
    known = (*by_hand, *kind.loaders)
    never = ("synthetic", *videos.ALONE)
    auto = [
        name
        for name in known
        if name not in never
        and not (name in LOADERS and "+" in name)
        and _runs(name, devices, of_videos=of_videos)
    ]
    return list(
        dict.fromkeys(
            each
            for name in names
            for each in (
                auto if one_of(flag, name, (*known, "auto"), elsewhere=task_with_loader) == "auto" else [name]
            )
        )
    )


def _runs(name: str, devices: int, *, of_videos: bool) -> bool:
    """Whether what a loader needs is installed here."""
    if spec := LOADERS.get(name):
        packages, on_gpu = spec.packages, spec.gpu == "must"
    else:  # by hand; DALI's own readers of videos decode on a GPU alone
        packages = tuple(package for part, package in NEEDS.items() if part in name)
        on_gpu = of_videos and name in videos.DALI
    return all(map(installed, packages)) and bool(devices or not on_gpu)


def command(settings: Loader, point: Point, folder: Path) -> list[str]:
    data = class_folders(settings.data, medium=medium_of(settings.task))
    found = settled(settings).model_copy(update={"data": data})
    python, *words = in_own_process("benchmarks.loader")(found, point, folder)
    return [python, *ranks(point["gpus"]), *words]


def measure(settings: Loader, point: Point, folder: Path) -> Measured:
    device = prepare_process()
    world = ProcessWorld(device)
    medium = medium_of(settings.task)
    of_videos = medium == "videos"
    data = (videos.open_split if of_videos else open_split)(class_folders(settings.data, medium=medium))
    files = len(data.columns)
    whole = files * max(settings.clips, 1) if of_videos else files
    with ExitStack() as stack:
        stack.enter_context(world.joined())
        stack.enter_context(world.own_stream())
        meter = Meter(world, min_window_s=LEAST_S, synchronise=world.synchronise)
        load = hardware.Sampler(device, cores=cores(), host=False).start()
        stack.callback(load.stop)
        meter.resume(epoch=0)  # the first pass includes the start of the loader
        more: videos.Tell | None
        if of_videos:
            epochs, more = stack.enter_context(videos.opened(settings, point["loader"], data, world))
        else:
            epochs = stack.enter_context(images.opened(settings, point["loader"], data, world))
            more = None
        steps = 0
        for epoch in itertools.count():
            if epoch:
                meter.resume(epoch)
            for samples in epochs(epoch):
                world.await_batch()
                meter.add(samples)
                steps += epoch > 0
            meter.pause()
            if epoch == 0:
                meter.flush()
                if not meter.windows[0].samples:
                    raise UserError(
                        f"--loaders {point['loader']}: none of the {files} files could be decoded"
                    )
                load.read()  # the loads are of the passes that count
            # one window more than passes, as the first one has the loader's start
            elif len(meter.windows) > settings.passes and min(world.gather(steps)) >= LEAST_STEPS:
                break
        busy = hardware.over_ranks(world.gather(load.read()))
        host_gib = float(world.sum(np.array([hardware.host_gib()]))[0])
        device_gib = max(
            (found for found in world.gather(hardware.device_gib(device)) if found is not None), default=None
        )
        # on one rank: all read the same files, and looking at them takes the disk's time
        different = world.gather(unique(cast(FileSource, data.source)) if world.rank == 0 else None)[0]
    first, *windows = meter.windows
    rates = [window.rate for window in windows]
    passes = [whole / window.rate for window in windows]
    return Measured(
        figures={
            "rate": float(np.median(rates)),
            "per_gpu": float(np.median(rates)) / world.size,
            "pass_s": float(np.median(passes)),
            **(more(float(np.median(rates))) if more else {}),
            "first_pass_s": first.seconds,
            "samples": first.samples,
            "steps": steps,
            "files": files,
            "unique_files": different,
            "host_gib": host_gib,
            "device_gib": device_gib,
            **{name: busy[name] for name in hardware.LOADS},
        },
        spread={name: its for name, found in (("rate", rates), ("pass_s", passes)) if (its := spread(found))},
        versions=hardware.versions(),
        hardware=hardware.hardware(device, cores()),
    )


def unique(source: FileSource) -> int:
    """Count the different files among a source's: links to one file are one, and so are copies (up to
    CONTENTS_UP_TO files)."""
    found = {}
    for sample in range(len(source)):
        path = source.path(sample)
        status = os.stat(path)
        # links to one file share both numbers, and a second reading of it comes from the page cache
        found[status.st_dev, status.st_ino] = (status.st_size, path)
    if len(found) > CONTENTS_UP_TO:
        return len(found)
    sizes = Counter(size for size, _ in found.values())
    # only files of equal size can be copies, so that most are not opened
    return len({(size, _begins(path) if sizes[size] > 1 else b"") for size, path in found.values()})


def _begins(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return blake2b(file.read(HEAD)).digest()


BY_HAND = {name for names in BASELINES.values() for name in names}
SPEED_UPS = {"speed_up": "pytorch", "of_dali": "dali"}
"""Ratio of pass times -> what the names begin with of the loops by hand, of which the fastest is what it is
over."""


def by_hand(rows: Sequence[Row], gpus: int, kind: str) -> Row | None:
    """Return the fastest loop by hand of that kind on so many GPUs."""
    found = [
        row
        for row in rows
        if row["status"] == "ok" and row["point"]["loader"] in BY_HAND and row["point"]["gpus"] == gpus
    ]
    of_kind = [row for row in found if row["point"]["loader"].startswith(kind)]
    return min(of_kind, key=lambda row: float(row["figures"]["pass_s"]), default=None)


def derive(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with SPEED_UPS (their pass time on as many GPUs / this one's) and `scaling` (rate /
    GPUs / that on one GPU)."""

    def more(row: Row) -> dict[str, float | None]:
        loader = row["point"]["loader"]
        gpus = row["point"]["gpus"]
        pass_s = row["figures"]["pass_s"]
        beside = {name: by_hand(rows, gpus, kind) for name, kind in SPEED_UPS.items()}
        alone = _show.best(
            [other for other in rows if other["status"] == "ok"], "rate", loader=loader, gpus=1
        )
        return {
            **{
                name: other["figures"]["pass_s"] / pass_s if other else None for name, other in beside.items()
            },
            "scaling": row["figures"]["rate"] / gpus / alone if alone and gpus > 1 else None,
        }

    return [
        {**row, "figures": {**row["figures"], **more(row)}} if row["status"] == "ok" else row for row in rows
    ]


def remarks(rows: Sequence[Row]) -> list[str]:
    """Say how many files differ, and which loaders fell back for some."""
    good = [row for row in rows if row["status"] == "ok"]
    said = []
    for files, links in sorted({(row["figures"]["files"], row["figures"]["unique_files"]) for row in good}):
        rest = "the others are links to these, or copies" if links < files else "no two are alike"
        said.append(f"{files:,} files, {links:,} of them unique: {rest}.")
    for loader, its in _show.by(good, "loader").items():
        kinds = dict.fromkeys(kind for row in its if (kind := row["figures"].get("fallback_kinds")))
        said += [f"{loader}: clips of some files were decoded by pyav ({kind})." for kind in kinds]
    return said


def conclude(rows: Sequence[Row]) -> list[str]:
    good = [row for row in rows if row["status"] == "ok"]
    said = list[str]()
    for gpus, its in _show.by(
        [row for row in good if row["point"]["loader"] not in videos.ALONE], "gpus"
    ).items():
        fastest = min(its, key=lambda row: row["figures"]["pass_s"])
        figures = fastest["figures"]
        beside = [by_hand(rows, gpus, kind) for kind in SPEED_UPS.values()]
        ratios = [
            f"{row['figures']['pass_s'] / figures['pass_s']:.1f} times as fast as {row['point']['loader']}"
            for row in beside
            if row is not None and row is not fastest
        ]
        more = f", {' and '.join(ratios)}" if ratios else ""
        frames = f" ({figures['frames_per_s']:,.0f} frames/s)" if figures.get("frames_per_s") else ""
        passes = f"{fastest['point']['loader']} passes over all files in {figures['pass_s']:.3g} s"
        said.append(f"{_show.processes(gpus)}: {passes}{frames}{more}.")
        said += videos.beside_decoding(fastest, [row for row in good if row["point"]["gpus"] == gpus])
    return said


def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    gpus = list(_show.by(rows, "gpus"))
    names = list(_show.by(rows, "loader"))
    unit = _show.unit_of(rows)
    passes: _plots.Series = {
        name: [_show.best(rows, "pass_s", loader=name, gpus=count) for count in gpus] for name in names
    }
    groups = [_show.processes(count) for count in gpus]
    drawn = [
        _plots.bars(
            folder / "pass.png", groups, passes, title="seconds to pass once over the files", unit="s"
        )
    ]
    if len(gpus) > 1:
        rates: dict[str, Sequence[tuple[float, float]]] = {
            name: [(row["point"]["gpus"], row["figures"]["rate"]) for row in its]
            for name, its in _show.by(rows, "loader").items()
        }
        drawn.append(
            _plots.lines(
                folder / "rate.png", rates, title=f"{unit} of all ranks", x="processes, one a GPU", y=unit
            )
        )
    return drawn


COLUMNS = (
    *(
        Column(key=key, title=key.replace("_", " "))
        for key in (
            "loader",
            "gpus",
            "batch_size",
            "image_size",
            "window",
            "workers",
            "reader",
            "clip_frames",
            "clip_stride",
            "clips",
        )
    ),
    Column(key="rate", title="{unit}", form=Rates()),
    Column(key="frames_per_s", title="frame/s", form="{:,.0f}"),
    Column(key="pass_s", title="pass, s", form="{:,.3g}"),
    Column(key="speed_up", title="/ PyTorch", form="{:.2f}"),
    Column(key="of_dali", title="/ plain DALI", form="{:.2f}"),
    Column(key="per_gpu", title="{unit} a GPU", form=Rates()),
    Column(key="scaling", title="scaling", form="{:.0%}"),
    Column(key="decoded_per_frame", title="decoded / delivered", form="{:.2f}"),
    Column(key="fallbacks", title="clips by pyav", form="{:.1%}"),
    Column(key="first_pass_s", title="first pass, s", form="{:,.3g}"),
    Column(key="host_gib", title="host GiB", form="{:.1f}"),
    Column(key="device_gib", title="GPU GiB", form="{:.1f}"),
    Column(key="cpu_utilisation", title="CPU busy", form="{:.0%}"),
    Column(key="gpu_utilisation", title="GPU busy", form="{:.0%}", detail=True),
    Column(key="power_w", title="W a GPU", form="{:.0f}", detail=True),
    Column(key="files", title="files", form="{:,}", detail=True),
    Column(key="unique_files", title="unique", form="{:,}", detail=True),
    Column(key="samples", title="samples a pass", form="{:,}", detail=True),
)

SUITE = Suite(
    name="loader",
    about="loaders alone: the rate of all ranks, and the time to pass once over the files, beside PyTorch's "
    "own on the CPU and plain DALI",
    settings=Loader,
    points=points,
    command=command,
    read=figures_of,
    columns=COLUMNS,
    rate="rate",
    plots=plots,
    remarks=remarks,
    conclude=conclude,
    derive=derive,
)

if __name__ == "__main__":
    measuring(Loader, measure)
