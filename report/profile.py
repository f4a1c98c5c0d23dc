"""A torch.profiler trace of ten steps, after a few that are not recorded, in <run folder>/profile.

Must not know: what a step does; the caller says `step()` after each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch

from report.record import replace, unwritable

SKIPPED, WARMUP, STEPS = 5, 3, 10  # buffers and autotuning settle; the profiler's own start-up; recorded


class Steps(Protocol):
    def step(self) -> None:
        """One training step is over."""


class _Off:
    def step(self) -> None:
        pass


@contextlib.contextmanager
def profiler(folder: Path, *, enabled: bool, rank: int = 0, warn: Callable[[str], None]) -> Iterator[Steps]:
    """Writes trace-rank<r>.json.gz (chrome://tracing, ui.perfetto.dev) and operators-rank<r>.txt, a table of the costliest operators.

    `warn` gets a line when there were too few steps for a whole trace.
    """
    if not enabled:
        yield _Off()
        return
    cuda = torch.cuda.is_available()

    def write(profile: torch.profiler.profile) -> None:
        target = folder / "profile"
        table = profile.key_averages().table(sort_by=f"self_{'cuda' if cuda else 'cpu'}_time_total", row_limit=40)
        try:
            target.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(target / f"trace-rank{rank}.json.gz"))
        except OSError as error:
            raise unwritable(folder, error) from None
        replace(target / f"operators-rank{rank}.txt", table.encode())

    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if cuda else [])]
    schedule = torch.profiler.schedule(skip_first=SKIPPED, wait=0, warmup=WARMUP, active=STEPS, repeat=1)
    # acc_events: with one cycle nothing accumulates, and torch 2.11 warns without it
    with torch.profiler.profile(
        activities=activities, schedule=schedule, on_trace_ready=write, record_shapes=True, acc_events=True
    ) as profile:
        yield profile
        steps = profile.step_num
    if steps < SKIPPED + WARMUP + STEPS:
        said = "cut short" if steps >= SKIPPED + WARMUP else "not written"
        warn(f"--profile: the trace is {said}: it takes {SKIPPED + WARMUP + STEPS} steps and there were {steps}; more --steps or --epochs")
