"""The rate: valid samples of all ranks a second of wall clock, in windows between two synchronised points.

    |--- active ---|- paused: validation, checkpoint, ceiling -|--- active ---|
    ^ sync         ^ sync                                      ^ sync         ^ sync: the window closes,
                                                                              >= min_window_s of active time

Must not know what a sample is, nor where it came from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from saturate.contracts import RateWindow, StageSeconds, World

STEADY_WITHIN = 0.1
"""Warm-up lasts until the first window this close to the median of the later half."""
HIGHEST_EFFICIENCY = 1.03
"""A rate can be this far above its ceiling by chance."""
ENOUGH = 4
"""A measurement by time takes at least so many windows: three make a median with a spread, and the last one
may move the end of the warm-up.
"""


class Meter:
    """Counts samples between synchronised points. `synchronise` waits for this rank's device.

    `stage_seconds` are those of this rank's loader, which are read at the same points.
    """

    def __init__(
        self,
        world: World,
        *,
        min_window_s: float,
        synchronise: Callable[[], None],
        stage_seconds: Callable[..., StageSeconds] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stage_seconds = stage_seconds or (lambda **anew: {})
        self._stages: dict[str, tuple[float, float]] = {}  # of the open window
        # what they were when the clock was started
        self._stages_before: StageSeconds = {}
        self._world = world
        self._min_window_s = min_window_s
        self._synchronise = synchronise
        self._clock = clock
        self.windows: list[RateWindow] = []
        self.paused_s = 0.0
        self.pauses: dict[str, float] = {}
        """Seconds of pauses by what they were for, such as validation."""
        self._other = 0  # windows of other work than what the rate is of
        self._samples = 0  # of this rank, in the open window
        self._active_s = 0.0  # of the open window, up to the last pause
        self._idle_s = 0.0  # of windows, in which nothing was trained
        self._counted = 0  # samples of this rank in all
        self._epoch = 0
        self._first_epoch: int | None = None
        # when the clock was started; None while paused
        self._since: float | None = None
        self._paused_at = clock()

    def add(self, samples: int) -> None:
        """Count this rank's valid samples of one step."""
        self._samples += samples
        self._counted += samples

    @contextmanager
    def pause_for(self, what: str) -> Iterator[None]:
        """Count the time inside, in which nothing is trained, as a pause for that. The clock may go on."""
        began = self._clock()
        try:
            yield
        finally:
            took = self._clock() - began
            if self._since is not None:
                self._idle_s += took
            self.pauses[what] = self.pauses.get(what, 0.0) + took

    def has_measured(self, seconds: float) -> bool:
        """Whether the windows after the warm-up are enough for a figure, and add up to this many seconds."""
        windows = self.steady_windows()
        return (
            len(windows) >= ENOUGH
            and sum(window.seconds for window in windows) >= seconds
        )

    def total_samples(self) -> int:
        """Return the valid samples of all ranks since the meter was made."""
        return int(self._world.sum(np.array([self._counted], np.int64))[0])

    def stretch(self) -> float:
        """Return the seconds of the run for each in which it trains, pauses but those for ceilings counted."""
        active_s = self._active_s + sum(window.seconds for window in self.windows)
        paused_s = sum(self.pauses.values()) - self.pauses.get("ceilings", 0.0)
        return 1 + paused_s / active_s if active_s else 1.0

    def due(self) -> bool:
        """Whether this rank's window has run long enough to be closed at the next synchronised point."""
        if self._since is None:
            return False
        return self._active_s + self._clock() - self._since >= self._min_window_s

    def resume(self, epoch: int) -> None:
        """Start the clock at a synchronised point. All ranks call it together."""
        self._meet()
        now = self._clock()
        self.paused_s += now - self._paused_at
        self._since = now
        # a wait that began in the pause counts from here
        self._stages_before = self._stage_seconds(anew=True)
        self._epoch = epoch
        if self._first_epoch is None:
            self._first_epoch = epoch

    def goes_on(self, epoch: int) -> None:
        """Have what follows be of another epoch, without a pause between the two."""
        self._epoch = epoch

    def pause(self) -> RateWindow | None:
        """Stop the clock at a synchronised point; closes the window when it is long enough."""
        return self._point(resume=False)

    def point(self) -> RateWindow | None:
        """Close the window at a synchronised point in mid-flight, and go on."""
        return self._point(resume=True)

    def begin_anew(self) -> None:
        """Have the rate be of what follows, where the work of a step changes. Call it while paused.

        Windows so far count as warm-up, and the open one, which would be of both, is dropped.
        """
        self._other = len(self.windows)
        self._samples = 0
        self._active_s = 0.0
        self._stages = {}

    def flush(self) -> None:
        """Keep what was counted, while paused, as a window if there is none yet. The rate is then `short`."""
        if len(self.windows) == self._other and self._active_s > 0:
            total, seconds = self._of_ranks()
            if total:
                self._close(total, seconds)

    def _point(self, *, resume: bool) -> RateWindow | None:
        if self._since is None:
            return None
        self._meet()
        now = self._clock()
        self._active_s += now - self._since
        stages = self._stage_seconds()
        self._stages = added(self._stages, stages, self._stages_before)
        self._stages_before = stages
        if resume:
            self._since = now
        else:  # a window that is too short stays open, and goes on after the pause
            self._since = None
            self._paused_at = now
        # every rank must decide alike: rank 0's clock decides; a time without a sample is no window
        total, seconds = self._of_ranks()
        if seconds < self._min_window_s or not total:
            return None
        return self._close(total, seconds)

    def _meet(self) -> None:
        # the device before the ranks: a step counts once its work is done, on every one of them
        self._synchronise()
        self._world.barrier()

    def _of_ranks(self) -> tuple[int, float]:
        """Return the open window's samples of all ranks, and its time, which is rank 0's."""
        active_s = self._active_s if self._world.rank == 0 else 0.0
        total, seconds = self._world.sum(
            np.array([self._samples, active_s], np.float64)
        )
        return int(total), float(seconds)

    def _close(self, total: int, seconds: float) -> RateWindow:
        local = self._samples
        window = RateWindow(total, local, seconds, self._epoch, self._stages)
        self.windows.append(window)
        self._samples = 0
        self._active_s = 0.0
        self._stages = {}
        return window

    def steady_windows(self) -> list[RateWindow]:
        """Return the windows that the rate is of, with the samples and stages of this rank."""
        return steady(self.windows[self._other :])

    def result(self, unit: str = "img/s") -> dict[str, Any]:
        """Return `rate` of summary.json, with `unit` for its rates.

        `steady` is None before the first window, `first_epoch` when none lies within that epoch. `short` says
        that the run was shorter than a window, so that its first steps are in the rate too: nothing to
        compare.
        """
        windows = self.steady_windows()
        short = any(window.seconds < self._min_window_s for window in windows)
        # their median is the rate: one window beside another load moves it little
        rates = [window.rate for window in windows]
        first = [w for w in self.windows if w.epoch == self._first_epoch]
        local_rate = None
        if windows:
            seconds = sum(window.seconds for window in windows)
            local_rate = sum(window.own_samples for window in windows) / seconds
        first_rate = None
        if first and not short:
            seconds = sum(window.seconds for window in first)
            first_rate = sum(window.samples for window in first) / seconds
        return {
            "steady": float(np.median(rates)) if rates else None,
            "spread": spread(rates),
            "short": short,
            "first_epoch": first_rate,
            "per_rank": self._world.gather(local_rate),
            "unit": unit,
            "paused_s": self.paused_s,
            "active_s": sum(window.seconds for window in self.windows) - self._idle_s,
            "warmup_windows": len(self.windows) - len(windows),
        }


