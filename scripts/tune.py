"""`python -m scripts.tune --data DATA --arch ARCH`: find the fastest settings that keep the recipe.

Each trial is a run of train.py of a few seconds. One lever after the other (loader, with `--batch-size auto`
the batch, workers, threads that decode, torch.compile, CUDA graphs, pinned memory) is tried on top of the
best so far; a change is kept where it gains more than the noise, also over a second run of what was best
before. The answer is a table of what each gave, and a preset that `--config` reads. What follows a bare `--`
are flags of train.py, for every trial and for the preset: a lever that they set is not tried, and what their
`--config` sets is where the search begins. Cores are those that this process may use: `taskset -c 0,1` tunes
for two. `--lr` finds a learning rate instead.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # also when it is started as a file

import torch
from pydantic import Field, FiniteFloat, PositiveInt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks._process import ending_on_signals
from benchmarks.train import GENTLER, MEASURED_ONLY, require_data, words
from contracts import UserError, one_line
from engine.distributed import default_workers
from loaders import usable
from scripts import _lr_range, _trials
from settings.cli import FolderOrUrl, Settings, flags
from settings.config import FACTS, Config, as_yaml, build, parse
from system.resources import cores
from tasks import kind_of

GAIN = 0.03
"""A change that gains less is noise."""
TRIAL_LIMIT_S = 120.0
FIRST_LIMIT_S = 3600.0
"""Longest that the first run may take, which is not counted and may have to scan a large data set."""
LARGER = (2, 4, 8, 16)
"""Times the batch that is begun with, which --batch-size auto tries until one gains nothing."""
AUTO: Final = "auto"
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
    "score",
)
"""Settings of train.py that are this program's own flags, or would end a trial early."""
LEFT_OUT = {name for name, facts in FACTS.items() if not facts.recipe}
"""Settings that are no part of a recipe."""
AGAIN = "again"
OF_A_GPU = ("compile", "graphs", "pin_memory")
"""Levers that are tried with a GPU alone."""
LATE = "not tried"
"""What a row says whose trial did not begin, since the time was over."""
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
    """Samples a step; it is a part of the recipe, and stays. auto = larger ones than the default are tried
    too; the learning rate is yours to scale. Default: that of --config behind --, else 64."""
    minutes: Annotated[FiniteFloat, Field(gt=0)] = 4.0
    """Minutes of trials: none begins that would not end by then. The first run, which scans the data, comes
    before them."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] = 3.0
    """Seconds of steady windows that a trial measures."""
    output: Path = Path("tuned.yaml")
    """The preset to write."""
    lr: bool = False
    """Find a learning rate instead, in two minutes: in a short run it rises until the loss does."""
    flags: str = ""
    """More flags of train.py, for every trial and the preset; better written last, after a bare --."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run, and what came of it."""

    lever: str
    choice: Choice  # all settings on top of the recipe
    rate: float | None = None  # samples a second; None where it failed
    unit: str = ""
    least: float | None = None  # the slowest window
    most: float | None = None
    used: Choice = field(
        default_factory=dict
    )  # what train.py chose where nothing was asked
    why: str = ""  # it failed, or was not tried
    # the best rate when it was tried, which it is compared with
    over: float | None = None


def recipe_of(settings: Tune) -> tuple[Config, frozenset[str]]:
    """Return the recipe, and the names of the settings that flags behind -- fix. Raises UserError for a flag
    that does not parse, or that this program sets itself."""
    try:
        given = shlex.split(settings.flags)
    except ValueError as error:
        raise UserError(f"--flags {settings.flags}: {error}") from None
    flagged = (word.partition("=")[0] for word in given if word.startswith("--"))
    fixed = frozenset(flag.removeprefix("--").replace("-", "_") for flag in flagged)
    for name in TAKEN:
        if name in fixed:
            raise UserError(
                f"--{name.replace('_', '-')} behind -- is what this program sets itself"
            )
    own = settings.model_dump(
        include={"data", "task", "arch", "batch_size"}, exclude_none=True
    )
    if own.get("batch_size") == AUTO:
        del own["batch_size"]
    return parse([*given, *words(own)]), fixed


