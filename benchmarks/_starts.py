"""How a training begins: when each of its first steps ended, and after how long its rate is steady.

Must not know what trained, nor how it was launched.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from report.meter import STEADY_WITHIN
from report.summary import EARLY, LATE, durations

FIRST_S = 10
"""Seconds whose rate is told: runs of other lengths are alike in them."""
IN_A_ROW = 3
"""Seconds at the final rate that make a run steady."""

Seconds = npt.NDArray[np.float64]


def ends_of_ours(folder: Path) -> Seconds:
    """Return when each step of a run of train.py ended, seconds since the first one did.

    They are of the device's timeline. Pauses between steps, for validation or a checkpoint, are left out.
    """
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    # a point is without steps when none had passed the device since the one before
    told = [point["steps_ms"] for point in points if point["kind"] == "train" and point["steps_ms"]]
    parts = [durations({name: np.array(ms) for name, ms in steps.items()}) for steps in told]
    return _since_first(np.cumsum(np.concatenate(parts)) / 1e3)


def ends_by_hand(folder: Path) -> Seconds:
    """Return when each step of benchmarks/baselines/train.py ended, seconds since the first one did."""
    told = json.loads((folder / "figures.json").read_text("utf-8"))
    return _since_first(np.array(told["step_ends_s"]))


def _since_first(ends_s: Seconds) -> Seconds:
    # what comes before the end of the first step is set-up: a DALI pipeline is built in its first batch
    return ends_s - ends_s[0]


def rates(ends_s: Seconds, batch_size: int) -> Seconds:
    """Return the samples that were trained on in each whole second. A step counts in the seconds it lay in,
    by its share in each."""
    whole = np.arange(int(ends_s[-1]) + 1)
    trained: Seconds = np.diff(np.interp(whole, ends_s, batch_size * np.arange(len(ends_s))))
    return trained


def steady_after(found: Seconds) -> int | None:
    """Return the seconds before the first IN_A_ROW ones whose rates are all within 10 % of the median of the
    later half; None where there are none. A single slow second later on, of another load, says nothing."""
    if len(found) < IN_A_ROW:
        return None
    level = np.median(found[len(found) // 2 :])
    close = np.abs(found - level) <= STEADY_WITHIN * level
    runs = np.lib.stride_tricks.sliding_window_view(close, IN_A_ROW).all(axis=1)
    return int(runs.argmax()) if runs.any() else None


def figures(ends_s: Seconds, batch_size: int) -> dict[str, float | int | None]:
    """Return the medians of steps 10-29 and of steps 1,000-1,099 (of a shorter run its last 100), ms, their
    ratio, the rate of the first FIRST_S seconds and the seconds until it is steady.

    Nothing is told of a run that is too short to be compared: the two medians share no step.
    """
    ms = 1e3 * np.diff(ends_s, prepend=ends_s[0])
    late = ms[LATE] if len(ms) >= LATE.stop else ms[max(len(ms) - 100, EARLY.stop) :]
    if len(late) < EARLY.stop - EARLY.start:
        return {}
    early_ms = float(np.median(ms[EARLY]))
    late_ms = float(np.median(late))
    found = rates(ends_s, batch_size)
    return {
        "early_ms": early_ms,
        "late_ms": late_ms,
        "step_growth": early_ms / late_ms,
        "first_rate": float(found[:FIRST_S].mean()) if len(found) >= FIRST_S else None,
        "steady_s": steady_after(found),
    }
