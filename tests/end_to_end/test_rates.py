"""The rate against a stopwatch of our own, and an intervention: slower reads move what is bound by its loader, and nothing else."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.runs import TIMEOUT_S, Runner, points, summary, until

SMALL = ("--arch", "squeezenet1_1", "--precision", "fp32", "--epochs", 1000, "--val-every", 0, "--save-every-minutes", 0)
WITHIN = 0.02
SPAN_S = 5.0


def test_stopwatch(train: Runner) -> None:
    """Steps are counted as they appear in the file, on the clock of this process; windows are what the run says of the same time."""
    flags = ("--loader", "synthetic", "--image-size", 32, "--batch-size", 8, "--log-every", 1, "--min-window-s", 0.5, "--ceilings", "false")
    process = train(*SMALL, *flags, "--output", "run")
    output = train.cwd / "run"

    def window() -> tuple[int, float]:
        """The number of windows when the next one appears, and our time."""
        known = len(points(output, "window"))
        until(lambda: len(points(output, "window")) > known, TIMEOUT_S, "a window")
        return known + 1, time.perf_counter()

    for _ in range(3):  # warm-up
        window()
    first, began = window()
    while time.perf_counter() - began < SPAN_S:
        last, ended = window()
    process.send(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM

    windows = points(output, "window")
    told = windows[first:last]
    samples = 8 * (windows[last - 1]["step"] - windows[first - 1]["step"])
    assert samples == sum(window["samples"] for window in told)
    rate = samples / sum(window["seconds"] for window in told)
    assert rate == pytest.approx(samples / (ended - began), rel=WITHIN)

    steady = summary(output)["rate"]["steady"]
    rates = sorted(window["rate"] for window in windows)
    assert rates[0] <= steady <= rates[-1]


def measured(train: Runner, pictures: Path, output: str, *flags: object) -> dict[str, Any]:
    windows = ("--log-every", 5, "--min-window-s", 0.5, "--workers", 1)
    train("--data", pictures, *SMALL, *windows, *flags, "--output", output).done()
    return summary(train.cwd / output)


def test_slow_reads_move_a_loader_bound_rate(train: Runner, pictures: Path) -> None:
    """One worker, 15 and then 30 ms a read: the loader's ceiling and the rate are what the delay allows."""
    flags = ("--image-size", 32, "--batch-size", 8)
    found = {ms: measured(train, pictures, f"{ms}-ms", *flags, "--read-delay-ms", ms, "--steps", 24) for ms in (15, 30)}
    for ms, said in found.items():
        assert said["bound"] == "loader", said
        assert 0.9 < said["efficiency"] < 1.03
        # decoding takes its own time, at most a few milliseconds
        assert 1 / (1e-3 * ms + 8e-3) < said["rate"]["steady"] < 1.02 / (1e-3 * ms)
    assert found[30]["rate"]["steady"] < 0.65 * found[15]["rate"]["steady"]
    assert found[30]["data_wait"]["share"] > 0.5


def test_slow_reads_do_not_move_a_compute_bound_rate(train: Runner, pictures: Path) -> None:
    """The loader could still give five times what the step takes. The better of two runs each: other programs share the cores."""
    flags = ("--image-size", 128, "--batch-size", 8, "--steps", 12, "--ceilings", "false")
    rates = {0: 0.0, 2: 0.0}
    for turn in range(2):
        for ms in rates:
            rate = measured(train, pictures, f"{ms}-ms-{turn}", *flags, "--read-delay-ms", ms)["rate"]["steady"]
            rates[ms] = max(rates[ms], rate)
    assert rates[2] > 0.65 * rates[0], rates