def levers(
    config: Config, used: Choice, *, gpu: bool, any_batch: bool = False
) -> Iterator[tuple[str, list[Choice]]]:
    """Yield each lever, which is a setting of train.py, with the choices that differ from what is `used`.

    `used` is filled by the caller with what the fastest trial so far ran with. `any_batch`: the batch is a
    lever too.
    """
    kind = kind_of(config)
    files = kind.are_files(config)
    others = [name for name in kind.loaders if name != used.get("loader")]
    if config.data.data is None:  # nothing that another one could read
        others = []
    yield (
        "loader",
        [{"loader": name} for name in others if usable(name, gpu=gpu, files=files)],
    )
    if any_batch:
        yield (
            "batch_size",
            [{"batch_size": times * config.loading.batch_size} for times in LARGER],
        )
    counts = {max(int(cores()), 1), default_workers(gpu=gpu), max(int(cores()) // 2, 1)}
    yield (
        "workers",
        [{"workers": count} for count in sorted(counts - {used.get("workers")})],
    )
    if used.get("loader") == "dali-fed":
        threads = config.loading.decode_threads or used.get("workers")
        yield (
            "decode_threads",
            [{"decode_threads": count} for count in sorted(counts - {threads})],
        )
    if gpu:
        # behind the others: a trial that compiles takes minutes, of which the time then is kept for another
        yield "compile", [{"compile": not used.get("compile", False)}]
        if kind.graphs:
            yield "graphs", [{"graphs": not used.get("graphs", True)}]
        yield "pin_memory", [{"pin_memory": not config.loading.pin_memory}]


def left_out(
    config: Config, used: Choice, *, gpu: bool, fixed: Collection[str]
) -> list[str]:
    """Return a line for each reason for which levers, or loaders, are not tried at all."""
    kind = kind_of(config)
    files = kind.are_files(config)
    known = (
        [name for name in kind.loaders if name != "synthetic"]
        if config.data.data
        else []
    )
    of_shapes = [] if kind.graphs or not gpu else ["graphs"]
    reasons = {
        "since flags behind -- set them": [
            lever for lever, _ in levers(config, used, gpu=gpu) if lever in fixed
        ],
        "since they cannot run here": [
            f"loader {name}"
            for name in known
            if not usable(name, gpu=gpu, files=files) and "loader" not in fixed
        ],
        "without a GPU": []
        if gpu
        else [lever for lever in OF_A_GPU if lever not in fixed],
        "since batches have many shapes": of_shapes,
    }
    return [
        f"not tried, {why}: {', '.join(names)}"
        for why, names in reasons.items()
        if names
    ]


def search(
    config: Config,
    measure: Callable[[str, Choice], Trial],
    trials: list[Trial],
    *,
    gpu: bool,
    any_batch: bool = False,
    fixed: Collection[str] = (),
    may_begin: Callable[[], bool] = lambda: True,
) -> Trial:
    """Try one lever after the other on top of the best so far, but for those that are `fixed`.

    Returns the fastest trial, whose choice is what to keep; appends every trial to `trials`, so that they are
    there when it is interrupted; where no time is left their `why` is LATE. Raises UserError where the
    settings as they are do not run.
    """
    measure(
        "warm-up", {}
    )  # not counted: it scans the data, and reads files that no memory holds yet
    best = measure("as it is", {})
    if best.rate is None:
        raise UserError(f"the first trial failed: {best.why}")
    trials.append(best)
    used = dict(best.used)
    for lever, choices in levers(config, used, gpu=gpu, any_batch=any_batch):
        winners: list[Trial] = []
        for choice in choices if lever not in fixed else ():
            if not may_begin():
                trials.append(Trial(lever=lever, choice=best.choice | choice, why=LATE))
                continue
            trial = replace(measure(lever, best.choice | choice), over=best.rate)
            trials.append(trial)
            if _beats(trial, max([best, *winners], key=_rate)):
                winners.append(trial)
            elif lever == "batch_size":
                break  # a larger one fills the device no more
        if not winners:
            continue
        won = max(winners, key=_rate)
        again = measure(AGAIN, best.choice)  # a machine's speed drifts
        trials.append(again)
        best = max(best, again, key=_rate)
        if _beats(won, best):
            best = won
            used.update(won.used)
    return best


def _rate(trial: Trial) -> float:
    return trial.rate or 0.0


def _beats(trial: Trial, base: Trial) -> bool:
    """Whether a trial gains more than the noise: also its slowest window is faster than any of `base`."""
    gains = _rate(trial) > _rate(base) * (1 + GAIN)
    return gains and (trial.least or 0.0) > (base.most or _rate(base))


def trial_of(recipe: Config, choice: Choice, seconds: float) -> Config:
    """Return the settings of one trial: the recipe with a choice, as a short run that only measures."""
    gentle = GENTLER.get(recipe.model.task, {})
    measuring = {"seconds": seconds, "min_window_s": min(1.0, seconds / 2)}
    return _trials.config_of(recipe, {**choice, **MEASURED_ONLY, **gentle, **measuring})


def measured(
    recipe: Config,
    seconds: float,
    lever: str,
    choice: Choice,
    limit_s: float = TRIAL_LIMIT_S,
) -> Trial:
    """Run one trial, whose steady windows last `seconds`. It fails once it has taken `limit_s`."""
    config = trial_of(recipe, choice, seconds)
    trial = _trials.run(config, limit_s)
    if trial.code != 0:
        why = (
            f"it took longer than {limit_s:.0f} s" if trial.code is None else trial.said
        )
        return Trial(lever=lever, choice=choice, why=why)
    told = trial.summary
    rate = told["rate"]
    if rate["steady"] is None or rate["short"]:
        why = f"the run was shorter than a window of {config.run.min_window_s:g} s"
        return Trial(lever=lever, choice=choice, why=why)
    return Trial(
        lever=lever,
        choice=choice,
        rate=rate["steady"],
        unit=rate["unit"],
        least=rate["spread"]["min"],
        most=rate["spread"]["max"],
        used={
            name: told[name]
            for name in ("loader", "workers", "compile", "graphs")
            if name in told
        },
    )


class Clock:
    """The time of a search, which begins when its first run, which scans the data, is over."""

    def __init__(self, total_s: float) -> None:
        self.total_s = total_s
        self._began: float | None = None
        self.longest_s = 0.0  # of a trial

    @property
    def passed_s(self) -> float:
        """Return the seconds since the first run was over."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    @contextmanager
    def trial(self) -> Iterator[float]:
        """Time a trial; yields the seconds after which it is to be ended."""
        began = time.monotonic()
        first = self._began is None
        yield FIRST_LIMIT_S if first else TRIAL_LIMIT_S
        if first:
            self._began = time.monotonic()
        else:
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def has_time(self) -> bool:
        """Whether a trial as long as the longest, and what it is compared with again, would end in time."""
        return self.passed_s + 2 * self.longest_s <= self.total_s


def _as_given(trials: Sequence[Trial]) -> float:
    """Return the better rate of the settings as they were given."""
    return max(_rate(trial) for trial in trials if not trial.choice)


def table(trials: Sequence[Trial], best: Trial | None = None) -> Table:
    """Draw what was tried, and what each gave over the settings as they were given."""
    drawn = Table("tried", "rate", "windows", "lever gave", "times as given", "")
    for trial in trials:
        what = (
            ", ".join(f"{name} {value}".lower() for name, value in trial.choice.items())
            or "as it is"
        )
        what += ", again" if trial.lever == AGAIN else ""
        if trial.rate is None:
            drawn.add_row(what, "-", "", "", "", trial.why[:80])
            continue
        windows = (
            f"{trial.least:,.0f} to {trial.most:,.0f}"
            if trial.least and trial.most
            else ""
        )
        gave = f"{trial.rate / trial.over - 1:+.1%}" if trial.over else ""
        ratio = trial.rate / _as_given(trials)
        mark = "kept" if trial is best else ""
        drawn.add_row(
            what, f"{trial.rate:,.0f} {trial.unit}", windows, gave, f"{ratio:.2f}", mark
        )
    return drawn


def preset(recipe: Config, best: Trial, trials: Sequence[Trial]) -> str:
    """Return the YAML of the whole recipe, with the settings that were kept."""
    gained = _rate(best) / _as_given(trials)
    head = f"# {best.rate:,.0f} {best.unit} here, {gained:.2f} times the settings given (scripts.tune).\n"
    loader = (
        {"loader": best.used["loader"]} if "loader" in best.used else {}
    )  # auto would measure again
    return head + as_yaml(build(recipe.flat() | loader | best.choice), without=LEFT_OUT)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of writing to --output, which is `path`, into a UserError."""
    try:
        yield
    except OSError as error:
        where = "name a file in a folder that can be written to"
        raise UserError(f"--output {path}: {error.strerror}; {where}") from None


def require_writable(path: Path) -> None:
    """Raise UserError where no preset can be written there; what is there stays as it is."""
    new = not os.path.lexists(path)
    with writing(path):
        path.open("a").close()
        if new:
            path.unlink()


def learning_rate(settings: Tune, recipe: Config, console: Console) -> str:
    """Find a learning rate, draw how; return the YAML of the recipe with it. Raises UserError."""
    found = _lr_range.measured(recipe, torch.cuda.is_available(), console.print)
    picture = settings.output.with_suffix(".png")
    _lr_range.draw(found, picture)
    # as it was trained with, whatever the batch
    advice = {} if found.advised is None else {"lr": found.advised, "lr_per": 0}
    said = f"--lr {found.advised or 0:g}: by where the loss falls and climbs again"
    if not advice:
        said = f"no clear fall of the loss: keep the preset's --lr {recipe.optimisation.lr:g}"
    console.print(f"{said}; {picture} shows it")
    return as_yaml(build(recipe.flat() | advice), without=LEFT_OUT)


def fastest(
    settings: Tune,
    recipe: Config,
    fixed: Collection[str],
    console: Console,
    trials: list[Trial],
) -> str:
    """Search, and print what came of it; return the YAML of the recipe with it. Raises UserError."""
    gpu = torch.cuda.is_available()
    clock = Clock(60 * settings.minutes)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=clock.total_s)

        def measure(lever: str, choice: Choice) -> Trial:
            bar.update(
                task, completed=clock.passed_s, description=f"{lever} {choice or ''}"
            )
            with clock.trial() as limit_s:
                return measured(recipe, settings.seconds, lever, choice, limit_s)

        any_batch = settings.batch_size == AUTO
        best = search(
            recipe,
            measure,
            trials,
            gpu=gpu,
            any_batch=any_batch,
            fixed=fixed,
            may_begin=clock.has_time,
        )
    console.print(table(trials, best))
    if any(trial.why == LATE for trial in trials):
        took = f"a trial took up to {clock.longest_s:.0f} s"
        console.print(
            f"{LATE}: the time was over; {took}: more --minutes than {settings.minutes:g}"
        )
    for line in left_out(recipe, best.used, gpu=gpu, fixed=fixed):
        console.print(line)
    return preset(recipe, best, trials)


def main(argv: list[str]) -> int:
    """Return 0; 2 for a user's mistake, 130 on Ctrl-C."""
    console = Console(
        markup=False, highlight=False, width=None if sys.stdout.isatty() else 200
    )
    trials: list[Trial] = []
    try:
        at = argv.index("--") if "--" in argv else len(argv)
        more = [f"--flags={shlex.join(argv[at + 1 :])}"] if at + 1 < len(argv) else []
        settings = flags(Tune, [*argv[:at], *more], prog="scripts.tune")
        recipe, fixed = recipe_of(settings)
        data = recipe.data.data
        output = settings.output
        require_data(data, [recipe.loading.loader], recipe)
        require_writable(output)
        with ending_on_signals():
            if settings.lr:
                text = learning_rate(settings, recipe, console)
            else:
                text = fastest(settings, recipe, fixed, console, trials)
        with writing(output):
            output.write_text(text, encoding="utf-8")
        command = [
            "train.py",
            "--config",
            str(output),
            *(["--data", data] if data else []),
        ]
        console.print(f"{output}: {shlex.join(command)} ...", soft_wrap=True)
    except (UserError, OSError) as error:
        print(one_line(f"scripts.tune: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if trials:
            console.print(table(trials))
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
