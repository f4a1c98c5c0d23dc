"""`loader`: loaders alone over a table of axes: the rate, the time of a pass, and how long a consumer waits.

Of images, or of clips of videos (--task video); beside PyTorch's and DALI's own loading, other libraries'
stores and decoders alone (_loaders.py); with --lines the traffic of a list alone (_lists.py).

    |- first batch -|- step -|wait|- step -|wait| ... |- step -|   a pass: all files, or --steps batches
                    |<-------------- total_s ----------------->|   floor = steps x --step-ms

A window of report.meter is as many passes as take two seconds, from the request for a first batch until the
last one is on the device. A pass's tail that fills no batch of all ranks is dropped, as in training; `pass_s`
is the time of all files at a window's rate.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from engine.distributed import (
    ProcessWorld,
    cores,
    prepare_process,
)  # before torch: see there

# isort: split
import numpy as np
import psutil
import torch
from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt

from benchmarks import _lists
from benchmarks._loaders import (
    ALONE,
    BY_HAND,
    DECODERS,
    PEERS,
    Asked,
    Epochs,
    data_folder,
    expanded,
    medium_of,
    open_data,
    opened,
    paths,
    whole_decoder,
)
from benchmarks._show import processes
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
    axis_columns,
    crossed,
    figures_of,
    grouped,
    in_own_process,
    measuring,
    of_baseline,
    ranks,
    require_gpus,
)
from benchmarks.baselines import peers
from contracts import FileSource, Split, UserError
from loaders import Medium
from report import hardware
from report.meter import Meter, spread
from settings.cli import one_of
from settings.types import NotNegative

DEFAULTS: dict[Medium, dict[str, int]] = {
    "images": {"batch_size": 32, "image_size": 640},
    "videos": {"batch_size": 8, "image_size": 224},
}
OF_READER = "torchvision"
"""The loader whose decoder --readers names."""
CLIPS = ("clip_frames", "clip_stride", "clips")
"""Settings of clips alone."""
LEAST_S = 2.0
"""A window below this says little of a steady rate."""
KEEPS = 0.03
"""A loader keeps up with the steps when the consumer waits for at most this share of them."""
COMPARED = 100
"""Files whose pixels are compared with PIL's."""


