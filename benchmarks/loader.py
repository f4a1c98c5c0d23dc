"""`loader`: loaders alone over a table of axes: the rate, the time of a pass, and how long a consumer waits.

Of images, or of clips of videos (--task video); beside PyTorch's and DALI's own loading and decoders
alone (_loaders.py).

    |- first batch -|- step -|wait|- step -|wait| ... |- step -|   a pass: all files, or --steps batches
                    |<-------------- total_s ----------------->|   floor = steps x --step-ms

A window of report.meter is as many passes as take two seconds, from the request for a first batch until the
last one is on the device. A pass's tail that fills no batch of all ranks is dropped, as in training; `pass_s`
is the time of all files at a window's rate.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

# before torch: see there
from saturate.engine.distributed import ProcessWorld, cores, prepare_process

# isort: split
import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt

from benchmarks._loaders import (
    asked_of,
    expanded,
    is_flat,
    medium_of,
    opened,
    training_split,
)
from benchmarks._suite import (
    LEAST,
    LEAST_STEPS,
    RATE,
    Common,
    Measured,
    Point,
    Row,
    Suite,
    crossed,
    figures_of,
    in_own_process,
    measuring,
    ranks,
    ratio,
    require_gpus,
)
from benchmarks.train import require_data
from saturate.contracts import UserError
from saturate.loaders import Medium
from saturate.loaders.images.decoders import READERS
from saturate.report import hardware
from saturate.report.facts import mean
from saturate.report.meter import Meter, spread
from saturate.settings.cli import one_of
from saturate.settings.config import parse
from saturate.settings.types import NotNegative

DEFAULTS: dict[Medium, dict[str, int]] = {
    "images": {"batch_size": 32, "image_size": 640},
    "videos": {"batch_size": 8, "image_size": 224},
}
SAME: dict[str, tuple[str, ...]] = {
    "classification": ("window",),
    "video": ("clip_frames", "clip_stride"),
}
"""Settings of one task that every point has."""
LEAST_S = 2.0
"""A window below this says little of a steady rate."""


class Loader(Common):
    """Loaders alone: the rate, the time to pass once over a folder, and how long a consumer waits, beside
    PyTorch's and DALI's own."""

    task: str = "classification"
    """Task of train.py: images with a label, images with boxes, or clips of videos."""
    data: Path | None = None
    """Folder as --data of train.py for the task, or with images alone, which then have no labels; loops by hand need
    files."""
    sets: tuple[str, ...] = ()
    """Folders below --data, each of which is passed over, as scripts.pack makes them."""
    loaders: tuple[str, ...] = ("auto",)
    """Names as in --loader of train.py, and loops by hand: pytorch, pytorch+opencv (uint8, --window stretch),
    dali (DALI's own reader) and DALI fed by Python: in the loop (dali-by-hand), by a DataLoader
    (pytorch+dali), by DALI's own proxy of one (dali-proxy); with --augment jitter torchvision-v2,
    albumentations, kornia. Of clips pytorch with PyAV, pytorch+decord, on a GPU dali. auto =
    pytorch, dali and all of ours that run here but nvdec+ANOTHER. Also decoding alone: READER-alone,
    simplejpeg-alone, imageio-alone; of clips decord-alone, pyav-alone, nvdec-alone."""
    gpus: tuple[PositiveInt, ...] = (1,)
    """Processes, one a GPU (on a CPU: gloo)."""
    batch_size: PositiveInt | None = None
    """Samples a rank and batch. Default: 32; of clips 8."""
    image_size: Annotated[int, Field(ge=8)] | None = None
    """Height and width of the images, pixels. Default: 640; of clips 224."""
    window: Literal["stretch", "random-resized", "center"] = "stretch"
    """Images: the whole image stretched, or the windows of training and validation."""
    augment: Literal["", "randaugment", "jitter"] = ""
    """Images are also flipped, and are changed by RandAugment (2 of 14 operations, magnitude 9), or in
    brightness, contrast and saturation by up to 0.4, each by the library's own. Default: neither."""
    workers: tuple[NonNegativeInt, ...] = (8,)
    """Worker processes (pytorch, torchvision, dali-fed, all of clips) or threads (dali, dali-cpu, dali-gpu) a
    rank."""
    dali_threads: NonNegativeInt = 0
    """Threads of DALI: with dali-cpu and dali-gpu they read too, with dali-fed they only decode. 0: as many
    as workers."""
    readers: tuple[str, ...] = ()
    """Images: decoders of the torchvision loader, as --reader of train.py. Default: auto."""
    delays: tuple[NotNegative, ...] = ()
    """Each read takes this much longer, ms."""
    step_ms: NotNegative = 0.0
    """Milliseconds of a step: the consumer sleeps so long with each batch, on the host."""
    steps: NonNegativeInt = 0
    """Batches of a pass, 20 or more. 0 = all."""
    clip_frames: NonNegativeInt = 16
    """Frames of a clip; 0 = all frames of a video, from its first to its last: decoding in sequence. That
    takes memory: a smaller --batch-size."""
    clip_stride: PositiveInt = 1
    """Distance from one frame of a clip to the next, in frames of the video. A pass has a clip of each
    video, at random as in training."""
    short_side: NonNegativeInt = 0
    """Clips: the shorter side that frames are resized to before --image-size pixels are cut out. 1080 with
    --image-size 1080 leaves 1080p in full size. 0: 256 / 224 times --image-size."""


def points(settings: Loader) -> list[Point]:
    """Return the points. Raises UserError."""
    medium = medium_of(settings.task)
    devices = torch.cuda.device_count()
    require_gpus(settings.gpus, devices)
    if 0 < settings.steps < LEAST_STEPS:
        raise UserError(f"--steps {settings.steps}: 0, or {LEAST_STEPS} and more")
    names = expanded(
        "--loaders", settings.loaders, devices, task=settings.task, by_hand=True
    )
    if settings.steps or settings.delays:
        # DALI's reader reads all, as fast as it can
        names = [name for name in names if name != "dali" or name in settings.loaders]
    for name in settings.sets or ("",):
        data = settings.data / name if settings.data else None
        if data and medium == "images" and is_flat(data):
            continue
        require_data(
            None if data is None else str(data), names, parse(["--task", settings.task])
        )
    for reader in settings.readers:
        one_of("--readers", reader, ("auto", *READERS))
    same = {
        name: getattr(settings, name) or default
        for name, default in DEFAULTS[medium].items()
    }
    if settings.task in SAME:
        same |= {name: getattr(settings, name) for name in SAME[settings.task]}
    optional = {
        name: getattr(settings, name)
        for name in ("step_ms", "steps", "augment", "short_side")
    }
    same |= {name: each for name, each in optional.items() if each}
    asked = crossed(
        loader=names,
        set=settings.sets,
        gpus=settings.gpus,
        workers=settings.workers,
        delay_ms=settings.delays,
        reader=settings.readers,
    )
    # the others have one reader of their own
    others = settings.readers[1:]
    return [
        point | same
        for point in asked
        if names
        and (point["loader"] == "torchvision" or point.get("reader") not in others)
    ]


def command(settings: Loader, point: Point, folder: Path) -> list[str]:
    """Return the command that measures a point, with torchrun for several ranks."""
    python, *words = in_own_process("benchmarks.loader")(settings, point, folder)
    return [python, *ranks(point.get("gpus", 1)), *words]


# --- measuring ----------------------------------------------------------------------------------------------


def consume(
    batches: Iterator[int],
    step_s: float,
    wait: Callable[[], None],
    count: Callable[[int], None],
) -> tuple[dict[str, float], int]:
    """Take every batch, wait until it is on the device, count it, sleep for a step.

    Returns seconds until the first batch, in all steps behind it, and of these in waiting for other batches;
    and the number of batches.
    """
    began = asked = time.perf_counter()
    first_s = waited_s = 0.0
    steps = 0
    for samples in batches:
        wait()
        count(samples)
        now = time.perf_counter()
        if steps == 0:
            # begins anew behind it: how long a loader takes to start is told apart
            first_s = now - began
            began = now
        else:
            waited_s += now - asked
        if step_s:
            time.sleep(step_s)  # to compute would take cores from the loader
        steps += 1
        asked = time.perf_counter()
    total_s = asked - began
    return {"first_batch_s": first_s, "total_s": total_s, "waited_s": waited_s}, steps


def measure(settings: Loader, point: Point, folder: Path) -> Measured:
    """Measure one point in this process, a rank of it."""
    device = prepare_process()
    world = ProcessWorld(device)
    medium = medium_of(settings.task)
    name = point["loader"]
    assert settings.data is not None
    data = training_split(settings.data / point.get("set", ""), settings.task)
    asked = asked_of(medium, point, task=settings.task, threads=settings.dali_threads)
    whole = len(data.columns)
    if asked.batches:
        whole = asked.batches * asked.batch_size * world.size
    step_s = point.get("step_ms", 0.0) / 1e3
    passes: list[dict[str, float]] = []
    with ExitStack() as stack:
        stack.enter_context(world.joined())
        stack.enter_context(world.own_stream())
        meter = Meter(world, min_window_s=LEAST_S, synchronise=world.synchronise)
        load = hardware.Sampler(device, cores=cores(), host=False).start()
        stack.callback(load.stop)
        meter.resume(epoch=0)  # the first pass includes the start of the loader
        epochs, more = stack.enter_context(opened(asked, name, data, world))
        steps = 0
        for epoch in itertools.count():
            if epoch:
                meter.resume(epoch)
            times, taken = consume(epochs(epoch), step_s, world.await_batch, meter.add)
            meter.pause()
            if epoch:
                passes.append(times)
                steps += taken
            else:
                meter.flush()
                if not meter.windows[0].samples:
                    raise UserError(f"--loaders {name}: no file could be decoded")
                load.read()  # the loads are of the passes that count
            enough = min(world.gather(steps)) >= LEAST_STEPS
            # the first window has the loader's start
            if enough and len(meter.windows) > LEAST:
                break
        loads = world.gather(load.read())
        host_gib = world.sum(np.array([hardware.host_gib()]))[0]
        device_gib = max(world.gather(hardware.device_gib(device) or 0.0)) or None
    first, *windows = meter.windows
    repeated = {
        "rate": [window.rate for window in windows],
        "pass_s": [whole / window.rate for window in windows],
        **{key: [times[key] for times in passes] for key in passes[0]},
    }
    figures: dict[str, Any] = {
        key: float(np.median(values)) for key, values in repeated.items()
    }
    figures |= more(figures["rate"])
    figures |= {
        "floor_s": steps / len(passes) * step_s or None,
        "first_pass_s": first.seconds,
        "samples": first.samples,
        "steps": steps,
        "files": len(data.columns),
        "host_gib": host_gib,
        "device_gib": device_gib,
        **{key: mean([one[key] for one in loads]) for key in hardware.LOADS},
    }
    return Measured(
        figures=figures,
        spread={key: its for key, each in repeated.items() if (its := spread(each))},
        versions=hardware.versions(),
        hardware=hardware.hardware(device, cores()),
    )


def derive(rows: Sequence[Row]) -> list[Row]:
    """Add how many times as fast as PyTorch's and DALI's own loading a row is, and `scaling`: rate / GPUs /
    that on one GPU.
    """
    derived = []
    for row in rows:
        figures = {
            "speed_up": ratio(rows, row, "rate", loader="pytorch"),
            "of_dali": ratio(rows, row, "rate", loader="dali"),
        }
        gpus = row["point"].get("gpus", 1)
        if gpus > 1 and (times := ratio(rows, row, "rate", gpus=1)):
            figures["scaling"] = times / gpus
        derived.append(row | {"figures": row["figures"] | figures})
    return derived


COLUMNS = {
    "rate": ("{unit}", RATE),
    "frames_per_s": ("frame/s", "{:,.0f}"),
    "pass_s": ("pass, s", "{:,.3g}"),
    "speed_up": ("/ PyTorch", "{:.2f}"),
    "of_dali": ("/ plain DALI", "{:.2f}"),
    "scaling": ("scaling", "{:.0%}"),
    "floor_s": ("floor, s", "{:.2f}"),
    "waited_s": ("waited, s", "{:.3f}"),
    "decoded_per_frame": ("decoded / delivered", "{:.2f}"),
    "fallbacks": ("clips by pyav", "{:.1%}"),
    "first_pass_s": ("first pass, s", "{:,.3g}"),
    "host_gib": ("host GiB", "{:.1f}"),
    "device_gib": ("GPU GiB", "{:.1f}"),
    "cpu_utilisation": ("CPU busy", "{:.0%}"),
}
DETAILS = {
    "total_s": ("steps, s", "{:.2f}"),
    "first_batch_s": ("first batch, s", "{:.2f}"),
    "gpu_utilisation": ("GPU busy", "{:.0%}"),
    "power_w": ("W a GPU", "{:.0f}"),
    "files": ("files", "{:,}"),
    "samples": ("samples a pass", "{:,}"),
}

SUITE = Suite(
    name="loader",
    about="loaders alone: the rate of all ranks, the time of a pass and of waiting, beside PyTorch's own on "
    "the CPU and plain DALI",
    settings=Loader,
    points=points,
    command=command,
    read=figures_of,
    columns=COLUMNS,
    details=DETAILS,
    derive=derive,
)

if __name__ == "__main__":
    measuring(Loader, measure)
