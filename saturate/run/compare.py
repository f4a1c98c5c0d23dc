"""`saturate compare A B [--most-loss 3%]`: whether B is slower than A, which stage is, and what else differs.

A and B are each a run's folder, its summary.json, or a file of `saturate why --json`. The exit code is 0 for no loss,
or one within --most-loss; 1 for a loss beyond both spreads, and beyond --most-loss; 3 where that cannot be told: they
ran on two kinds of GPU, there are too few windows, or the rate is lower by more than runs of one recipe differ and the
windows do not show it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import expm1, inf, log, sqrt
from pathlib import Path
from statistics import NormalDist, mean, median, variance
from typing import Any, NamedTuple

from saturate.contracts import UserError, one_line
from saturate.report.stages import NO_WORK, NOT_OF_A_STEP, OF_WORKERS
from saturate.report.words import number
from saturate.run.program import Parser
from saturate.system.exit_codes import DONE, of_program

LOSS = 1
CANNOT_TELL = 3
"""Exit codes beside DONE and MISTAKE."""
LEAST = 3
"""Windows of each side, without which nothing is told."""
BLOCKS = 8
"""Neighbouring windows of a longer run are made one block, so that at most so many are left."""
BETWEEN_RUNS = 0.01
"""A smaller loss is none: one recipe, started again, makes another rate. Nine runs of a ResNet-50 differed by 0.5 %,
and the windows of each by 0.3 % (H200)."""
TOO_WIDE = 0.1
"""Where no smaller loss than this would show, nothing is told, unless --most-loss is."""
Z = NormalDist().inv_cdf(0.995)
"""The quantile of one-sided tests of which 0.5 % see a loss where there is none."""
EXPLAINS = 0.25
"""Share of what a sample takes longer, from which on a stage that takes longer is named for it."""
UNLIKE = ("output", "epochs", "steps", "shm_gib")
"""What differs between any two runs, and does not change a rate."""
WAITS = (*NO_WORK, "workers", "queue")
"""Stages of a loader that take longer where others do."""


class Side(NamedTuple):
    """What was measured of a run, or of a program under `saturate why`."""

    windows: Mapping[str, Sequence[float]]
    """Rates of the windows of the rate and of each ceiling, by the titles of their rows, samples/s."""
    stages: Mapping[str, float]
    """Milliseconds that a sample takes on rank 0; those of workers are divided among them."""
    waits_for: Sequence[str]
    """Stages that its rate can be lower for: of the loader or of the step, where one of them is known to bind."""
    settings: Mapping[str, Any]
    """With versions and the machine."""


def read(path: Path) -> Side:
    """Return what a file, or the summary.json of a folder, has. Raises UserError where it is of another kind."""
    if path.is_dir():
        path /= "summary.json"
    try:
        return side(json.loads(path.read_bytes()))
    except (ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError):
        raise UserError(
            f"{path}: name the folder or the summary.json of a run, or a file of saturate why --json, of this version"
        ) from None


def side(summary: Mapping[str, Any]) -> Side:
    """Return what a summary has. Raises KeyError, or what reading a wrong value does, where it is of another kind."""
    sections = {"rate": summary["rate"]} | {
        f"{name} ceiling": ceiling for name, ceiling in summary["ceiling"].items()
    }
    workers = max(summary.get("workers") or 0, 1)
    loader = {
        name: stage["ms"] / (workers if name in OF_WORKERS else 1)
        for name, stage in (summary["stages"] or {}).items()
        if name not in WAITS
    }
    samples = summary["batch_size"] * summary.get("accumulate", 1)
    step = {
        name: ms / samples
        for name, ms in (summary["split_ms"] or {}).items()
        if name not in NOT_OF_A_STEP
    }
    windows = {
        title: _positive(one["spread"]["each"])
        for title, one in sections.items()
        # the first steps are in the rate of a short run
        if one and one["spread"] and not one.get("short")
    }
    # the first window of a run is slower, by 2 to 10 % of nine runs: it has the end of the warm-up
    if len(rates := windows.get("rate", ())) > LEAST:
        windows["rate"] = rates[1:]
    # what was asked for is what it has become
    settings = {
        name: summary.get(name, value) for name, value in summary["settings"].items()
    }
    return Side(
        windows,
        loader | step,
        [
            *{"compute": step, "loader": loader, "storage": loader}.get(
                summary.get("bound") or "", loader | step
            )
        ],
        {"world_size": summary["world_size"]}
        | settings
        | summary["hardware"]
        | summary["versions"],
    )


def _positive(rates: Sequence[float]) -> Sequence[float]:
    # no comparison with nan is true, so that it would hide a loss
    if not all(0 < rate < inf for rate in rates):
        raise ValueError
    return rates


def losses(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return which share of A's rate B lacks, and the smallest such loss that these windows can show.

    A rate is the median of its windows. A loss is shown when two tests show it:

    - The median of each lies beyond all blocks of the other. A block is a window, or the mean of neighbours where
      there are more than BLOCKS.
    - The means of the logarithms of the blocks differ by Welch's t test, one-sided, at 0.5 %. Its quantile is Peizer
      and Pratt's (1968): 7 % too large for 2 degrees of freedom, 1 % for 4, 0.1 % for 10.

    A loss of less than BETWEEN_RUNS is none.

    It assumes that windows are independent and about normal, and that nothing but what is compared changes from run to
    run. Of pairs without a loss fewer than 1 in 100 are then told to have one: 0.2 to 0.4 % of those with as many
    windows each, 3 to 40, and 0.7 % with 4 beside 30. Where neighbours correlate by 0.6 it is 7 % with 6 windows, and
    1 % with 40.
    """
    loss = log(median(a) / median(b))
    blocks = _blocks(a), _blocks(b)
    # windows that are all alike would divide by zero
    errors = [variance(one) / len(one) + 1e-18 for one in blocks]
    error = sum(errors)
    degrees = error**2 / sum(
        part**2 / (len(one) - 1) for part, one in zip(errors, blocks, strict=True)
    )
    scaled = Z / (degrees - 2 / 3 + 0.1 / degrees)
    t = sqrt(degrees * expm1(scaled**2 * (degrees - 5 / 6)))
    # were all windows of B slower by a factor, both tests would show it from here on
    smallest = max(
        loss - (mean(blocks[0]) - mean(blocks[1])) + t * sqrt(error),
        log(median(a)) - min(blocks[0]),
        max(blocks[1]) - log(median(b)),
    )
    return -expm1(-loss), max(-expm1(-smallest), BETWEEN_RUNS)