class Loader(Common):
    """Loaders alone: the rate, the time to pass once over a folder, and how long a consumer waits, beside
    PyTorch's and DALI's own."""

    task: str = "classification"
    """Task of train.py, of images with a label or of clips of videos."""
    data: Path | None = None
    """Folder with <class>/* or train/<class>/*; of videos also with a list, train.csv. Our loaders also read
    what scripts.pack has made."""
    sets: tuple[str, ...] = ()
    """Folders below --data, each of which is passed over, as scripts.pack makes them."""
    loaders: tuple[str, ...] = ("auto",)
    """By hand, pytorch, pytorch+opencv (uint8, --window stretch), dali (DALI's own reader) and dali-by-hand
    (fed by Python); of clips pytorch with PyAV, pytorch+decord, on a GPU dali and dali-experimental; or as in
    --loader of train.py. auto = all of these that run here but dali-by-hand and nvdec+ANOTHER. By name also
    other libraries, which write a store of their own first: webdataset, litdata, streaming, datasets, loose
    (files); and decoding alone: READER-alone, simplejpeg-alone, kornia-rs-alone, imagecodecs-alone, av-alone;
    of clips decord-alone, pyav-alone, nvdec-alone."""
    gpus: tuple[PositiveInt, ...] = (1,)
    """Processes, one a GPU (on a CPU: gloo)."""
    batch_size: PositiveInt | None = None
    """Samples a rank and batch. Default: 32; of clips 8."""
    image_size: Annotated[int, Field(ge=8)] | None = None
    """Height and width of the images, pixels. Default: 640; of clips 224."""
    window: Literal["stretch", "random-resized", "center"] = "stretch"
    """Images: the whole image stretched, or the windows of training and validation."""
    workers: tuple[NonNegativeInt, ...] = (8,)
    """Worker processes (pytorch, torchvision, dali-fed, all of clips) or threads (dali, dali-cpu, dali-gpu) a
    rank."""
    dali_threads: NonNegativeInt = 0
    """Threads of DALI: with dali-cpu and dali-gpu they read too, with dali-fed they only decode. 0: as many
    as workers."""
    readers: tuple[str, ...] = ("auto",)
    """Images: decoders of the torchvision loader, as --reader of train.py."""
    delays: tuple[NotNegative, ...] = (0.0,)
    """Each read takes this much longer, ms."""
    step_ms: NotNegative = 0.0
    """Milliseconds of a step: the consumer sleeps so long with each batch, on the host."""
    steps: NonNegativeInt = 0
    """Batches of a pass, 20 or more. 0 = all."""
    passes: Annotated[int, Field(ge=LEAST)] = LEAST
    """Windows to measure, each of whole passes (one, or as many as take 2 s), after a first pass that is
    reported apart."""
    cold: bool = False
    """Images, one rank: also the rate of files that are dropped from the page cache (posix_fadvise) behind a
    loader that has given one batch."""
    cold_s: Annotated[FiniteFloat, Field(gt=0)] = 2.0
    """Longest that --cold reads, seconds; a whole pass ends sooner."""
    clip_frames: NonNegativeInt = 16
    """Frames of a clip; 0 = all frames of a video, from its first to its last: decoding in sequence. That
    takes memory: a smaller --batch-size."""
    clip_stride: PositiveInt = 1
    """Distance from one frame of a clip to the next, in frames of the video."""
    clips: NonNegativeInt = 0
    """Clips of a video in a pass, evenly spaced: 300 / --clip-frames pass over all of 300 frames. 0 = one at
    random, as in training."""
    lines: NonNegativeInt = 0
    """An epoch of index traffic over a list of so many lines in place of files; --loaders are then ours,
    python-list, numpy, pandas, walk, and `own_mib` is what a worker's memory grows by."""
    epoch_s: Annotated[FiniteFloat, Field(gt=0)] = 300.0
    """--lines: an epoch that takes longer is broken off, and the share of it is told."""
    reserve_gib: NotNegative = 2.0
    """--lines: an epoch is broken off when the machine has less memory left."""


def points(settings: Loader) -> list[Point]:
    """Return the points. Raises UserError."""
    if settings.lines:
        return _lists.points(settings)
    medium = medium_of(settings.task)
    devices = torch.cuda.device_count()
    require_gpus(settings.gpus, devices)
    if 0 < settings.steps < LEAST_STEPS:
        raise UserError(
            f"--steps got {settings.steps}; it must be 0, or {LEAST_STEPS} and more"
        )
    for count in settings.gpus:
        if settings.cold and (count > 1 or medium == "videos"):
            raise UserError("--cold true: of images, and of one rank, --gpus 1")
    names = expanded(
        "--loaders", settings.loaders, devices, task=settings.task, by_hand=True
    )
    if settings.window != "stretch" and "pytorch+opencv" not in settings.loaders:
        names = [
            name for name in names if name != "pytorch+opencv"
        ]  # it stretches, and auto leaves it out
    if (settings.steps or any(settings.delays)) and "dali" not in settings.loaders:
        names = [
            name for name in names if name != "dali"
        ]  # it reads all, as fast as it can
    by_hand = {*BY_HAND[medium], *ALONE[medium], *PEERS}
    for name in settings.sets or ("",):
        data = settings.data / name if settings.data else None
        data_folder(data, medium=medium, files=bool(by_hand & {*names}))
    settled = {
        name: getattr(settings, name) or value
        for name, value in DEFAULTS[medium].items()
    }
    if medium == "videos":
        settled |= {name: getattr(settings, name) for name in CLIPS}
    else:
        settled |= {"window": settings.window}
    settled |= {
        name: its for name in ("step_ms", "steps") if (its := getattr(settings, name))
    }
    for reader in settings.readers:
        one_of(
            "--readers",
            reader,
            ("auto", *(name.removesuffix("-alone") for name in ALONE["images"])),
        )
    asked = crossed(
        set=settings.sets,
        gpus=settings.gpus,
        workers=settings.workers,
        delay_ms=settings.delays if settings.delays != (0.0,) else (),
        loader=names,
        reader=settings.readers if settings.readers != ("auto",) else (),
    )
    first = settings.readers[:1]
    return [
        {"loader": point["loader"]} | point | settled
        for point in asked
        if point["loader"] == OF_READER or point.get("reader", *first) in first
    ]