def added(
    total: StageSeconds, after: StageSeconds, before: StageSeconds
) -> dict[str, tuple[float, float]]:
    """Return `total` and what came between two readings of a loader's stages."""
    nothing = (0.0, 0.0)
    sums = {}
    for name, (wall, cpu) in after.items():
        earlier = before.get(name, nothing)
        so_far = total.get(name, nothing)
        sums[name] = so_far[0] + wall - earlier[0], so_far[1] + cpu - earlier[1]
    return sums


def steady(windows: list[RateWindow]) -> list[RateWindow]:
    """Return the windows after the warm-up, which ends with the first one within STEADY_WITHIN of the later
    half's median.

    Where none is that close it is the later half.
    """
    if not windows:
        return []
    # whatever grows or fills at the start of a run, such as a decoder's buffers, has done so by then
    half = len(windows) // 2
    level = float(np.median([window.rate for window in windows[half:]]))
    close = [abs(window.rate - level) <= STEADY_WITHIN * level for window in windows]
    return windows[close.index(True) if any(close) else half :]


def spread(rates: list[float]) -> dict[str, Any] | None:
    """Return number, smallest, largest and interquartile range of some rates, and `each`; None where there is none."""
    if not rates:
        return None
    low, high = np.percentile(rates, [25, 75])
    return {
        "n": len(rates),
        "min": min(rates),
        "max": max(rates),
        "iqr": float(high - low),
        "each": rates,
    }


def too_high(efficiency: float | None) -> bool:
    """Whether an efficiency is above HIGHEST_EFFICIENCY, so that the rate or a ceiling is wrong."""
    return efficiency is not None and efficiency > HIGHEST_EFFICIENCY


def bound(
    rate: float | None, compute: float | None, loader: float | None
) -> tuple[float | None, str | None]:
    """Return (efficiency, bound).

    The bound is "compute" for a rate of at least 95 % of the compute ceiling, else "loader" for 95 % of the
    loader ceiling, else "contention"; None above HIGHEST_EFFICIENCY, where one of the figures is wrong.
    """
    if not rate or not compute or not loader:
        return None, None
    efficiency = rate / min(compute, loader)
    if too_high(efficiency):
        return efficiency, None
    # compute first: where the step alone is hardly faster, a faster loader would not help; 95 %, since the
    # windows of one run differ by some percent too
    if rate >= 0.95 * compute:
        return efficiency, "compute"
    return efficiency, "loader" if rate >= 0.95 * loader else "contention"
