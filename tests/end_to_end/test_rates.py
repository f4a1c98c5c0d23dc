"""The rate against a stopwatch and an intervention, and a summary that follows from its points."""

from __future__ import annotations

import signal
import statistics
import time
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from saturate.run import compare
from tests.end_to_end.runs import TIMEOUT_S, Runner, points, summary, until

SMALL = (
    """--loader torchvision --arch squeezenet1_1 --precision fp32 --epochs 1000
    --val-every 0 --save-every-minutes 0""",
)
WITHIN = 0.02
PHASES = ("data_wait", "forward", "backward", "update")
SPAN, ENDS, SPANS = 15, 4, 3
"""Windows that the stopwatch is held to, and at either end of them; times that it tries."""


def drift(told_s: list[float], seen: list[float]) -> float:
    """By how much the durations of a span's windows differ from when each was seen, as a share of its time.

    A window may be seen late, never early: at either end that one counts which was seen the soonest.
    """
    ended = list(accumulate(told_s))
    late = [ours - theirs for ours, theirs in zip(seen, ended, strict=True)]
    first = min(range(ENDS), key=late.__getitem__)
    last = min(range(len(late) - ENDS, len(late)), key=late.__getitem__)
    return (ended[last] - ended[first]) / (seen[last] - seen[first]) - 1


def test_stopwatch(train: Runner) -> None:
    """One of a few spans must agree with the clock of this process."""
    flags = "--loader synthetic --image-size 32 --batch-size 8 --log-every 1"
    flags += " --min-window-s 0.2 --ceilings false"
    process = train(*SMALL, *flags.split(), "--output run")
    output = train.cwd / "run"

    seen: list[float] = []
    drifts: list[float] = []

    def ended() -> int:
        return len(points(output, "window"))

    def look() -> None:
        until(lambda: ended() > len(seen), TIMEOUT_S, "a window")
        more = ended() - len(seen)
        seen.extend([time.perf_counter()] * more)

    until(lambda: ended() >= 3, TIMEOUT_S, "the warm-up")
    while len(drifts) < SPANS and min(map(abs, drifts), default=1.0) > WITHIN:
        for _ in range(SPAN):
            look()
        told = points(output, "window")[len(seen) - SPAN : len(seen)]
        drifts.append(drift([window["seconds"] for window in told], seen[-SPAN:]))
    process.send(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert min(map(abs, drifts)) <= WITHIN, drifts

    windows = points(output, "window")
    steps = [0, *(window["step"] for window in windows)]
    assert [window["samples"] for window in windows] == [
        8 * (after - before) for before, after in pairwise(steps)
    ]
    rates = [window["rate"] for window in windows]
    assert min(rates) <= summary(output)["rate"]["steady"] <= max(rates)


def check_rates(output: Path) -> None:
    """Figures of the summary again, from their definitions in docs/rates.md and the points behind them."""
    found = summary(output)
    windows = points(output, "window")
    rate = found["rate"]
    first = rate["warmup_windows"]
    steady = [window["rate"] for window in windows[first:]]
    # it leaves the first one out
    left = steady[1:] if len(steady) > compare.LEAST else steady
    assert compare.read(output).windows["rate"] == left
    measured = points(output, "ceilings")
    compute, loader = (
        max(point[name]["rate"] for point in measured) for name in ("compute", "loader")
    )
    assert found["ceiling"]["compute"]["rate"] == compute
    assert found["efficiency"] == pytest.approx(rate["steady"] / min(compute, loader))
    trained = points(output, "train")
    assert sum(len(point["losses"]) for point in trained) == found["steps"]
    warm = windows[first - 1]["step"] if first else 0
    split = {
        name: [ms for point in trained for ms in point["steps_ms"].get(name, [])][warm:]
        for name in PHASES
    }
    means = {name: statistics.mean(ms) for name, ms in split.items()}
    assert found["split_ms"] == pytest.approx(means)
    whole = [sum(parts) for parts in zip(*split.values(), strict=True)]
    share = sum(split["data_wait"]) / sum(whole)
    wait = {"ms": means["data_wait"], "share": share}
    assert found["data_wait"] == pytest.approx(wait)
    assert found["step_ms"]["n"] == len(whole) == found["steps"] - warm
    assert found["step_ms"]["p50"] == pytest.approx(statistics.median(whole))
