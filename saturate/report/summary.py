"""Parts of a run's summary: how it is described before it begins, and what its steps and loaders add up to.
Pure.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saturate.contracts import Array, Figure, Loader, Split, World
from saturate.report.facts import EMA, mean
from saturate.report.hardware import SECTIONS, hardware
from saturate.settings.config import Config, as_yaml

BESIDE = {"transforms", "transfer"}
"""Phases that run beside the others, in workers and on another stream: they are no part of a step's duration.
"""
EARLY = slice(10, 30)
LATE = slice(1000, 1100)
"""Steps whose medians are compared: a loader that takes memory for long is slow in the first of them."""
NO_LOSS = {"step", "lr", "grad_norm", "loss_scale"}
"""Entries of a point of training beside the loss and its terms."""
DETECTION = ("instances_per_image", "padding")
"""Keys by which tasks/detection.py describes its plan; told apart, beside the rate of instances."""


def describe(
    config: Config,
    chosen: Mapping[str, Any],
    *,
    limits: Mapping[str, str],
    loader: Loader | None,
    world: World,
    cores: float,
) -> dict[str, Any]:
    """Describe a run before it begins, for its summary: what was `chosen` for it, by name, and where it runs.

    `settings` is its row of the HPARAMS page, `title` the first line that it says, `limits` what it says
    behind that, by title, and `config` its preset.
    """
    accumulate = chosen["accumulate"]
    cuda = world.device.type == "cuda"
    device = torch.cuda.get_device_name(world.device) if cuda else "CPU"
    about = {
        "task": config.model.task,
        **chosen,
        "reader": loader.reader if loader else "",
        "world_size": world.size,
    }
    step = f"{world.size} x {about['batch_size']}"
    if accumulate > 1:
        step += f" x {accumulate}"
    asked = config.flat()
    trains = not config.run.evaluate
    named = ("loader", "precision", *(["graphs"] if trains else []))
    auto = {
        name: about[name] for name in named if asked[name] == "auto" and name in about
    }
    words = [
        *(about["arch"], about["loader"], about["precision"]),
        f"{about['image_size']} px",
        *([f"{step} samples a step"] if trains else []),
        device,
    ]
    remote = {"remote": True} if "://" in (config.data.data or "") else {}
    return {
        **about,
        **remote,
        "asked": asked,
        "auto": auto,
        "compile": config.model.compile,
        "command": shlex.join(sys.argv),
        "hardware": hardware(world.device, cores),
        "settings": {**asked, **about, "gpu": device},
        "title": " · ".join(words),
        "limits": limits,
        "config": as_yaml(config),
        "log": config.run.log,
    }


def detection(
    description: Mapping[str, Any], rate: float | None
) -> dict[str, dict[str, Any]]:
    """Return as `detection` the boxes to learn, an image and a second, and the share of pixels that is padding.

    {} for another task. `rate` is in images a second.
    """
    figures = {name: description[name] for name in DETECTION if name in description}
    if not figures:
        return {}
    boxes = figures["instances_per_image"]
    return {"detection": {**figures, "instances_per_s": rate and rate * boxes}}


def of_points(
    points: Sequence[Mapping[str, float]],
) -> tuple[dict[str, float | None], float | None]:
    """Return the mean of the loss and of each of its terms, by name, and the last norm of the gradients.

    `points` are the steps that Reporter.train gets. A step whose loss is nan, since no
    sample of it was valid, is left out of the means; a value is None where no step has one.
    """
    counted = [point for point in points if not np.isnan(point["loss"])]
    means = {
        name: mean([point[name] for point in counted])
        for name in points[-1].keys() - NO_LOSS
    }
    norms = [point["grad_norm"] for point in points if not np.isnan(point["grad_norm"])]
    return means, norms[-1] if norms else None


def at_size(known: Mapping[int, float], pixels: int) -> float:
    """Return the seconds of an image of so many pixels, of those that are `known`: by the line through the two nearest
    sizes, or as it has pixels where one is known.
    """
    if pixels in known:
        return known[pixels]
    near, *others = sorted(known, key=lambda one: abs(one - pixels))
    if not others:
        return known[near] * pixels / near
    slope = (known[others[0]] - known[near]) / (others[0] - near)
    return known[near] + max(slope, 0.0) * (pixels - near)


def trained(progress: Mapping[str, Any], failed: set[int]) -> dict[str, Any]:
    """Return what the whole run has trained on, whatever parts it was made in, for its summary."""
    return {
        "epochs": progress["epoch"],
        "steps": progress["step"],
        "samples": progress["samples"] - progress["lost"],
        "samples_dropped": progress["dropped"],
        "samples_failed": sorted(failed),
    }


def figures_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a validation's result, without a mean over no loss at all."""
    known = {
        name: value for name, value in result.items() if isinstance(value, int | float)
    }
    if known.get("losses_not_finite", 0) == known.get("samples"):
        known.pop("loss", None)
    return known


def best(progress: Mapping[str, Any], figure: Figure, folder: Path) -> dict[str, Any]:
    """Return the best validation of a run as `best`: figure, value, epoch from 1, path, and with --ema which
    weights it is of; {} without one.
    """
    path = folder / "best.pt"
    value = progress.get("best", -np.inf)
    if not np.isfinite(value) or not os.path.exists(path):
        return {}
    epoch = progress.get("best_epoch", -1) + 1
    record = {"figure": figure.name, "value": value, "epoch": epoch or None}
    weights = {"of": progress["best_of"]} if progress.get("best_of") else {}
    return {"best": {**record, **weights, "checkpoint": str(path)}}