def _blocks(rates: Sequence[float]) -> list[float]:
    count = min(len(rates), BLOCKS)
    edges = [len(rates) * i // count for i in range(count + 1)]
    return [mean(map(log, rates[edges[i] : edges[i + 1]])) for i in range(count)]


def verdict(a: Side, b: Side, most: float) -> tuple[int, list[str]]:
    """Return the exit code, and what is said below the table. `most` is the loss that is let pass, 0 = not asked."""
    rates = [side.windows.get("rate", ()) for side in (a, b)]
    tasks = [side.settings.get("task") for side in (a, b)]
    # saturate why does not know it
    if None not in tasks and tasks[0] != tasks[1]:
        words = f"A is of {tasks[0]} and B of {tasks[1]}, whose samples are others"
        return CANNOT_TELL, [f"cannot tell: {words}"]
    # one GPU is faster than another, whatever the code
    gpus = [one_line(side.settings.get("gpu") or "a CPU") for side in (a, b)]
    if gpus[0] != gpus[1]:
        words = f"A ran on {gpus[0]} and B on {gpus[1]}; run both on one kind"
        return CANNOT_TELL, [f"cannot tell: {words}"]
    if min(map(len, rates)) < LEAST:
        return CANNOT_TELL, [f"cannot tell: train for {LEAST} windows or more"]
    loss, smallest = losses(*rates)
    lines = [f"the smallest loss that this pair can show: {smallest:.1%}"]
    if abs(loss) > smallest:
        lines.insert(0, f"stage that changed: {_changed(a, b)}")
    if loss > max(smallest, most):
        return LOSS, [*lines, f"a loss of {loss:.1%}, beyond both spreads"]
    if most and smallest + min(loss, 0) > most:
        words = f"a loss of {most:.1%} may not show, more or longer windows are needed"
        return CANNOT_TELL, [*lines, f"cannot tell: {words}"]
    if loss > smallest:
        return DONE, [*lines, f"a loss of {loss:.1%}, which --most-loss lets pass"]
    if not most and smallest > TOO_WIDE:
        words = f"a loss of {smallest:.1%} alone would show, more or longer windows are needed"
        return CANNOT_TELL, [*lines, f"cannot tell: {words}"]
    if loss > max(BETWEEN_RUNS, most):
        words = f"a loss of {loss:.1%} lies within the spreads, more or longer windows are needed"
        return CANNOT_TELL, [*lines, f"cannot tell: {words}"]
    return DONE, [*lines, f"no loss of {smallest:.1%} or more"]


def _changed(a: Side, b: Side) -> str:
    """Return the stage that grew the most of those that both sides have and the slower one waits for; where the rate
    has grown, the one that shrank the most. A graph has its step as one stage, and loaders have stages of their own.
    """
    of_samples = [
        1e3 * side.settings["world_size"] / median(side.windows["rate"])
        for side in (a, b)
    ]
    longer = of_samples[1] - of_samples[0]
    slower = b if longer > 0 else a
    parts = {
        name: (b.stages[name] - ms) / longer
        for name, ms in a.stages.items()
        if name in b.stages and name in slower.waits_for
    }
    name = max(parts, key=parts.__getitem__, default="")
    return name if name and parts[name] > EXPLAINS else "not known"


def _pairs(
    a: Mapping[str, Any], b: Mapping[str, Any], missing: object
) -> Iterator[tuple[str, Any, Any]]:
    for name in {**a, **b}:
        yield name, a.get(name, missing), b.get(name, missing)


def rows(a: Side, b: Side) -> Iterator[tuple[str, ...]]:
    """Yield a title, A, B, and what has changed: of rates, stages, and the settings that differ."""
    for title, *windows in _pairs(a.windows, b.windows, ()):
        if all(windows):
            before, now = map(median, windows)
            cells = [
                f"{number(median(each))} ({number(min(each))} to {number(max(each))} in {len(each)})"
                for each in windows
            ]
            yield title, *cells, f"{now / before - 1:+.1%}"
    for name, *each in _pairs(a.stages, b.stages, None):
        cells = ["-" if ms is None else f"{number(ms)} ms" for ms in each]
        is_known = None not in each
        yield name, *cells, f"{each[1] - each[0]:+.3g} ms a sample" if is_known else ""
    for name, *values in _pairs(a.settings, b.settings, "-"):
        if values[0] != values[1] and name not in UNLIKE:
            yield name, *(one_line(str(value), 40) for value in values), ""


def compared(options: argparse.Namespace) -> int:
    """Print how A and B compare; return the exit code."""
    a, b = read(options.a), read(options.b)
    code, lines = verdict(a, b, options.most_loss)
    table = [("", "A", "B", "B to A"), *rows(a, b)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(map(str.ljust, cells, widths)).rstrip())
    print("-" * 80, *lines, sep="\n")
    return code


def _share(text: str) -> float:
    with suppress(ValueError):
        if BETWEEN_RUNS <= (share := float(text.removesuffix("%")) / 100) < 1:
            return share
        if 0 < share < BETWEEN_RUNS:
            words = f"{share:.2%}, and any two runs differ by {BETWEEN_RUNS:.0%}"
            raise argparse.ArgumentTypeError(f"{text!r} is {words}")
    raise argparse.ArgumentTypeError(f"{text!r} is no share; write one such as 3%")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = Parser("compare", __doc__)
    parser.add_argument("a", type=Path, help="what was before")
    parser.add_argument("b", type=Path, help="what is now")
    parser.add_argument(
        "--most-loss",
        type=_share,
        default=0.0,
        help="of the rate, that is let pass, such as 3%%",
    )
    options = parser.parse_args(arguments)
    return of_program("compare", lambda: compared(options))