def command(settings: Loader, point: Point, folder: Path) -> list[str]:
    """Return the command that measures a point, with torchrun for several ranks."""
    found = settings.model_copy(
        update={"data": settings.data and settings.data.absolute()}
    )
    python, *words = in_own_process("benchmarks.loader")(found, point, folder)
    return [python, *ranks(point.get("gpus", 1)), *words]


# --- measuring ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pass:
    """Seconds until the first batch, in all steps behind it, and of these in waiting for other batches."""

    first_batch_s: float
    total_s: float
    waited_s: float


def consume(
    batches: Iterator[int],
    *,
    step_s: float,
    wait: Callable[[], None],
    count: Callable[[int], None] = lambda samples: None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Pass, int]:
    """Take every batch, wait until it is on the device, count it, sleep for a step; return the times and the
    number of batches."""
    began = asked = clock()
    first_s = waited_s = 0.0
    steps = 0
    for samples in batches:
        wait()
        count(samples)
        now = clock()
        if (
            steps == 0
        ):  # begins anew behind it: how long a loader takes to start is told apart
            first_s = now - began
            began = now
        else:
            waited_s += now - asked
        if step_s:
            sleep(step_s)  # and does not compute: that would take cores from the loader
        steps += 1
        asked = clock()
    return Pass(first_s, asked - began, waited_s), steps


