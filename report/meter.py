"""The rate: valid samples of all ranks a second of wall clock, in windows between two synchronised points.

    |--- active ---|- paused: validation, checkpoint, ceiling -|--- active ---|
    ^ sync         ^ sync                                      ^ sync         ^ sync: window closes, >= min_window_s of active time

Must not know what a sample is, nor where it came from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts import World

STEADY_WITHIN = 0.1
"""Warm-up lasts until the first window this close to the median of the later half."""
HIGHEST_EFFICIENCY = 1.03
"""A rate can be this far above its ceiling by chance."""
STEAL = 0.02
"""Share of the cores' time that other virtual machines of the host have: from here on it is told beside rates."""
ENOUGH = 4
"""Windows that a measurement by time takes at least: three make a median with a spread, and the last may move the warm-up's end."""


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of all ranks and of this rank, over `seconds` of active wall clock; `epoch`: the one it ended in."""

    samples: int
    own_samples: int
    seconds: float
    epoch: int

    @property
    def rate(self) -> float:
        return self.samples / self.seconds


class Meter:
    """Counts samples between synchronised points. `synchronise` waits for this rank's device."""

    def __init__(
        self, world: World, *, min_window_s: float, synchronise: Callable[[], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._world, self._min_window_s, self._synchronise, self._clock = world, min_window_s, synchronise, clock
        self.windows: list[Window] = []
        self.paused_s = 0.0
        self._samples, self._counted, self._active_s, self._epoch = 0, 0, 0.0, 0
        self._first_epoch: int | None = None
        self._since: float | None = None
        self._paused_at = clock()

    def add(self, samples: int) -> None:
        """Count this rank's valid samples of one step."""
        self._samples += samples
        self._counted += samples

    def has_measured(self, seconds: float) -> bool:
        """Whether the windows after the warm-up are enough for a figure, and add up to this many seconds."""
        kept = steady(self.windows)
        return len(kept) >= ENOUGH and sum(window.seconds for window in kept) >= seconds

    def total_samples(self) -> int:
        """Valid samples of all ranks since the meter was made."""
        return int(self._world.sum(np.array([self._counted], np.int64))[0])

    def due(self) -> bool:
        """Has this rank's window run long enough to be closed at the next synchronised point?"""
        return self._since is not None and self._active_s + self._clock() - self._since >= self._min_window_s

    def resume(self, epoch: int) -> None:
        """Start the clock at a synchronised point. All ranks call it together."""
        self._meet()
        now = self._clock()
        self.paused_s += now - self._paused_at
        self._since, self._epoch = now, epoch
        self._first_epoch = epoch if self._first_epoch is None else self._first_epoch

    def pause(self) -> Window | None:
        """Stop the clock at a synchronised point; closes the window when it is long enough."""
        return self._point(resume=False)

    def point(self) -> Window | None:
        """A synchronised point in mid-flight: closes the window and goes on."""
        return self._point(resume=True)

    def flush(self) -> None:
        """While paused: keep what was counted since the last window, if no window exists yet. The rate is then `short`."""
        if not self.windows and self._active_s > 0:
            self._close()

    def _point(self, *, resume: bool) -> Window | None:
        if self._since is None:
            return None
        self._meet()
        now = self._clock()
        self._active_s += now - self._since
        self._since, self._paused_at = (now, self._paused_at) if resume else (None, now)
        # every rank must decide alike: rank 0's clock decides
        return self._close() if self._world.gather(self._active_s)[0] >= self._min_window_s else None

    def _meet(self) -> None:
        self._synchronise()
        self._world.barrier()

    def _close(self) -> Window:
        own = self._samples
        total, seconds = self._world.sum(np.array([own, self._active_s * (self._world.rank == 0)], np.float64))
        window = Window(int(total), own, float(seconds), self._epoch)
        self.windows.append(window)
        self._samples, self._active_s = 0, 0.0
        return window

    def result(self, unit: str = "img/s") -> dict[str, Any]:
        """`rate` of summary.json. `steady` is None before the first window, `first_epoch` when none lies within that epoch.

        `short`: of all of a run that was shorter than a window, with its first steps: no rate to compare.
        """
        kept = steady(self.windows)
        short = any(window.seconds < self._min_window_s for window in kept)
        rates = [window.rate for window in kept]
        first = [w for w in self.windows if w.epoch == self._first_epoch]
        own = sum(w.own_samples for w in kept) / sum(w.seconds for w in kept) if kept else None
        return {
            "steady": float(np.median(rates)) if rates else None,
            "spread": spread(rates),
            "short": short,
            "first_epoch": sum(w.samples for w in first) / sum(w.seconds for w in first) if first and not short else None,
            "per_rank": self._world.gather(own),
            "unit": unit,
            "paused_s": self.paused_s,
            "warmup_windows": len(self.windows) - len(kept),
        }


def steady(windows: list[Window]) -> list[Window]:
    """The windows after warm-up: from the first one within STEADY_WITHIN of the later half's median; that half when none is."""
    if not windows:
        return []
    level = float(np.median([window.rate for window in windows[len(windows) // 2 :]]))
    start = next((i for i, window in enumerate(windows) if abs(window.rate - level) <= STEADY_WITHIN * level), len(windows) // 2)
    return windows[start:]


def spread(rates: list[float]) -> dict[str, float] | None:
    """Number, smallest, largest and interquartile range of some rates."""
    if not rates:
        return None
    low, high = np.percentile(rates, [25, 75])
    return {"n": len(rates), "min": min(rates), "max": max(rates), "iqr": float(high - low)}


def too_high(efficiency: float | None) -> bool:
    """Whether it is above HIGHEST_EFFICIENCY: the rate or a ceiling is wrong."""
    return efficiency is not None and efficiency > HIGHEST_EFFICIENCY


def bound_of(rate: Mapping[str, Any], compute: float | None, loader: float | None) -> tuple[float | None, str | None]:
    """`bound` of a Meter's result; (None, None) where it is short."""
    return bound(None if rate["short"] else rate["steady"], compute, loader)


def bound(rate: float | None, compute: float | None, loader: float | None) -> tuple[float | None, str | None]:
    """(efficiency, bound). compute: rate >= 95 % of the compute ceiling; else loader: >= 95 % of the loader's; else contention.

    No bound above HIGHEST_EFFICIENCY: one of the figures is wrong.
    """
    if not rate or not compute or not loader:
        return None, None
    efficiency = rate / min(compute, loader)
    if too_high(efficiency):
        return efficiency, None
    if rate >= 0.95 * compute:
        return efficiency, "compute"
    return efficiency, "loader" if rate >= 0.95 * loader else "contention"
