"""Where the time of a step goes, by marks on the device's own timeline (CUDA events; the host's clock on a CPU)."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

STEP = "step"  # in place of a mark


class Phases:
    """`mark(name)` ends the phase `name`; a phase began at the mark before it. Reading waits for nothing.

    data_wait is thus the time from the end of step i to the point at which the device has waited for the batch of step
    i + 1, whatever the cause: a slow loader, a late transfer, a busy host. The timeline is that of the stream which is current now.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.current_stream(device) if self._cuda else None  # to ask for it takes longer than to mark
        self._marks: deque[tuple[str, Any]] = deque()
        self._spans: deque[tuple[str, Any, Any]] = deque()
        self._spare: list[Any] = []
        self._totals: dict[str, float] = {}
        self._steps = 0
        self._current: dict[str, float] = {}
        self._done: list[dict[str, float]] = []
        self.steps: list[dict[str, float]] = []
        """Milliseconds of each phase, for each step that the last `read` covered. All but the transfer add up to its duration."""

    def mark(self, name: str) -> None:
        if not self._cuda:
            self._marks.append((name, time.perf_counter()))
            return
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._marks.append((name, event))

    def span(self, name: str, start: Any, end: Any) -> None:
        """Two timed events of another stream, such as a transfer."""
        self._spans.append((name, start, end))

    def step(self) -> None:
        """One step is complete: it is counted once the device has passed its last mark."""
        if self._marks:
            self._marks.append((STEP, None))
        else:
            self._steps += 1
        self._drain()

    def interrupt(self) -> None:
        """The time since the last mark belongs to no phase. What comes next is waiting for data, until the next mark."""
        self.mark("interrupted")

    def read(self) -> dict[str, float]:
        """Mean milliseconds a step of each phase since the last read, of the marks that the device has passed."""
        self._drain()
        means = {name: total / max(self._steps, 1) for name, total in self._totals.items() if name != "interrupted"}
        self._totals, self._steps = {}, 0
        self.steps, self._done = self._done, []
        return means

    def _drain(self) -> None:
        while len(self._marks) >= 2:
            if self._marks[1][0] == STEP:
                del self._marks[1]
                self._steps += 1
                self._done.append(self._current)
                self._current = {}
                continue
            if self._cuda and not self._marks[1][1].query():
                break
            (_, start), (name, end) = self._marks.popleft(), self._marks[0]
            if name != "interrupted":
                milliseconds = start.elapsed_time(end) if self._cuda else (end - start) * 1e3
                self._add(name, milliseconds)
            if self._cuda:
                self._spare.append(start)
        while self._spans and self._spans[0][2].query():
            name, start, end = self._spans.popleft()
            self._add(name, start.elapsed_time(end))

    def _add(self, name: str, milliseconds: float) -> None:
        for sums in (self._totals, self._current):
            sums[name] = sums.get(name, 0.0) + milliseconds