def measure(settings: Loader, point: Point, folder: Path) -> Measured:
    """Measure one point in this process, a rank of it."""
    if settings.lines:
        return _lists.measure(settings, point, folder)
    device = prepare_process()
    world = ProcessWorld(device)
    medium = medium_of(settings.task)
    name = point["loader"]
    by_hand = name in (*BY_HAND[medium], *ALONE[medium], *PEERS)
    assert settings.data is not None
    root = data_folder(
        settings.data / point.get("set", ""), medium=medium, files=by_hand
    )
    data = open_data(root, medium)
    asked = Asked(
        medium=medium,
        threads=settings.dali_threads,
        delay_s=point.get("delay_ms", 0.0) / 1e3,
        batches=point.get("steps"),
        **{one.name: point[one.name] for one in fields(Asked) if one.name in point},
    )
    whole = len(data.columns) * max(asked.clips, 1)
    if asked.batches:
        whole = asked.batches * asked.batch_size * world.size
    passes: list[Pass] = []
    step_s = point.get("step_ms", 0.0) / 1e3
    with ExitStack() as stack:
        stack.enter_context(world.joined())
        stack.enter_context(world.own_stream())
        meter = Meter(world, min_window_s=LEAST_S, synchronise=world.synchronise)
        load = hardware.Sampler(device, cores=cores(), host=False).start()
        stack.callback(load.stop)
        meter.resume(epoch=0)  # the first pass includes the start of the loader
        began = time.perf_counter()
        epochs, more = stack.enter_context(
            opened(asked, name, data, world, folder.parents[1] / "stores")
        )
        opening_s = time.perf_counter() - began
        steps = 0
        for epoch in itertools.count():
            if epoch:
                meter.resume(epoch)
            times, taken = consume(
                epochs(epoch), step_s=step_s, wait=world.await_batch, count=meter.add
            )
            meter.pause()
            if epoch:
                passes.append(times)
                steps += taken
            else:
                meter.flush()
                start_s = opening_s + times.first_batch_s
                if not meter.windows[0].samples:
                    raise UserError(
                        f"--loaders {name}: none of the {len(data.columns)} files could be decoded"
                    )
                load.read()  # the loads are of the passes that count
            # one window more than passes, as the first one has the loader's start
            if (
                len(meter.windows) > settings.passes
                and min(world.gather(steps)) >= LEAST_STEPS
            ):
                break
        busy = hardware.over_ranks(world.gather(load.read()))
        host_gib = float(world.sum(np.array([hardware.host_gib()]))[0])
        device_gib = max(
            (
                gib
                for gib in world.gather(hardware.device_gib(device))
                if gib is not None
            ),
            default=None,
        )
        # on one rank: all read the same files
        different = world.gather(_different(data) if world.rank == 0 else None)[0]
    first, *windows = meter.windows
    repeated = {
        "rate": [window.rate for window in windows],
        "pass_s": [whole / window.rate for window in windows],
        **{
            one.name: [getattr(times, one.name) for times in passes]
            for one in fields(Pass)
        },
    }
    figures: dict[str, Any] = {
        name: float(np.median(values)) for name, values in repeated.items()
    }
    figures |= {
        "per_gpu": figures["rate"] / world.size,
        "per_worker": figures["rate"] / world.size / max(asked.workers, 1),
        **more(figures["rate"]),
        "floor_s": (steps / len(passes)) * step_s or None,
        "start_s": start_s,
        "first_pass_s": first.seconds,
        "samples": first.samples,
        "steps": steps,
        "files": len(data.columns),
        "unique_files": different,
        "host_gib": host_gib,
        "device_gib": device_gib,
        **{name: busy[name] for name in hardware.LOADS},
    }
    if settings.cold and not by_hand:
        with opened(asked, name, data, world, folder) as (again, _):
            figures["cold"], figures["from_disk"] = cold(
                again,
                root if root.is_dir() else root.parent,
                world,
                settings.cold_s,
                len(data.columns),
            )
    reader = name.removesuffix("-alone")
    if reader != name and medium == "images":
        figures |= compared(reader, paths(data))
    package = {name: its.package for name, its in peers.PEERS.items()}.get(
        name, reader if reader in DECODERS else ""
    )
    return Measured(
        figures=figures,
        spread={
            name: its for name, values in repeated.items() if (its := spread(values))
        },
        versions=hardware.versions()
        | ({package: metadata.version(package)} if package else {}),
        hardware=hardware.hardware(device, cores()),
    )


def _different(data: Split) -> int | None:
    """Count the different files of a source: links to one file are one, and a second reading of it comes from
    the page cache. None where samples are no files."""
    if not data.source.files:
        return None
    source = cast(FileSource, data.source)
    statuses = (os.stat(source.path(sample)) for sample in range(len(data.columns)))
    return len({(status.st_dev, status.st_ino) for status in statuses})


