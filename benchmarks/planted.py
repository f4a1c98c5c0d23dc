"""`python -m benchmarks planted --data DATA --output FOLDER`: plant bottlenecks, and see what a run says of them.

Each case of configs/planted/*.yaml slows one thing of a short training down, by a flag, by the files, by the
cores it may use or by a function of --transforms. The run must name the stage that was slowed. Where the case has
a change that takes the plant away, it is made, and the rate that was predicted is held against the measured one.
FOLDER gets results.jsonl, a row a case.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from saturate.contracts import Array, UserError
from saturate.run.trial import ending_on_signals, ran
from saturate.settings.cli import Settings, flags
from scripts._sets import whole

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 240
"""Seconds after which a run is ended, and its case has failed."""
BASE = "--val-every 0 --save-every-minutes 0 --min-window-s 1 --epochs 1000"
"""Flags of all runs; those of a case win."""


class Runs(Settings):
    """What all runs of a case have."""

    data: Path
    """Folder with train/<class>/* and val/<class>/*: photographs."""
    output: Path
    """Folder of the runs, their data and the table."""
    seconds: float = 5.0
    """Seconds of steady windows of a run."""


class Planted(Runs):
    """Plants to be found, and their table."""

    cases: str = "loader"
    """Files of configs/planted, by name, separated by commas."""
    only: str = ""
    """Cases whose name has this word."""
    change: bool = True
    """Make the change too, and hold the prediction against it."""
    repeats: int = 1
    """Times that a case with a change runs, without and with it in turns."""


# --- plants in the augmentation -----------------------------------------------


def waits(image: Array, rng: np.random.Generator) -> Array:
    """Take 20 ms and no core."""
    time.sleep(0.02)
    return image


def computes(image: Array, rng: np.random.Generator) -> Array:
    """Take 20 ms of the interpreter's time."""
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    return image


def seldom_waits(image: Array, rng: np.random.Generator) -> Array:
    """Take half a second for one image in fifty."""
    if rng.random() < 0.02:
        time.sleep(0.5)
    return image


def waits_on_rank_1(image: Array, rng: np.random.Generator) -> Array:
    """Take 20 ms on the second rank alone."""
    if os.environ.get("RANK") == "1":
        time.sleep(0.02)
    return image


# --- plants in the network ----------------------------------------------------


def light(num_classes: int) -> torch.nn.Module:
    """Return a network that computes next to nothing: whoever else has the cores, it is fed late."""
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(3, num_classes),
    )


def heavy(num_classes: int) -> torch.nn.Module:
    """Return the same with 200 MB for each checkpoint."""
    network = light(num_classes)
    network.register_buffer("weight_of_checkpoints", torch.ones(50_000_000))
    return network


# --- plants in the files ------------------------------------------------------


SETS = {
    "png": (1, None, ".png"),
    "some-png": (5, None, ".png"),
    "large": (1, (3000, 2250), ".jpg"),
    "some-large": (10, (3000, 2250), ".jpg"),
    "small": (1, (64, 64), ".jpg"),
}
"""Name -> of how many images of --data one is stored so, its size if that is not its own, and its kind."""
IMAGES = 400
"""Images of a planted set, each linked as often as `TIMES` says."""
TIMES = 10


def made(name: str, data: Path, folder: Path) -> Path:
    """Return the folder of a set, which is made if it is not there. Raises UserError."""
    if (folder / "done").exists():
        return folder
    with whole(folder) as fresh:
        _plant(name, data, fresh)
    return folder


def _plant(name: str, data: Path, folder: Path) -> None:
    """Write a set."""
    files = sorted(data.glob("train/*/*"))
    random.Random(0).shuffle(files)
    for number, file in enumerate(files[:IMAGES]):
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        label = file.parent.name
        for split in ("train", "val"):
            (folder / split / label).mkdir(parents=True, exist_ok=True)
        every, size, kind = SETS[name]
        if number % every:
            size, kind = None, ".jpg"
        stored = folder / "train" / label / f"{number}{kind}"
        (image.resize(size) if size else image).save(stored, quality=90)
        for copy in range(1, TIMES):
            os.link(stored, stored.with_stem(f"{number}-{copy}"))
        os.link(stored, folder / "val" / label / stored.name)
    (folder / "done").touch()


def program(name: str, *words: object) -> None:
    """Run a program of this project, which says what it has to say."""
    subprocess.run([sys.executable, "-m", name, *map(str, words)], cwd=ROOT, check=True)


# --- the cases ----------------------------------------------------------------


