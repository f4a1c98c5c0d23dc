"""`python -m scripts.tune --data DATA --arch ARCH`: find the fastest settings that keep the recipe.

Each trial is a run of train.py of a few seconds, which predicts what changes are worth (report/what_if.py). The
loader comes first: it is what `--loader auto` finds. Then the lever that promises the most for its time is tried
next, on top of the best so far, and the trial's line says how far the prediction was. A change is kept where it
gains more than the noise, also over a second run of what was best before. Every trial is a line, and the answer
is a preset that `--config` reads. What follows a bare `--` are flags of train.py, for every trial and for the
preset: a lever that they set is not tried, and what their `--config` sets is where the search begins. Cores are
those that this process may use: `taskset -c 0,1` tunes for two.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat, PositiveInt

from saturate.contracts import UserError
from saturate.engine.distributed import default_workers
from saturate.run.build import may_open
from saturate.run.trial import (
    FULL_SIZE,
    GENTLER,
    MEASURED_ONLY,
    TRAIN,
    behind_dashes,
    ending_on_signals,
    ran,
    require_data,
    with_flags,
    words,
)
from saturate.settings.cli import FolderOrUrl, Settings, flags
from saturate.settings.config import FACTS_OF, Config, as_yaml, build, parse
from saturate.settings.run import Run
from saturate.system.exit_codes import of_program
from saturate.system.programs import program
from saturate.system.resources import cores
from saturate.tasks import kind_of

GAIN = 0.03
"""A change that gains less is noise."""
TRIAL_LIMIT_S = 120.0
FIRST_LIMIT_S = 3600.0
"""Longest that the first run may take, which is not counted and may have to scan a large data set."""
TAKEN = (
    "task",
    "data",
    "arch",
    "batch_size",
    "output",
    "seconds",
    "steps",
    "resume",
    "evaluate",
    "predict",
)
"""Settings of train.py that are this program's own flags, or would end a trial early."""
OF_ONE_RUN = ("config", "output", "resume", "evaluate", "predict", "profile")
"""Settings of a run's files that no preset should have; it keeps others of theirs, such as log_every."""
ONLY_TRAINS = {
    **FULL_SIZE,
    "val_every": 0,
    "profile": False,
    "steps": None,
    "seconds": None,
    "resume": None,
    "evaluate": False,
    "predict": None,
}
"""Settings of a run that trains for a while and does nothing else."""
AGAIN = "again"
WARM_UP = "warm-up"
Choice = dict[str, Any]


class Tune(Settings):
    """The fastest loader, workers, torch.compile, CUDA graphs and pinned memory for one network."""

    data: FolderOrUrl = None
    """Folder as --data of train.py."""
    task: str | None = None
    """Task of the run, as --task of train.py. Default: that of --config behind --, else classification."""
    arch: str | None = None
    """Architecture, as --arch of train.py. Default: that of --config behind --, else the task's."""
    batch_size: PositiveInt | Literal["auto"] | None = None
    """Samples in a micro-batch; it is a part of the recipe, and stays. auto = larger ones are tried too. A
    recipe with --accumulate keeps its step: fewer micro-batches, of more samples. Any other is trained with
    larger steps, for which --lr-per scales its learning rate. Default: that of --config behind --, else 64."""
    minutes: Annotated[FiniteFloat, Field(gt=0)] = 4.0
    """Minutes of trials: none begins that would not end by then. The first run, which scans the data, comes
    before them."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 3.0
    """Seconds of steady windows that a trial measures."""
    output: Path = Path("tuned.yaml")
    """The preset to write."""
    flags: str = ""
    """More flags of train.py, for every trial and the preset; better written last, after a bare --."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run, and what came of it."""

    lever: str
    choice: Choice  # all settings on top of the recipe
    rate: float = 0.0  # samples a second; 0 where it failed
    unit: str = ""
    least: float = 0.0  # the slowest window
    most: float = 0.0
    # settings that train.py chose where nothing was asked
    used: Choice = field(default_factory=dict)
    why: str = ""  # it failed, or was not tried
    over: float = 0.0  # the best rate when it was tried
    predicted: float = 0.0  # the rate, before it was tried
    # of report/what_if.py, by what this run has measured
    what_if: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        changes = [f"{name} {value}".lower() for name, value in self.choice.items()]
        what = ", ".join(changes) or "as it is"
        if self.lever == AGAIN:
            what += ", again"
        if self.why:
            return f"{what}: {self.why}"
        line = f"{what}: {self.rate:,.0f} {self.unit}"
        if self.most:
            line += f" ({self.least:,.0f} to {self.most:,.0f})"
        if self.over:
            line += f", the lever gave {self.rate / self.over - 1:+.1%}"
        if self.predicted:
            off = self.predicted / self.rate - 1
            line += f"; {self.predicted:,.0f} were predicted, {off:+.0%}"
        return line

    def beats(self, base: Trial) -> bool:
        """Whether it gains more than the noise: also its slowest window is faster than any of `base`."""
        gains = self.rate > base.rate * (1 + GAIN)
        return gains and self.least > (base.most or base.rate)