def evaluated(
    used: Mapping[str, str], validation: Mapping[str, Any], figure: Figure
) -> dict[str, Any]:
    """Return as `evaluated` what `best` has of a run, of the `checkpoint` that was evaluated and the weights
    that it is `of`; {} without one.
    """
    if not used:
        return {}
    average = validation.get(EMA + figure.name)
    # --ema 0 evaluates the network of a checkpoint that is of an average
    weights = used["of"] if average is not None else "network"
    value = average if weights == "average" else validation.get(figure.name)
    return {"evaluated": {"figure": figure.name, "value": value, **used, "of": weights}}


def checkpoint(values: Mapping[str, Any], folder: Path) -> str | None:
    """Return the path of the checkpoint that the next commands take: what was evaluated, best.pt or last.pt."""
    for part in ("evaluated", "best"):
        if part in values:
            return str(values[part]["checkpoint"])
    last = folder / "last.pt"
    return str(last) if values["steps"] and os.path.exists(last) else None


def rejected(splits: Mapping[str, Split[Any]]) -> bytes:
    """Return what the scans of the splits have left out, a line each: split, tab, name, tab, why."""
    # one scan may be of both, and is listed once
    names: dict[Path, list[str]] = {}
    for name, split in splits.items():
        if split.columns.rejected:
            names.setdefault(split.columns.folder / "rejected.txt", []).append(name)
    lines = [
        f"{', '.join(split_names)}\t{line}\n"
        for listed, split_names in names.items()
        for line in listed.read_text(encoding="utf-8").splitlines()
    ]
    return "".join(lines).encode()


def left_out(splits: Mapping[str, Split[Any]]) -> dict[str, Any]:
    """Return the names at the top of the data that are not read, and how many lines `rejected` has of each split."""
    counts = {name: split.columns.rejected for name, split in splits.items()}
    (first, *_) = splits.values()
    return {"beside": [*first.beside], **counts}


def mean_loads(
    windows: Sequence[Mapping[str, float | None]], warm: int
) -> dict[str, dict[str, float | None]]:
    """Return the sections of SECTIONS with the means of their readings in the windows behind the first `warm`, in
    all where none is behind.

    `windows` has the readings of each; None where no window has the reading.
    """
    steady = windows[warm:] or windows
    return {
        section: {
            name: mean([one[reading] for one in steady])
            for name, reading in readings.items()
        }
        for section, readings in SECTIONS.items()
    }


def spent_before(
    spent: Sequence[tuple[int, Mapping[str, Any]]], resumed_at: int, began_s: float
) -> dict[str, float]:
    """Return the seconds that earlier attempts to run have spent, by what for, before one that began at `began_s` from
    the checkpoint of step `resumed_at`.

    `spent`: step, time and seconds of what they have told, in order. What comes behind the checkpoint is `repeated`,
    and the time until the next attempt is `down`.
    """
    earlier = [each for step, each in spent if step <= resumed_at]
    if not earlier:
        return {}
    seconds: dict[str, float] = defaultdict(float, earlier[-1]["seconds"])
    last_s = spent[-1][1]["at"]
    seconds["repeated"] += last_s - earlier[-1]["at"]
    seconds["down"] += began_s - last_s
    return seconds


def durations(steps: Mapping[str, Array]) -> Array:
    """Return the milliseconds from the end of the step before to the end of each, without BESIDE."""
    total: Array = np.nansum(
        [ms for name, ms in steps.items() if name not in BESIDE], axis=0
    )
    return total


def step_times(steps: Mapping[str, Array], *, warmup: int) -> dict[str, float] | None:
    """Return number, median and 99th percentile of the durations behind the first `warmup` steps,
    milliseconds; None without a step.

    Of a run that is long enough, `early` and `late` are medians of steps that tell whether it was steady at
    once: they count from the first step of all, for the warm-up is what they show.
    """
    total = durations(steps)
    steady = total[warmup:]
    if not len(steady):
        return None
    times = {
        "n": len(steady),
        "p50": float(np.median(steady)),
        "p99": float(np.percentile(steady, 99)),
    }
    if len(total) >= LATE.stop:
        times["early"] = float(np.median(total[EARLY]))
        times["late"] = float(np.median(total[LATE]))
    return times


def data_wait(steps: Mapping[str, Array]) -> dict[str, float] | None:
    """Return the mean wait for data, milliseconds, and its share of the steps' time; None without a step."""
    count = len(steps["data_wait"])
    if not count:
        return None
    wait = float(np.nansum(steps["data_wait"]))
    whole = float(durations(steps).sum())
    return {"ms": wait / count, "share": wait / whole if whole else 0.0}


def split(steps: Mapping[str, Array]) -> dict[str, float]:
    """Return the mean milliseconds a step of each phase that was timed."""
    timed = {name: ms for name, ms in steps.items() if not np.isnan(ms).all()}
    return {name: float(np.nansum(ms)) / len(ms) for name, ms in timed.items()}