def compared(reader: str, files: Sequence[str]) -> dict[str, float]:
    """Return the mean absolute difference to PIL's pixels, grey levels: `mad` over up to COMPARED files, and
    in the `worst` of them."""
    ours, pil = whole_decoder(reader), whole_decoder("pil")
    mads = []
    for file in files[:: max(len(files) // COMPARED, 1)][:COMPARED]:
        content = Path(file).read_bytes()
        mads.append(float(np.abs(ours(content).astype(np.int16) - pil(content)).mean()))
    return {"mad": float(np.mean(mads)), "worst": max(mads)}


# --- files that are not in the page cache -------------------------------------------------------------------


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


def cold(
    epochs: Epochs, folder: Path, world: ProcessWorld, longest_s: float, images: int
) -> tuple[float, float | None]:
    """Return samples/s of a store of so many `images` that is not in the page cache, and the bytes that came
    from disks over those of these samples: more than 1 where the system reads ahead, or other processes read.

    Neither the loader's start nor its buffers are in that time, which ends with the pass or before.
    """
    # before a reader of an LMDB maps what is cached: in pieces of 2 MiB, which then stay
    dropped(folder)
    sum(epochs(0, 1))  # starts the workers, and reads nothing ahead
    size = dropped(folder)
    before = disk_bytes()
    samples = 0
    began = time.perf_counter()
    for count in epochs(1):
        samples += count
        if time.perf_counter() - began >= longest_s:
            break
    world.synchronise()
    rate = samples / (time.perf_counter() - began)
    after = disk_bytes()
    return rate, None if before is None or after is None else (after - before) / (
        size * samples / images
    )


# --- what is told -------------------------------------------------------------------------------------------


LOOPS = {name for names in BY_HAND.values() for name in names}
SPEED_UPS = {"speed_up": "pytorch", "of_dali": "dali"}
"""Ratio of pass times -> what the names begin with of the loops by hand, of which the fastest is what it is
over."""


def loop_by_hand(rows: Sequence[Row], point: Point, kind: str) -> Row | None:
    """Return the fastest loop by hand of that kind, of the same point but for the loader."""
    alike = [
        row
        for row in rows
        if row["status"] == "ok"
        and row["point"]["loader"] in LOOPS
        and row["point"]["loader"].startswith(kind)
        and row["point"] == point | {"loader": row["point"]["loader"]}
    ]
    return min(
        alike, key=lambda row: float(row["figures"].get("pass_s", 0)), default=None
    )


def derive(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with SPEED_UPS (their pass time / this one's) and `scaling` (rate / GPUs / that on one
    GPU)."""
    derived = of_baseline(rows, "rate", {"scaling": {"gpus": 1}})
    for row in derived:
        figures = row["figures"]
        if row["status"] != "ok" or "pass_s" not in figures:
            continue
        gpus = row["point"].get("gpus", 1)
        figures["scaling"] = (
            figures["scaling"] / gpus if gpus > 1 and "scaling" in figures else None
        )
        for name, kind in SPEED_UPS.items():
            base = loop_by_hand(rows, row["point"], kind)
            figures[name] = (
                base["figures"]["pass_s"] / figures["pass_s"] if base else None
            )
    return derived


def remarks(rows: Sequence[Row]) -> list[str]:
    """Say how many files differ, which loaders fell back for some, and how much workers grew by a list."""
    good = [row for row in rows if row["status"] == "ok"]
    told = []
    counts = {
        (row["figures"].get("files"), row["figures"].get("unique_files"))
        for row in good
    }
    for files, different in sorted(pair for pair in counts if None not in pair):
        rest = (
            "the others are links to these" if different < files else "no two are one"
        )
        told.append(f"{files:,} files, {different:,} of them unique: {rest}.")
    for loader, its in grouped(good, lambda row: row["point"]["loader"]).items():
        kinds = dict.fromkeys(
            kind for row in its if (kind := row["figures"].get("fallback_kinds"))
        )
        told += [
            f"{loader}: clips of some files were decoded by pyav ({kind})."
            for kind in kinds
        ]
    return told + _lists.remarks([row for row in good if "lines" in row["point"]])


def conclude(rows: Sequence[Row]) -> list[str]:
    """Say the fastest loader of each number of processes, and who keeps up with the steps at each delay."""
    good = [row for row in rows if row["status"] == "ok" and "pass_s" in row["figures"]]
    loading = [row for row in good if not row["point"]["loader"].endswith("-alone")]
    told = []
    for gpus, its in grouped(loading, lambda row: row["point"]["gpus"]).items():
        fastest = min(its, key=lambda row: float(row["figures"]["pass_s"]))
        figures = fastest["figures"]
        beside = [
            loop_by_hand(rows, fastest["point"], kind) for kind in SPEED_UPS.values()
        ]
        ratios = [
            f"{row['figures']['pass_s'] / figures['pass_s']:.1f} times as fast as {row['point']['loader']}"
            for row in beside
            if row is not None and row is not fastest
        ]
        name = fastest["point"]["loader"]
        frames = (
            f" ({figures['frames_per_s']:,.0f} frames/s)"
            if figures.get("frames_per_s")
            else ""
        )
        line = f"{processes(gpus)}: {name} passes over all files in {figures['pass_s']:.3g} s{frames}"
        more = f", {' and '.join(ratios)}" if ratios else ""
        told.append(f"{line}{more}.")
        alone = {
            row["point"]["loader"]: row["figures"]["rate"]
            for row in good
            if row["point"]["gpus"] == gpus
        }
        for cpu in ("decord-alone", "pyav-alone"):
            if {cpu, "nvdec-alone"} <= alone.keys():
                share = figures["rate"] / (alone[cpu] + alone["nvdec-alone"])
                told.append(
                    f"{name} gives {share:.0%} of what nvdec-alone and {cpu} decode together."
                )
    stepping = [row for row in loading if row["figures"].get("floor_s")]
    for delay, its in grouped(
        stepping, lambda row: row["point"].get("delay_ms", 0.0)
    ).items():
        its = sorted(its, key=lambda row: float(row["figures"]["waited_s"]))
        kept, lost = (
            ", ".join(
                f"{row['point']['loader']} {row['figures']['waited_s']:.2f} s"
                for row in its
                if (row["figures"]["waited_s"] <= KEEPS * row["figures"]["floor_s"])
                is keeps
            )
            for keeps in (True, False)
        )
        floor_s = its[0]["figures"]["floor_s"]
        told.append(
            f"{delay:g} ms a read, steps of {floor_s:g} s in all: kept by {kept or 'none'}; lost by "
            f"{lost or 'none'}."
        )
    meaning = (
        f"Kept: waited for at most {KEEPS:.0%} of that time, the first batch apart."
    )
    return [*told, meaning] if stepping else told


COLUMNS = (
    *axis_columns(
        "loader", "set", "gpus", "workers", "delay_ms", "reader", "lines", "step_ms"
    ),
    *axis_columns("batch_size", "image_size", "window", *CLIPS),
    Column(key="rate", title="{unit}", form=Rates()),
    Column(key="frames_per_s", title="frame/s", form="{:,.0f}"),
    Column(key="pass_s", title="pass, s", form="{:,.3g}"),
    Column(key="speed_up", title="/ PyTorch", form="{:.2f}"),
    Column(key="of_dali", title="/ plain DALI", form="{:.2f}"),
    Column(key="cold", title="cold", form="{:,.0f}"),
    Column(key="from_disk", title="read from disks", form="{:.0%}", detail=True),
    Column(key="per_gpu", title="{unit} a GPU", form=Rates(), detail=True),
    Column(key="per_worker", title="{unit} a worker", form=Rates(), detail=True),
    Column(key="scaling", title="scaling", form="{:.0%}"),
    Column(key="floor_s", title="floor, s", form="{:.2f}"),
    Column(key="total_s", title="steps, s", form="{:.2f}", detail=True),
    Column(key="waited_s", title="waited, s", form="{:.3f}", detail=True),
    Column(key="first_batch_s", title="first batch, s", form="{:.2f}", detail=True),
    Column(key="start_s", title="start, s", form="{:.2f}", detail=True),
    Column(key="decoded_per_frame", title="decoded / delivered", form="{:.2f}"),
    Column(key="fallbacks", title="clips by pyav", form="{:.1%}"),
    Column(key="mad", title="difference to PIL", form="{:.3f}"),
    Column(key="worst", title="worst file", form="{:.3f}"),
    *_lists.COLUMNS,
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
    about="loaders alone: the rate of all ranks, the time of a pass and of waiting, beside PyTorch's own on "
    "the CPU, plain DALI and other libraries",
    settings=Loader,
    points=points,
    command=command,
    read=figures_of,
    columns=COLUMNS,
    rate="rate",
    over=("gpus", "delay_ms", "workers", "loader"),
    curves=("rate", "pass_s", "waited_s", "own_mib"),
    remarks=remarks,
    conclude=conclude,
    derive=derive,
)

if __name__ == "__main__":
    measuring(Loader, measure)
