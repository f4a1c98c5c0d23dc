"""`python -m scripts.tune --data DATA --arch ARCH`: find the fastest settings that keep the recipe.

Each trial is a run of train.py of a few seconds. One lever after the other (loader, workers, torch.compile,
CUDA graphs, pinned memory) is tried on top of the best so far; a change is kept where it gains more than the
noise. The answer is a table of what each gave, and a preset that `--config` reads. What follows a bare `--`
are flags of train.py, for every trial and for the preset.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when it is started as a file

import torch
import yaml
from pydantic import Field, FiniteFloat, PositiveInt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks._process import ROOT, ending_on_signals, ran
from benchmarks.train import MEASURED_ONLY, require_data, words
from cli import Settings, flags
from config import Config, parse
from contracts import UserError
from engine.distributed import default_workers
from machine import cores
from tasks import kind_of

GAIN = 0.03
"""A change that gains less is noise."""
TRIAL_LIMIT_S = 120.0
TAKEN = ("task", "data", "arch", "batch_size", "output", "seconds", "steps", "epochs", "resume", "evaluate")
"""Settings of train.py that are this program's own flags, or would end a trial early."""
Choice = dict[str, Any]


class Tune(Settings):
    """The fastest loader, workers, torch.compile, CUDA graphs and pinned memory for one network."""

    data: Path | None = None
    """Folder as --data of train.py."""
    task: str = "classification"
    """Task of the run, as --task of train.py."""
    arch: str | None = None
    """Architecture, as --arch of train.py."""
    batch_size: PositiveInt = 64
    """Samples a step; it is a part of the recipe, and stays."""
    minutes: Annotated[FiniteFloat, Field(gt=0)] = 5.0
    """No trial begins later than that."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 3.0
    """Seconds of steady windows that a trial measures."""
    output: Path = Path("tuned.yaml")
    """The preset to write."""
    flags: str = ""
    """More flags of train.py, for every trial; better written last, after a bare --."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run, and what came of it."""

    lever: str
    choice: Choice  # all settings on top of the flags
    rate: float | None = None  # samples a second; None where it failed
    unit: str = ""
    least: float | None = None  # the slowest window
    most: float | None = None
    used: Choice = field(default_factory=dict)  # what train.py chose where nothing was asked
    why: str = ""  # it failed


