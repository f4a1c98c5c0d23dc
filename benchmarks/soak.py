"""`soak`: many epochs with a loader. Memory of host and device, open files, threads, processes and the rate,
epoch by epoch.

What grows by more than it may is a failed point: exit code 1.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import torch
from pydantic import Field, NonNegativeInt, PositiveInt

from benchmarks._loaders import (
    asked_of,
    expanded,
    feed_of,
    medium_of,
    training_split,
)
from benchmarks._suite import (
    Common,
    Measured,
    Point,
    Suite,
    crossed,
    figures_of,
    in_own_process,
    measuring,
)
from benchmarks.train import require_data
from benchmarks.video_set import BITS_OF_A_NUMBER, SQUARES_A_SIDE
from saturate.contracts import Batch, Feed, Loader, Pixels, Rows, UserError
from saturate.engine.distributed import ProcessWorld, cores, prepare_process
from saturate.loaders import open_loader
from saturate.report.hardware import device_gib, hardware, host_gib, versions
from saturate.report.meter import Meter, spread
from saturate.report.record import replace as write
from saturate.settings.config import parse
from saturate.settings.types import NotNegative
from saturate.tasks import kind_named

JUDGED = 10
"""Fewest epochs after the warm-up: in fewer, a leak and noise look alike."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, as malloc.h numbers them."""
LARGE = 1 << 16
"""Bytes from which freed memory goes back to the system at once."""
BATCH_SIZES = {"images": 64, "videos": 8}
STEPS = 3
STEPS_AN_EPOCH = 0.1
"""Up to STEPS lasting rises, or this share of the epochs if that is more, are no leak while they are small: a leak
shows in more of the epochs."""
MOST_OF_THE_RANGE = 0.8
"""Share of a reading's range from which on its lasting rises are all that there is."""
NORMAL = 1.4826
"""Standard deviation of normal noise over the median deviation."""
MOST_TOLD = 5
"""Wrong clips of which a failed point has a line, and keeps the pixels."""
BRIGHT = 128 / 255
"""Least level of a bright square, as video_set.number_of has it."""
NEIGHBOUR = """
import sys, time, torch
on_gpu = sys.argv[1].startswith("cuda")
side = 4096 if on_gpu else 512
matrix = torch.ones(side, side, device=sys.argv[1], dtype=torch.half if on_gpu else torch.float)
while True:
    matrix @ matrix
    if on_gpu:
        torch.cuda.synchronize()
    time.sleep(0.005)
"""
"""A program that uses the same device, some of the time."""
MIB = ("host_mib", "device_mib")
COUNTS = ("files", "threads", "processes")
"""Readings that are counts, none of which may grow."""
MOST_IN_STEPS = {**dict.fromkeys(MIB, 256.0), **dict.fromkeys(COUNTS, 3.0)}
"""Reading -> most that its lasting rises may add up to without being a leak."""


class Soak(Common):
    """Many epochs with a loader: does anything grow, and does the rate fall?"""

    task: str = "classification"
    """Task of train.py, of images with a label or of clips of videos."""
    data: Path | None = None
    """Folder as --data of train.py for the task; an epoch is one pass over it."""
    loaders: tuple[str, ...] = ("auto",)
    """Names as in --loader of train.py; auto = all that read files and run here, but nvdec+ANOTHER."""
    epochs: PositiveInt = 30
    """Passes with each loader."""
    warm_epochs: NonNegativeInt = 4
    """Epochs at the start that are not judged, because allocators and pools still fill; DALI's take up to 500
    batches."""
    batch_size: PositiveInt | None = None
    """Samples a batch. Default: 64; of clips, 16 frames of each video, 8."""
    image_size: Annotated[int, Field(ge=8)] = 224
    """Height and width of the output, pixels."""
    clip_frames: PositiveInt = 16
    """Frames of a clip."""
    workers: NonNegativeInt | None = None
    """Processes or threads that read and decode. Default: CPU cores, less one."""
    beside: NonNegativeInt = 0
    """Programs that multiply matrices on the same device, from when a loader is open. Readings count them too."""
    numbered: bool = False
    """The videos are square ones of `video-set`, and --image-size is a multiple of 16 from 64 on: each frame is read,
    and a clip with a wrong one, or that does not come, is a failed point. The first ones are kept as wrong-*.pt."""
    max_mib_an_epoch: NotNegative = 0.5
    """MiB an epoch: growth of host or of device memory above which a point fails. Files, threads and processes
    may not grow at all. A pool that meets a larger batch than before grows by a step: growth in at most 3 steps
    (or a step in 10 epochs) is told and does not fail, while the steps add up to at most 256 MiB, or to 3
    files, threads or processes. A single step never fails."""