def recipe_of(settings: Tune) -> tuple[Config, set[str]]:
    """Return the recipe, and the names of the settings that flags behind -- fix. Raises UserError."""
    given, fixed = behind_dashes(settings.flags, TAKEN)
    chosen = {
        name: getattr(settings, name)
        for name in ("data", "task", "arch", "batch_size")
        if getattr(settings, name) != "auto"
    }
    return parse([*given, *words(chosen)]), fixed


# --- levers -------------------------------------------------------------------


def _rows(config: Config) -> int:
    rows = config.loading.batch_size
    if rows == "auto":
        raise UserError("--config: batch_size auto; trials begin at a number")
    return rows


def _batch_sizes(config: Config) -> list[int]:
    base = _rows(config)
    sizes = [base * halves // 2 for halves in HALVES if base * halves % 2 == 0]
    step = config.optimisation
    a_step = step.global_batch_size or base * step.accumulate
    return [
        size
        for size in sizes
        if a_step == base or (size <= a_step and a_step % size == 0)
    ]


def changes_of(lever: str, value: Any, config: Config) -> Choice:
    """Return the settings that a value of a lever changes: micro-batches that are larger are fewer."""
    accumulate = config.optimisation.accumulate
    if lever == "batch_size" and accumulate > 1:
        fewer = _rows(config) * accumulate // value
        return {lever: value, "accumulate": fewer}
    return {lever: value}


def levers(config: Config, used: Choice, gpu: bool) -> dict[str, Sequence[Any]]:
    """Return setting of train.py -> its values to try. A value that is `used` now is not tried again."""
    usable_cores = int(cores())
    workers = sorted(
        {max(usable_cores, 1), default_workers(gpu=gpu), max(usable_cores // 2, 1)}
    )
    both = (False, True) if gpu else ()
    return {
        "loader": [used["fastest"]] if "fastest" in used else [],
        "batch_size": _batch_sizes(config),
        "workers": workers,
        "decode_threads": workers if used["loader"] == "dali-fed" else [],
        "compile": both,
        "graphs": both if kind_of(config).graphs else (),
        "pin_memory": both,
    }


HALVES = (3, 4, 6, 8, 12, 16, 24, 32)
"""Batches that are tried, in halves of the recipe's: powers of two, and three times as many."""
UNKNOWN = 0.03
"""Gain that a lever promises of which nothing is predicted."""
TIMES = {"compile": 4.0}
"""How many times as long as others a trial of a lever takes."""


def promise(lever: str, what_if: Sequence[Mapping[str, Any]]) -> float:
    """Return the gain that a lever is predicted to have, for the time of a trial."""
    gains = [one["gain"] for one in what_if if lever in one["settings"]]
    return max(gains, default=UNKNOWN) / TIMES.get(lever, 1.0)


def search(
    config: Config,
    measure: Callable[[str, Choice], Trial],
    *,
    gpu: bool,
    fixed: Collection[str],
    may_begin: Callable[[], bool] = lambda: True,
    announce: Callable[[Trial], None] = lambda trial: None,
) -> Trial:
    """Try one lever after the other on top of the best so far, but for those that are `fixed`: next the one
    that promises the most.

    Returns the fastest trial, whose choice is what to keep. Raises UserError where the settings as they are
    do not run.
    """

    def tried(lever: str, choice: Choice, base: Trial | None = None) -> Trial:
        trial = Trial(lever=lever, choice=choice, why="the time was over: --minutes")
        if not lever or may_begin():
            trial = measure(lever, choice)
        if base is not None and not trial.why:
            change = {lever: choice.get(lever)}
            rates = [one["rate"] for one in base.what_if if one["settings"] == change]
            trial = replace(trial, over=base.rate, predicted=max(rates, default=0.0))
        announce(trial)
        return trial

    # this run is not counted: it scans the data, reads files that no memory holds yet, and measures loaders
    auto = {} if "loader" in fixed or config.data.data is None else {"loader": "auto"}
    first = measure(WARM_UP, auto)
    best = tried("", {})
    if best.why:
        raise UserError(f"the first trial failed: {best.why}")
    used = {**config.flat(), **best.used}
    if auto and not first.why:
        used["fastest"] = first.used["loader"]
    left = [lever for lever in levers(config, used, gpu) if lever not in fixed]
    while left:
        lever = max(left, key=partial(promise, what_if=best.what_if))
        # the loader first: it is measured already, and what others are worth depends on it
        if "loader" in left:
            lever = "loader"
        left.remove(lever)
        won = best
        # left alone they are as many as the workers, which a lever before may have changed
        if lever == "decode_threads":
            used[lever] = used[lever] or used.get("workers")
        for value in levers(config, used, gpu)[lever]:
            if value == used[lever]:
                continue
            change = changes_of(lever, value, config)
            trial = tried(lever, {**best.choice, **change}, best)
            if trial.beats(won):
                won = trial
            elif lever == "batch_size":
                break  # a larger one fills the device no more
        if won is best:
            continue
        again = tried(AGAIN, best.choice)  # a machine's speed drifts
        best = max(best, again, key=lambda trial: trial.rate)
        if won.beats(best):
            best = won
            used |= won.used
    return best


# --- trials -------------------------------------------------------------------


def trial_of(recipe: Config, choice: Choice, seconds: float) -> Config:
    """Return the settings of one trial: the recipe with a choice, as a short run that only measures."""
    gentle = GENTLER.get(recipe.model.task, {})
    measuring = {"seconds": seconds, "min_window_s": min(1.0, seconds / 2)}
    changes = {**choice, **MEASURED_ONLY, **gentle, **measuring, "ceilings": True}
    flat = {**recipe.flat(), **ONLY_TRAINS, **changes}
    if flat["loader"] == "auto" and choice.get("loader") != "auto":
        # only the first run measures loaders: others take what auto tries first
        gpu = torch.cuda.is_available()
        flat["loader"] = may_open(kind_of(recipe), recipe, gpu=gpu)[0]
    return build(flat)


def measured(
    recipe: Config,
    seconds: float,
    lever: str,
    choice: Choice,
    limit_s: float,
) -> Trial:
    """Run one trial, whose steady windows last `seconds`. It fails once it has taken `limit_s`."""
    trial = Trial(lever=lever, choice=choice)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = as_yaml(trial_of(recipe, choice, seconds))
        (folder / "trial.yaml").write_text(config, encoding="utf-8")
        flags = words({"config": folder / "trial.yaml", "output": folder / "run"})
        command = [*TRAIN, *flags]
        status, why = ran(command, folder / "log.txt", limit_s)
        if status != "ok":
            return replace(trial, why=why)
        summary = json.loads((folder / "run/summary.json").read_text("utf-8"))
    rate = summary["rate"]
    if rate["steady"] is None or rate["short"]:
        return replace(trial, why="the run was shorter than a window")
    names = ("loader", "workers", "compile", "graphs")
    return replace(
        trial,
        rate=rate["steady"],
        unit=rate["unit"],
        least=rate["spread"]["min"],
        most=rate["spread"]["max"],
        used={name: summary[name] for name in names if name in summary},
        what_if=summary["what_if"],
    )


# --- the answer ---------------------------------------------------------------


def preset(recipe: Config, changes: Mapping[str, Any]) -> str:
    """Return the YAML of the whole recipe with `changes`."""
    flat = recipe.flat()
    defaults = Run().model_dump()
    left_out = {
        name
        for name, facts in FACTS_OF.items()
        if not facts.recipe
        and (name in OF_ONE_RUN or flat[name] == defaults.get(name, flat[name]))
    }
    return as_yaml(build({**flat, **changes}), without=left_out)


def fastest(settings: Tune, recipe: Config, fixed: set[str]) -> str:
    """Search, print each trial; return the YAML of the recipe with what was best. Raises UserError."""
    took_s: list[float] = []
    as_given: list[float] = []

    def measure(lever: str, choice: Choice) -> Trial:
        limit_s = FIRST_LIMIT_S if lever == WARM_UP else TRIAL_LIMIT_S
        began = time.monotonic()
        trial = measured(recipe, settings.seconds, lever, choice, limit_s)
        if lever != WARM_UP:
            took_s.append(time.monotonic() - began)
        return trial

    def may_begin() -> bool:
        """Whether a trial as long as the longest, and what it is compared with again, would end in time."""
        return sum(took_s) + 2 * max(took_s, default=0.0) <= 60 * settings.minutes

    def announce(trial: Trial) -> None:
        print(trial, flush=True)
        if not trial.choice:
            as_given.append(trial.rate)

    best = search(
        recipe,
        measure,
        gpu=torch.cuda.is_available(),
        fixed=fixed if settings.batch_size == "auto" else fixed | {"batch_size"},
        may_begin=may_begin,
        announce=announce,
    )
    gained = best.rate / max(as_given)
    print(f"kept: {best}, {gained:.2f} times the settings given")
    head = f"# {best.rate:,.0f} {best.unit} here, {gained:.2f} times the settings given (scripts.tune).\n"
    # auto would measure again
    loader = {name: best.used[name] for name in ("loader",) if name in best.used}
    return head + preset(recipe, {**loader, **best.choice})


def main(argv: list[str] | None = None) -> int:
    """Return 0; 2 for a user's mistake, 130 on Ctrl-C."""
    given = sys.argv[1:] if argv is None else argv
    return of_program("tune", lambda: _run(given))


def _run(argv: list[str]) -> int:
    settings = flags(Tune, with_flags(argv), prog="tune")
    recipe, fixed = recipe_of(settings)
    data = recipe.data.data
    output = settings.output
    require_data(data, [recipe.loading.loader], recipe)
    if output.is_dir() or not os.access(output.absolute().parent, os.W_OK):
        raise UserError(f"--output {output}: name a file in a folder to write in")
    with ending_on_signals():
        text = fastest(settings, recipe, fixed)
    output.write_text(text, encoding="utf-8")
    words = ["--config", str(output), *(["--data", data] if data else [])]
    print(f"{output}: {program('train')} {shlex.join(words)} ...")
    return 0
