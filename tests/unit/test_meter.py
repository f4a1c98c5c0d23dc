"""The rate, with fakes of clock and world."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import RateWindow
from saturate.report.meter import Meter, bound, steady


class Threads:
    """contracts.World of one rank among several; the ranks are threads that meet at every collective call."""

    device = torch.device("cpu")

    def __init__(
        self, rank: int, size: int, meeting: threading.Barrier, board: list[Any]
    ) -> None:
        self.rank, self.size = rank, size
        self._meeting, self._board = meeting, board

    def gather(self, value: object) -> list[Any]:
        self._board[self.rank] = value
        self._meeting.wait(timeout=20)
        everyone = list(self._board)
        self._meeting.wait(timeout=20)
        return everyone

    def sum(self, values: np.ndarray) -> np.ndarray:
        everyone: list[np.ndarray] = self.gather(values)
        return np.sum(everyone, axis=0)

    def barrier(self) -> None:
        self.gather(None)

    def synchronise(self) -> None:
        pass


def on_ranks(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    meeting, board, results = threading.Barrier(size), [None] * size, [None] * size

    def rank(number: int) -> None:
        results[number] = work(Threads(number, size, meeting, board))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def alone() -> Threads:
    return Threads(0, 1, threading.Barrier(1), [None])


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def meter_of(
    world: Any = None, synchronise: Callable[[], None] = lambda: None
) -> tuple[Meter, Clock]:
    clock = Clock()
    meter = Meter(
        world or alone(), min_window_s=2.0, synchronise=synchronise, clock=clock
    )
    return meter, clock


def train(meter: Meter, clock: Clock, steps: int) -> None:
    """Steps of half a second as the loop does them: count, then close the window when it is due."""
    for _ in range(steps):
        clock.sleep(0.5)
        meter.add(10)
        if meter.due():
            meter.point()


def test_paused_time_is_not_counted() -> None:
    meter, clock = meter_of()
    clock.sleep(30)  # opening, scanning: before the first epoch
    meter.resume(0)
    train(meter, clock, 3)  # 1.5 s
    assert meter.pause() is None, "too short for a window: goes on after the pause"
    clock.sleep(100)  # validation
    assert not meter.due() and meter.point() is None, "the clock stands"
    meter.resume(1)
    assert meter.paused_s == 130
    train(meter, clock, 9)
    found = [(w.samples, w.own_samples, w.seconds, w.epoch) for w in meter.windows]
    assert found == [(40, 40, 2.0, 1)] * 3
    clock.sleep(1.0)
    assert meter.pause() is None
    meter.flush()
    assert len(meter.windows) == 3, "what is left over would be all error"
    assert meter.result()["steady"] == 20.0 and meter.result()["first_epoch"] is None
    meter.resume(2)
    clock.sleep(5)
    meter.add(50)
    window = meter.pause()
    assert window is not None and (window.seconds, window.rate) == (6.0, 50 / 6)
    assert meter.total_samples() == 170
    meter.resume(3)
    clock.sleep(5)
    assert meter.pause() is None, "a time without a sample is no window"


def test_a_checkpoint_that_the_clock_goes_on_through_is_in_the_rate() -> None:
    """It is a pause still, and no time of training."""
    meter, clock = meter_of()
    meter.resume(0)
    train(meter, clock, 4)
    with meter.pause_for("checkpoint"):
        clock.sleep(3)
    meter.goes_on(1)
    train(meter, clock, 1)
    found = [(w.samples, w.seconds, w.epoch) for w in meter.windows]
    assert found == [(40, 2.0, 0), (10, 3.5, 1)]
    assert meter.pauses == {"checkpoint": 3.0}
    assert meter.result()["active_s"] == 2.5


def windows(*rates: float, epoch: int = 0) -> list[RateWindow]:
    return [
        RateWindow(
            samples=int(rate * 2), own_samples=int(rate), seconds=2.0, epoch=epoch
        )
        for rate in rates
    ]


@pytest.mark.parametrize(
    ("rates", "warm_up"),
    [
        ((10, 60, 95, 100, 102, 98), 2),
        # a slow window after warm-up stays: it was slow
        ((100, 100, 100, 50, 100, 100), 0),
        # a first window fed by what was prefetched is no rate either
        ((300, 100, 100, 100), 1),
        ((1, 2, 4, 8, 16, 32), 4),  # the later half's median is one of its rates
        ((1, 2, 4, 8), 2),  # no rate is near it: the later half
    ],
)
def test_warm_up_ends_near_the_median_of_the_later_half(
    rates: tuple[float, ...], warm_up: int
) -> None:
    assert len(rates) - len(steady(windows(*rates))) == warm_up


def test_result() -> None:
    meter, _ = meter_of()
    meter.flush()
    nothing = dict.fromkeys(("steady", "spread", "first_epoch"))
    nothing |= {"per_rank": [None], "warmup_windows": 0}
    assert nothing.items() <= meter.result().items()
    meter.resume(0)
    meter.windows = [*windows(20, 90, 100), *windows(101, 102, 110, epoch=1)]
    assert meter.result("clip/s") == {
        "paused_s": 0.0,
        "active_s": 12.0,
        "steady": 101.5,  # of 100 101 102 110
        "spread": {
            "n": 4,
            "min": 100.0,
            "max": 110.0,
            "iqr": 3.25,
            "each": [100.0, 101.0, 102.0, 110.0],
        },
        "first_epoch": 70.0,
        "per_rank": [(100 + 101 + 102 + 110) / 8],
        "unit": "clip/s",
        "short": False,
        "warmup_windows": 2,
    }


def test_a_run_too_short_for_a_window_still_has_a_rate() -> None:
    meter, clock = meter_of()
    meter.resume(0)
    train(meter, clock, 2)
    assert meter.pause() is None
    meter.flush()
    found = meter.result()
    assert (found["steady"], found["short"], found["first_epoch"]) == (20.0, True, None)


def test_samples_of_all_ranks_over_the_clock_of_rank_0() -> None:
    arrived: list[int] = []

    def work(world: Threads) -> Any:
        meter, clock = meter_of(world, lambda: arrived.append(world.rank))
        meter.resume(0)
        assert len(arrived) >= 3, "a resume meets the other ranks first"
        clock.sleep(2.0 + world.rank)  # clocks differ
        meter.add(10 * (world.rank + 1))
        meter.pause()
        return meter.windows, meter.result(), meter.total_samples()

    for rank, (made, result, total) in enumerate(on_ranks(3, work)):
        (window,) = made
        assert (window.samples, window.own_samples) == (60, 10 * (rank + 1))
        assert (window.seconds, result["steady"], total) == (2.0, 30.0, 60)
        assert result["per_rank"] == [5.0, 10.0, 15.0]


@pytest.mark.parametrize(
    ("rate", "compute", "loader", "efficiency", "name"),
    [
        (95.0, 100.0, 200.0, 0.95, "compute"),
        (94.99, 100.0, 200.0, 0.9499, "contention"),
        (95.0, 200.0, 100.0, 0.95, "loader"),
        (94.99, 200.0, 100.0, 0.9499, "contention"),
        (103.0, 100.0, 200.0, 1.03, "compute"),
        (103.1, 100.0, 200.0, 1.031, None),  # one of the figures is wrong
        (None, 100.0, 100.0, None, None),
    ],
)
def test_bound(
    rate: Any, compute: Any, loader: Any, efficiency: float | None, name: str | None
) -> None:
    expected = None if efficiency is None else pytest.approx(efficiency)
    assert bound(rate, compute, loader) == (expected, name)


def test_a_rate_that_begins_anew_is_of_what_follows() -> None:
    """Windows of smaller images are warm-up, and one that would be of both sizes is dropped."""
    meter, clock = meter_of()

    def train(epoch: int, rate: int, seconds: float) -> None:
        meter.resume(epoch)
        clock.sleep(seconds)
        meter.add(round(rate * seconds))
        meter.pause()

    for epoch in range(6):
        train(epoch, 100, 2.0)
    assert meter.has_measured(12.0) and not meter.has_measured(12.1)
    train(6, 100, 1.0)
    meter.begin_anew()
    assert not meter.has_measured(1.0) and meter.result()["steady"] is None
    for epoch in (7, 8):
        train(epoch, 40, 2.0)
    found = meter.result()
    assert (found["steady"], found["warmup_windows"]) == (40, 6)
    assert found["first_epoch"] == 100