# --- readings -----------------------------------------------------------------------------------------------


def give_back_at_once() -> None:
    """Have glibc give large memory back to the system as soon as it is freed, here and in forked processes.

    Else a worker that decodes 1080p keeps 2 to 25 MiB of it, by chance.
    """
    # prepare_process changes malloc only where this variable is not set
    os.environ.setdefault("GLIBC_TUNABLES", "")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
        if mallopt is not None:
            mallopt(parameter, LARGE)


def host_mib() -> float:
    """Return the memory of this process and its children, MiB: the PSS, in which shared pages count once, but
    for the pages of libraries and other files.

    The share of those pages depends on who else has mapped them: it jumps by 10 MiB whenever another program
    starts. What this process has freed goes back to the system first, or a leak would be served from it.
    """
    this = psutil.Process()
    children = [child.pid for child in this.children(recursive=True)]
    with suppress(AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
    total = 0.0
    for pid in (this.pid, *children):
        with suppress(OSError):  # the process has ended
            mib = rollup(pid)
            if "Pss_Anon" not in mib:  # Linux before 5.3
                return 1024 * host_gib()
            total += mib["Pss_Anon"] + mib["Pss_Shmem"]
    return total


def rollup(pid: int) -> dict[str, float]:
    """Return the figures of /proc/PID/smaps_rollup by name, MiB. Raises OSError."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {each.partition(":")[0]: int(each.split()[1]) / 1024 for each in lines}


def reading(device: Any) -> dict[str, float]:
    """Return host_mib, device_mib, and the files, threads and processes of the process tree, by name.

    device_mib is of all programs that use the device, and is left out on a CPU. Garbage is collected first:
    the first collection writes to all objects, so that 73 MiB of pages are copied that this process shared with
    those that it has forked. Left to itself, Python collected after 24,000 and after 26,000 clips.
    """
    gc.collect()
    counted = []
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):  # the process has ended
            counted.append((process.num_fds(), process.num_threads(), 1))
    found = {"host_mib": host_mib()}
    if (on_device := device_gib(device)) is not None:
        found["device_mib"] = 1024 * on_device
    return found | dict(zip(COUNTS, np.sum(counted, axis=0).tolist(), strict=True))


# --- what grows ---------------------------------------------------------------------------------------------


def slope(values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs (Theil and Sen): a single jump does not move it."""
    pairs = itertools.combinations(enumerate(values), 2)
    return float(np.median([(b - a) / (j - i) for (i, a), (j, b) in pairs]))


def margin(values: Sequence[float]) -> float:
    """Return two standard errors of the slope, from the median distance of the values from the line."""
    epochs = np.arange(len(values))
    off = np.asarray(values) - slope(values) * epochs
    deviation = NORMAL * np.median(np.abs(off - np.median(off)))
    return float(2 * deviation / np.sqrt(np.sum((epochs - epochs.mean()) ** 2)))


def steps_up(values: Sequence[float]) -> tuple[int, float]:
    """Return the number and the sum of the lasting rises; (0, 0.0) where these are many, or not all that moves.

    A rise lasts as far as no later value falls below it. A pool grows so: by a step whenever it meets a larger batch
    than ever before, which happens ever more rarely.
    """
    before = np.maximum.accumulate(values)[:-1]
    after = np.minimum.accumulate(values[::-1])[::-1][1:]
    rises = np.maximum(after - before, 0.0)
    number, total = int(np.count_nonzero(rises)), float(rises.sum())
    few = number <= max(STEPS, STEPS_AN_EPOCH * len(values))
    return (
        (number, total)
        if few and total >= MOST_OF_THE_RANGE * np.ptp(values)
        else (0, 0.0)
    )


def verdict(
    series: Mapping[str, Sequence[float]], max_mib_an_epoch: float
) -> tuple[list[str], list[str]]:
    """Return two lists of sentences: of readings that leak, and of readings to know about.

    `series`: reading -> one value an epoch, without the warm-up. A reading leaks where an epoch adds more than
    allowed, beyond noise, and does so in the later half too: a pool that fills is no leak. To know about are
    those that rose in few steps, and those that vary too much to tell.
    """
    leaks, notes = list[str](), list[str]()
    for name in MIB + COUNTS:
        if name not in series:
            continue
        values = series[name]
        most = max_mib_an_epoch if name in MIB else 0.0
        number, total = steps_up(values)
        an_epoch, noise = slope(values), margin(values)
        grows = an_epoch - noise > most and slope(values[len(values) // 2 :]) > most
        said = f"{name} {an_epoch:+.2f} ± {noise:.2f} an epoch, allowed {most:g}"
        rose = f"{name} rose in {number} steps by {total:,.0f}"
        if grows and not 0 < total <= MOST_IN_STEPS[name]:
            leaks.append(said)
        elif number and (grows or total > most * len(values)):
            notes.append(rose)
        elif name in MIB and noise > most:
            notes.append(f"{said}: it varies too much to tell, more --epochs tell more")
    return leaks, notes


# --- a point ------------------------------------------------------------------------------------------------


def points(settings: Soak) -> list[Point]:
    medium = medium_of(settings.task)
    data = str(settings.data) if settings.data else None
    require_data(data, settings.loaders, parse(["--task", settings.task]))
    if (judged := settings.epochs - settings.warm_epochs) < JUDGED:
        raise UserError(
            f"--epochs less --warm-epochs is {judged}, to judge takes {JUDGED}"
        )
    readable = settings.image_size >= 64 and not settings.image_size % SQUARES_A_SIDE
    if settings.numbered and not (medium == "videos" and readable):
        raise UserError("--numbered: --task video, and --image-size 64, 80, 96, ...")
    devices = torch.cuda.device_count()
    names = expanded("--loaders", settings.loaders, devices, task=settings.task)
    return crossed(
        loader=names,
        batch_size=[settings.batch_size or BATCH_SIZES[medium]],
        image_size=[settings.image_size],
    )


def feed(settings: Soak, point: Point, world: Any) -> Feed:
    """Return the folder's images with the windows of training, or clips of its videos. Raises UserError."""
    medium = medium_of(settings.task)
    workers = world.workers(settings.workers)
    how: dict[str, Any] = {
        "task": settings.task,
        "window": "random-resized",
        "flip": 0.5,
        "clip_frames": settings.clip_frames,
        # numbered: the whole frame, which shows its number
        "short_side": settings.image_size if settings.numbered else 0,
    }
    asked = asked_of(medium, point, workers=workers, **how)
    assert settings.data is not None
    data = training_split(settings.data, settings.task)
    columns = data.columns
    if settings.numbered and (np.asarray(columns.height) != columns.width).any():
        raise UserError(
            "--numbered is for square videos: `video-set TO --size 256 256`"
        )
    return feed_of(asked, point["loader"], data, world)


def measure(
    settings: Soak,
    point: Point,
    folder: Path,
    open_: Callable[[str, Feed], Loader] = open_loader,
) -> Measured:
    """Pass over the data --epochs times with one open loader, and read after each."""
    give_back_at_once()
    device = prepare_process()
    world = ProcessWorld(device)
    batches = feed(settings, point, world)
    meter = Meter(world, min_window_s=0.0, synchronise=world.synchronise)
    series: dict[str, list[float]] = {}
    frames, wrong = 0, list[str]()
    beside = neighbours(settings.beside, device)
    with open_(point["loader"], batches) as loader, beside:
        for epoch in range(settings.epochs):
            meter.resume(epoch)
            # Without --numbered no plan is drawn a second time within the measured window.
            planned = (
                batches.plan.rows(epoch, 0)
                if settings.numbered
                else itertools.repeat(None)
            )
            passed = loader.batches(epoch, 0)
            for batch, rows in zip(passed, planned, strict=settings.numbered):
                meter.add(batch.delivered)
                if rows is not None:
                    frames += batch.delivered * batch.images.shape[2]
                    keep = folder if len(wrong) < MOST_TOLD else None
                    wrong += wrong_clips(batch, rows, batches.pixels, epoch, keep)
            window = meter.pause()
            assert window is not None
            now = {"rate": window.rate, **reading(device)}
            for name, each in now.items():
                series.setdefault(name, []).append(each)
    write(folder / "series.json", json.dumps(series).encode())
    warm = {name: each[settings.warm_epochs :] for name, each in series.items()}
    leaks, notes = verdict(warm, settings.max_mib_an_epoch)
    rates = warm.pop("rate")
    rate = float(np.median(rates))
    told = spread(rates)
    figures: dict[str, Any] = {
        "rate": rate,
        "unit": kind_named(settings.task).unit,
        "rate_an_epoch": slope(rates) / rate,
        **{f"{name}_an_epoch": slope(values) for name, values in warm.items()},
        **{f"{name}_margin": margin(values) for name, values in warm.items()},
        **{name: values[-1] for name, values in warm.items()},
        "verdict": "; ".join([*leaks, *notes]) or "flat",
    }
    if settings.numbered:
        figures |= {"frames": frames, "wrong": len(wrong)}
    return Measured(
        figures=figures,
        spread={"rate": told} if told else {},
        versions=versions(),
        hardware=hardware(device, cores()),
        error="; ".join([*wrong[:MOST_TOLD], *leaks]) or None,
    )


@contextmanager
def neighbours(count: int, device: torch.device) -> Iterator[None]:
    """Have so many programs use the device."""
    words = [sys.executable, "-c", NEIGHBOUR, str(device)]
    programs = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
        if any(program.poll() is not None for program in programs):
            raise UserError("--beside: a program beside this one has ended too early")
    finally:
        for program in programs:
            program.kill()
            program.wait()


def wrong_clips(
    batch: Batch, rows: Rows, pixels: Pixels, epoch: int, folder: Path | None
) -> list[str]:
    """Return a line for each clip whose frames are not those of its row, and keep the clip in the folder.

    The numbers are read as video_set.number_of does, on the device, of the middle of each square.
    """
    assert rows.frames is not None
    side = batch.images.shape[-1] // SQUARES_A_SIDE
    middle = slice(side // 4, side - side // 4)
    # axes: [B, colour, T, row, square, column]
    corner = batch.images[..., middle, : BITS_OF_A_NUMBER * side].float()
    squares = corner.unflatten(-1, (BITS_OF_A_NUMBER, side))[..., middle].mean((3, 5))
    mean, std = (
        squares.new_tensor(values)[:, None, None]
        for values in (pixels.mean, pixels.std)
    )
    bright = (squares * std + mean).mean(1) > BRIGHT
    bits = bright.long() << torch.arange(BITS_OF_A_NUMBER, device=bright.device)
    shown = bits.sum(-1).cpu().numpy()
    wrong = (shown != rows.frames).any(1) | ~batch.valid.cpu().numpy()
    lines = []
    for place in np.flatnonzero(wrong & rows.valid).tolist():
        sample = int(rows.ids[place])
        if folder is not None:
            torch.save(batch.images[place].cpu(), folder / f"wrong-{epoch}-{sample}.pt")
        at = np.flatnonzero(shown[place] != rows.frames[place])
        numbers = f"{shown[place][at].tolist()}, not {rows.frames[place][at].tolist()}"
        lines.append(f"epoch {epoch}, video {sample} shows frames {numbers}")
    return lines


COLUMNS = {
    "rate": ("{unit}", "{:,.0f}"),
    "rate_an_epoch": ("rate an epoch", "{:+.2%}"),
    "host_mib_an_epoch": ("host MiB an epoch", "{:+.2f}"),
    "host_mib_margin": ("±", "{:.2f}"),
    "device_mib_an_epoch": ("GPU MiB an epoch", "{:+.2f}"),
    "device_mib_margin": ("±", "{:.2f}"),
    **{f"{name}_an_epoch": (f"{name} an epoch", "{:+.2f}") for name in COUNTS},
    "host_mib": ("host MiB", "{:,.0f}"),
    "device_mib": ("GPU MiB", "{:,.0f}"),
    "frames": ("frames read", "{:,}"),
    "wrong": ("wrong clips", "{}"),
    "verdict": ("verdict", "{}"),
}
DETAILS = {name: (name, "{:.0f}") for name in COUNTS}

SUITE = Suite(
    name="soak",
    about="what an epoch adds to memory, open files, threads and processes, with a loader alone",
    settings=Soak,
    points=points,
    command=in_own_process("benchmarks.soak"),
    read=figures_of,
    columns=COLUMNS,
    details=DETAILS,
)

if __name__ == "__main__":
    measuring(Soak, measure)
