"""The phases of a step add up, and what lies between two epochs belongs to none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from saturate.report import phases
from saturate.report.phases import Phases


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, as a list of one."""
    now = [100.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def measured(clock: list[float]) -> Phases:
    """Return those of a run that has just begun."""
    found = Phases(torch.device("cpu"))
    clock[0] += 5.0
    found.interrupt()
    return found


def step(measured: Phases, clock: list[float], durations: dict[str, float]) -> None:
    for name, seconds in durations.items():
        clock[0] += seconds
        measured.mark(name)
    measured.step()


DURATIONS = {"data_wait": 0.010, "forward": 0.020, "backward": 0.040, "update": 0.005}


def test_the_time_of_each_step(measured: Phases, clock: list[float]) -> None:
    for slower in (1, 2, 4):
        step(
            measured,
            clock,
            {name: slower * seconds for name, seconds in DURATIONS.items()},
        )
    measured.read()
    assert [sum(step.values()) for step in measured.steps] == pytest.approx(
        [75.0, 150.0, 300.0]
    )
    assert [step["forward"] for step in measured.steps] == pytest.approx(
        [20.0, 40.0, 80.0]
    )
    measured.read()
    assert measured.steps == []


def test_data_wait_begins_at_the_end_of_the_step_before(
    measured: Phases, clock: list[float]
) -> None:
    """Also what the host does between two steps, such as logging; but no interruption, such as validation."""
    step(measured, clock, DURATIONS)
    measured.read()
    clock[0] += 0.5
    step(measured, clock, DURATIONS)
    assert measured.read()["data_wait"] == pytest.approx(510.0)
    clock[0] += 60.0
    measured.interrupt()
    # two micro-batches, which are summed
    for name in ("data_wait", "forward", "backward") * 2 + ("update",):
        clock[0] += 0.010
        measured.mark(name)
    measured.step()
    twice = {"data_wait": 20.0, "forward": 20.0, "backward": 20.0, "update": 10.0}
    assert measured.read() == pytest.approx(twice)


class Event:
    """A CUDA event on a timeline of whole milliseconds; the device has passed those below `reached`."""

    ticks = itertools.count()
    reached = 0
    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        Event.made += 1

    def record(self, stream: str = "current") -> None:
        assert stream == "current"
        self.at = next(Event.ticks)

    def query(self) -> bool:
        return self.at < Event.reached

    def elapsed_time(self, end: Event) -> float:
        assert self.query() and end.query(), "reading must wait for nothing"
        return float(end.at - self.at)


def test_on_a_device_only_what_it_has_passed_is_read_and_events_are_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(Event, "ticks", itertools.count())
    monkeypatch.setattr(Event, "made", 0)
    monkeypatch.setattr(Event, "reached", 0)
    measured = Phases(torch.device("cuda"))

    def one_step() -> None:
        for name in DURATIONS:
            measured.mark(name)
        start: Any = Event(enable_timing=True)
        end: Any = Event(enable_timing=True)
        start.record()
        end.record()
        measured.span("transfer", start, end)
        measured.step()

    measured.interrupt()
    one_step()
    assert measured.read() == {}, "the device has not begun"
    monkeypatch.setattr(Event, "reached", 1000)
    one_step()
    found = measured.read()
    # two steps were on the device since the last read, of one of them the host had known before
    assert set(found) == {*DURATIONS, "transfer"}
    before = Event.made
    for _ in range(50):
        one_step()
    assert Event.made - before == 100, (
        "marks take old events, only this test's own transfers make new ones"
    )