def levers(config: Config, best: Choice, used: Choice, *, gpu: bool) -> Iterator[tuple[str, list[Choice]]]:
    """Yield each lever with its choices, on top of what `best` has by the time it is asked.

    `used` is filled by the caller with what the fastest trial so far ran with.
    """
    kind = kind_of(config)
    others = [name for name in kind.loaders if name not in ("synthetic", used.get("loader"))]
    needs_gpu = ("dali-gpu", "dali-video", "nvdec", "nvdec+pyav", "nvdec+decord")
    yield "loader", [{"loader": name} for name in others if gpu or name not in needs_gpu]
    counts = {max(int(cores()), 1), default_workers(), max(int(cores()) // 2, 1)} - {used.get("workers")}
    yield "workers", [{"workers": count} for count in sorted(counts)]
    if used.get("loader") == "dali-fed":
        yield "decode_threads", [{"decode_threads": count} for count in sorted(counts)]
    if gpu:
        yield "compile", [{"compile": not used.get("compile", False)}]
        if kind.graphs:
            yield "graphs", [{"graphs": not used.get("graphs", True)}]
        yield "pin_memory", [{"pin_memory": not config.loading.pin_memory}]


def search(
    config: Config,
    measure: Callable[[str, Choice], Trial],
    *,
    gpu: bool,
    may_begin: Callable[[], bool] = lambda: True,
) -> tuple[list[Trial], Choice]:
    """Try one lever after the other on top of the best so far.

    Returns every trial, and the settings that were kept. Raises UserError where the first trial fails.
    """
    first = measure("as it is", {})
    if first.rate is None:
        raise UserError(f"the first trial failed: {first.why}")
    trials = [first]
    best = first
    used = dict(first.used)
    for lever, choices in levers(config, best.choice, used, gpu=gpu):
        tried = []
        for choice in choices:
            if not may_begin():
                return trials, best.choice
            tried.append(measure(lever, best.choice | choice))
        trials += tried
        won = max((trial for trial in tried if trial.rate is not None), key=_rate, default=best)
        if _rate(won) > _rate(best) * (1 + GAIN) and (won.least or 0.0) > (best.least or 0.0):
            best = won
            used.update(won.used)
    return trials, best.choice


def _rate(trial: Trial) -> float:
    return trial.rate or 0.0


def command(settings: Tune, choice: Choice, folder: Path) -> list[str]:
    """Return the command of one trial."""
    asked = {"task": settings.task, "arch": settings.arch, "batch_size": settings.batch_size, **MEASURED_ONLY}
    asked |= {"seconds": settings.seconds, "min_window_s": min(1.0, settings.seconds / 2)}
    asked |= {"val_every": 0, "ceilings": False, "output": folder, **choice}
    data = ["--data", str(settings.data.resolve())] if settings.data else []
    own = words({name: value for name, value in asked.items() if value is not None})
    return [sys.executable, str(ROOT / "train.py"), *data, *own, *shlex.split(settings.flags)]


def measured(settings: Tune, lever: str, choice: Choice) -> Trial:
    """Run one trial."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        log = Path(scratch) / "log.txt"
        with log.open("w") as file:
            code = ran(command(settings, choice, folder), file, TRIAL_LIMIT_S)
        if code != 0:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            why = f"it took longer than {TRIAL_LIMIT_S:.0f} s" if code is None else (lines or [""])[-1]
            return Trial(lever=lever, choice=choice, why=why.removeprefix("train.py: "))
        told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rate = told["rate"]
    spread = rate["spread"] or {}
    return Trial(
        lever=lever,
        choice=choice,
        rate=rate["steady"],
        unit=rate["unit"],
        least=spread.get("min"),
        most=spread.get("max"),
        used={name: told[name] for name in ("loader", "workers", "compile", "graphs") if name in told},
    )


def table(trials: Sequence[Trial], kept: Choice) -> Table:
    """Draw what was tried, and what each gave over the first."""
    drawn = Table("tried", "rate", "windows", "times the first", "")
    for trial in trials:
        what = ", ".join(f"{name} {value}" for name, value in trial.choice.items()) or trial.lever
        if trial.rate is None:
            drawn.add_row(what, "-", "", "", trial.why[:80])
            continue
        windows = f"{trial.least:,.0f} to {trial.most:,.0f}" if trial.least and trial.most else ""
        mark = "kept" if trial.choice == kept else ""
        ratio = trial.rate / _rate(trials[0])
        drawn.add_row(what, f"{trial.rate:,.0f} {trial.unit}", windows, f"{ratio:.2f}", mark)
    return drawn


def preset(settings: Tune, kept: Choice, trials: Sequence[Trial]) -> str:
    """Return the YAML of the settings that were kept, the recipe's beside them."""
    flat = parse(shlex.split(settings.flags)).flat()
    before = Config().flat()
    recipe = {name: value for name, value in flat.items() if value != before[name] and name not in TAKEN}
    asked = {"task": settings.task, "arch": settings.arch, "batch_size": settings.batch_size}
    found = {**recipe, **{name: value for name, value in asked.items() if value is not None}, **kept}
    used = next(trial for trial in trials if trial.choice == kept)
    head = (
        f"# {used.rate:,.0f} {used.unit} here, {_rate(used) / _rate(trials[0]):.2f} times the settings given"
    )
    written: str = yaml.safe_dump(found, sort_keys=False)
    return f"{head} (scripts.tune).\n{written}"


def main(argv: list[str]) -> int:
    """Return 0; 2 for a user's mistake, 130 on Ctrl-C."""
    console = Console()
    try:
        at = argv.index("--") if "--" in argv else len(argv)
        more = [f"--flags={shlex.join(argv[at + 1 :])}"] if at + 1 < len(argv) else []
        settings = flags(Tune, [*argv[:at], *more], prog="scripts.tune")
        given = shlex.split(settings.flags)
        for name in TAKEN:
            flag = f"--{name.replace('_', '-')}"
            if any(word == flag or word.startswith(f"{flag}=") for word in given):
                raise UserError(f"{flag} behind -- is what this program sets itself")
        config = parse(["--task", settings.task, *given])
        require_data(settings.data, [config.loading.loader], config)
        until = time.monotonic() + 60 * settings.minutes
        with ending_on_signals(), Progress(console=console, transient=True) as bar:
            task = bar.add_task("", total=60 * settings.minutes)

            def measure(lever: str, choice: Choice) -> Trial:
                left = until - time.monotonic()
                bar.update(
                    task, completed=60 * settings.minutes - left, description=f"{lever} {choice or ''}"
                )
                return measured(settings, lever, choice)

            trials, kept = search(
                config, measure, gpu=torch.cuda.is_available(), may_begin=lambda: time.monotonic() < until
            )
        console.print(table(trials, kept))
        settings.output.write_text(preset(settings, kept, trials), encoding="utf-8")
        console.print(f"{settings.output}: train.py --config {settings.output} --data {settings.data} ...")
    except UserError as error:
        print(f"scripts.tune: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"scripts.tune: --output {settings.output}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
