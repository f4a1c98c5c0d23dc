"""A torch.profiler trace of ten steps, after a few that are not recorded, in <run folder>/profile.

Must not know: what a step does; the caller calls what is yielded after each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from saturate.contracts import do_nothing
from saturate.report.record import replace_in_time, unwritable

SKIPPED = 5
"""Steps in which buffers and autotuning settle."""
WARMUP = 3
"""Steps of the profiler's own start-up."""
STEPS = 10
"""Steps that are recorded."""


@contextlib.contextmanager
def profiler(
    folder: Path, *, enabled: bool, rank: int = 0, warn: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Write trace-rank<r>.json.gz (chrome://tracing, ui.perfetto.dev) and operators-rank<r>.txt, the
    costliest operators.

    `warn` gets a line when there were too few steps for a whole trace.
    """
    if not enabled:
        yield do_nothing
        return
    cuda = torch.cuda.is_available()

    def write(profile: torch.profiler.profile) -> None:
        target = folder / "profile"
        most_time = f"self_{'cuda' if cuda else 'cpu'}_time_total"
        table = profile.key_averages().table(sort_by=most_time, row_limit=40)
        try:
            target.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(target / f"trace-rank{rank}.json.gz"))
        except OSError as error:  # a run is worth more than its trace
            warn(f"--profile: {unwritable(folder, error)}")
            return
        replace_in_time(target / f"operators-rank{rank}.txt", table.encode())

    activities = [torch.profiler.ProfilerActivity.CPU]
    if cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(
        skip_first=SKIPPED, wait=0, warmup=WARMUP, active=STEPS, repeat=1
    )
    # acc_events: with one cycle nothing accumulates, and torch 2.11 warns without it
    with torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        on_trace_ready=write,
        record_shapes=True,
        acc_events=True,
    ) as profile:
        yield profile.step
        steps = profile.step_num
    needed = SKIPPED + WARMUP + STEPS
    if steps < needed:
        outcome = "cut short" if steps >= SKIPPED + WARMUP else "not written"
        why = f"it takes {needed} steps and there were {steps}"
        warn(f"--profile: the trace is {outcome}: {why}; more --steps or --epochs")
