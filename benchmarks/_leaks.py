"""Leaks in the readings of a soak: what grows epoch by epoch, beyond noise. Must not know how it is read.

A reading has one value an epoch, warm-up left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

WARM_BATCHES = 500
"""After fewer batches DALI's pools still grew every few epochs (docs/benchmarks/soak.md)."""
STEPS = 3
STEPS_AN_EPOCH = 0.1
"""So many rises that lasted (the larger: STEPS, or this share of the epochs) are no leak yet, while they are
small: a leak shows in more of the epochs."""
STEPS_MIB = 256.0
"""MiB that these rises of memory may come to in all."""
STEPS_COUNT = 3.0
"""Files, threads or processes that these rises may come to in all."""
MIB = {"host_mib": "host memory", "device_mib": "device memory"}
"""Name of a reading in MiB -> in words."""
COUNTS = {"files": "open files", "threads": "threads", "processes": "processes"}
"""Name of a reading that is a number -> in words. Of these none may be added."""


def slope(values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs (Theil and Sen): a single jump does not move it."""
    return float(
        np.median(
            [
                (b - a) / (j - i)
                for (i, a), (j, b) in itertools.combinations(enumerate(values), 2)
            ]
        )
    )


def margin(values: Sequence[float]) -> float:
    """Return two standard errors of the slope, from how far the values lie from the line (median)."""
    epochs = np.arange(len(values))
    off = np.asarray(values) - slope(values) * epochs
    # 1.4826: of normal noise the median deviation, times this, is the standard deviation
    return float(
        2
        * 1.4826
        * np.median(np.abs(off - np.median(off)))
        / np.sqrt(np.sum((epochs - epochs.mean()) ** 2))
    )


def steps_up(values: Sequence[float]) -> tuple[int, float]:
    """Return number and sum of the rises that lasted; (0, 0.0) unless they are few and all that there is.

    A pool grows by such steps: whenever it meets a larger batch than ever before, which is ever more rare.
    """
    before = np.maximum.accumulate(values)[:-1]
    after = np.minimum.accumulate(values[::-1])[::-1][1:]
    rises = np.maximum(after - before, 0.0)
    number = int(np.count_nonzero(rises))
    total = float(rises.sum())
    few = number <= max(STEPS, STEPS_AN_EPOCH * len(values)) and total >= 0.8 * (
        max(values) - min(values)
    )
    return (number, total) if few else (0, 0.0)


def grows(values: Sequence[float], most: float) -> bool:
    """Whether an epoch adds more than `most`, beyond noise, and still does in the later half: a pool that
    fills is no leak."""
    return (
        slope(values) - margin(values) > most
        and slope(values[len(values) // 2 :]) > most
    )


def warmer(leaks: Sequence[str], batches: int, warm_epochs: int) -> list[str]:
    """Return a line that names the other cause which a leak of memory may have after a short warm-up.
    `batches` is the number in an epoch."""
    if batches * warm_epochs >= WARM_BATCHES or not any(
        leak.startswith(tuple(MIB.values())) for leak in leaks
    ):
        return []
    return [
        f"or pools that still fill, after {batches * warm_epochs} batches of warm-up: --warm-epochs "
        f"{-(-WARM_BATCHES // batches)} tells"
    ]


def verdict(
    series: Mapping[str, Sequence[float]], *, max_mib_an_epoch: float
) -> tuple[list[str], list[str]]:
    """Return, in words, (what grows by more than it may, what rose in a few steps that are no leak).

    `series` has one value an epoch, warm-up left out.
    """
    leaks = list[str]()
    rose = list[str]()
    for names, most, most_in_steps, unit in (
        (MIB, max_mib_an_epoch, STEPS_MIB, " MiB"),
        (COUNTS, 0.0, STEPS_COUNT, ""),
    ):
        for name, words in names.items():
            if name not in series:
                continue
            values = series[name]
            number, total = steps_up(values)
            steps = f"rose in {number} step{'s' * (number > 1)} by {total:,.0f}{unit}"
            if grows(values, most) and not 0 < total <= most_in_steps:
                also = f"; {steps}, of which {most_in_steps:g} may be" if number else ""
                leaks.append(
                    f"{words}: {slope(values):+.2f}{unit} an epoch, allowed {most:g}{also}"
                )
            elif number and (total > most * len(values) or grows(values, most)):
                rose.append(f"{words} {steps}")
    return leaks, rose
