"""The time of each phase of a step, by marks on the device's own timeline (CUDA events; the host's clock on a
CPU).
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

Marks = list[tuple[str, Any]]
"""Phases and when they ended: a CUDA event, or seconds."""
NO_PHASE = "interrupted"
"""Ends a time that belongs to no phase."""


class Phases:
    """A contracts.Phases: `mark(name)` ends the phase `name`, which began at the mark before it. Reading
    waits for nothing, and is of whole steps.

    data_wait is thus the time from the end of step i to the point at which the device has waited for the
    batch of step i + 1, whatever the cause: a slow loader, a late transfer, a busy host. The timeline is that
    of the stream which is current when this is made.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        # asked for once: that takes longer than to mark
        self._stream = torch.cuda.current_stream(device) if self._cuda else None
        self._marks: Marks = []  # of the step under way
        # milliseconds measured elsewhere, of the step under way
        self._took: dict[str, float] = {}
        # both of each step that was not read yet
        self._waiting: deque[tuple[Marks, dict[str, float]]] = deque()
        # the last mark that was read, at which the next phase begins
        self._last: Any = None
        self._spans: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._spare: list[torch.cuda.Event] = []
        self._totals: dict[str, float] = {}
        self._current: dict[str, float] = {}
        self._done: list[dict[str, float]] = []
        self.steps: list[dict[str, float]] = []
        """Milliseconds of each phase, for each step that the last `read` covered. All but those of
        report.summary.BESIDE add up to its duration.
        """

    def mark(self, name: str) -> None:
        """End the phase `name`."""
        if not self._cuda:
            self._marks.append((name, time.perf_counter()))
            return
        # used again once read: a long run would make millions
        event = (
            self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        )
        event.record(self._stream)
        self._marks.append((name, event))

    def span(self, name: str, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        """Add the time between two timed events of another stream, such as a transfer."""
        self._spans.append((name, start, end))

    def took(self, name: str, milliseconds: float) -> None:
        """Add a time of the step under way that was measured elsewhere, such as in workers."""
        self._took[name] = self._took.get(name, 0.0) + milliseconds

    def step(self) -> None:
        """Count one step, which is complete, once the device has passed its last mark."""
        self._waiting.append((self._marks, self._took))
        self._marks = []
        self._took = {}
        self._drain()

    def interrupt(self) -> None:
        """Leave out the time since the last mark: it belongs to no phase. What comes next is waiting for
        data.
        """
        self.mark(NO_PHASE)

    def read(self) -> dict[str, float]:
        """Return mean milliseconds a step of each phase since the last read, of the steps that the device has
        passed.
        """
        self._drain()
        means = {
            name: total / max(len(self._done), 1)
            for name, total in self._totals.items()
        }
        self._totals = {}
        self.steps = self._done
        self._done = []
        return means

    def _drain(self) -> None:
        while self._waiting and self._is_passed(self._waiting[0][0]):
            marks, took = self._waiting.popleft()
            for name, end in marks:
                self._end(name, end)
            for name, milliseconds in took.items():
                self._add(name, milliseconds)
            self._done.append(self._current)
            self._current = {}
        while self._spans and self._spans[0][2].query():
            name, start, end = self._spans.popleft()
            self._add(name, start.elapsed_time(end))

    def _is_passed(self, marks: Marks) -> bool:
        """Return whether the device has passed them; waiting for it would hold the host up."""
        # one question a step: marks lie behind each other on one stream
        return not self._cuda or not marks or bool(marks[-1][1].query())

    def _end(self, name: str, end: Any) -> None:
        start = self._last
        self._last = end
        if start is None:  # the first mark of all only begins
            return
        if name != NO_PHASE:
            self._add(
                name, start.elapsed_time(end) if self._cuda else (end - start) * 1e3
            )
        if self._cuda:
            self._spare.append(start)

    def _add(self, name: str, milliseconds: float) -> None:
        for sums in (self._totals, self._current):
            sums[name] = sums.get(name, 0.0) + milliseconds