def run(case: Mapping[str, Any], more: str, settings: Runs, folder: Path) -> Any:
    """Return the summary of one run with `more` flags. Its log is beside `folder`.

    Raises RuntimeError where it failed.
    """
    data = settings.data
    if name := case.get("set"):
        data = made(name, data, settings.output / "sets" / name)
    if draw := case.get("draw"):
        data = settings.output / "sets" / draw
        program(f"scripts.{draw}", data)
    if pack := case.get("pack"):
        packed = settings.output / "sets" / pack
        if not packed.exists():
            program("scripts.pack", packed, "--from", data, "--format", pack)
        data = packed
    ranks = case.get("ranks", 1)
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}"]
    if cores := case.get("cores"):
        allowed = sorted(os.sched_getaffinity(0))[:cores]
        command = ["taskset", "-c", ",".join(map(str, allowed)), *command]
    words = f"{BASE} --seconds {settings.seconds} {case['flags']} {more}"
    command += [str(ROOT / "train.py"), *shlex.split(words)]
    if "--loader synthetic" not in words and "--data" not in words:
        command += ["--data", str(data)]
    command += ["--output", str(folder)]
    command = ["env", *case.get("env", []), *command]
    folder.parent.mkdir(parents=True, exist_ok=True)
    status, why = ran(command, folder.with_suffix(".log"), LIMIT_S)
    # after an error a summary is an earlier run's
    if status != "ok":
        raise RuntimeError(why)
    return json.loads((folder / "summary.json").read_text())


def tried(case: Mapping[str, Any], number: int, settings: Planted) -> dict[str, Any]:
    """Return the row of a case. What is predicted of each run is held against the run with the change behind it."""
    row: dict[str, Any] = {"case": case["name"], "binds": case["binds"]}
    what = case.get("what") if settings.change else None
    pairs = []
    try:
        for time in range(settings.repeats if what else 1):
            folder = settings.output / "runs" / f"{number:02}-{time}"
            summary = run(case, case.get("plant", ""), settings, folder)
            row |= _named(case, summary, row.get("right", True))
            if not what:
                return row
            found = [one for one in summary["what_if"] if one["what"] == what]
            if not found:
                return row | {"failed": "no prediction"}
            changed = folder.with_name(f"{folder.name}-changed")
            more = f"{case['change']} --ceilings false"
            after = run(case, more, settings, changed)["rate"]["steady"]
            (prediction,) = found
            pairs.append(
                {name: prediction[name] for name in ("rate", "low", "high")}
                | {"after": after, "off": prediction["rate"] / after - 1}
            )
    except (RuntimeError, UserError) as error:
        row["failed"] = str(error)
    if pairs:
        medians = {
            name: statistics.median(pair[name] for pair in pairs) for name in pairs[0]
        }
        row |= {"what": what, "predicted": medians, "pairs": pairs}
    return row


def _named(
    case: Mapping[str, Any], summary: Mapping[str, Any], right: bool
) -> dict[str, Any]:
    """Return what a run has named. `right`: whether those before it have named what was planted."""
    binds = summary["binds"] or {}
    slow = summary["slowest_rank"]
    right &= binds.get("stage") in case["binds"]
    if "slowest" in case:
        right &= (slow or {}).get("rank") == case["slowest"]
    return {
        "named": binds.get("stage"),
        "share": binds.get("share"),
        "right": right,
        "slowest": slow,
        "bound": summary["bound"],
        "rate": summary["rate"]["steady"],
    }


def main(argv: list[str] | None = None) -> int:
    """Return 0; 1 where a case has failed or was named wrong, 2 for a user's mistake."""
    try:
        given = sys.argv[1:] if argv is None else argv
        settings = flags(Planted, given, prog="benchmarks.planted")
        cases = []
        for name in settings.cases.split(","):
            path = ROOT / "configs/planted" / f"{name}.yaml"
            if not path.exists():
                raise UserError(f"--cases {name}: there is no {path}")
            cases += yaml.safe_load(path.read_text(encoding="utf-8"))
    except UserError as error:
        print(f"planted: {error}", file=sys.stderr)
        return 2
    settings.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, case in enumerate(cases):
        if settings.only not in case["name"]:
            continue
        if case.get("ranks", 1) > max(torch.cuda.device_count(), 1):
            continue
        with ending_on_signals():
            rows.append(tried(case, number, settings))
        print(json.dumps(rows[-1]), flush=True)
        with (settings.output / "results.jsonl").open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    return int(not all(row.get("right") and "failed" not in row for row in rows))
