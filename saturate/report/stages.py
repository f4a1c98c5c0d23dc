"""Which one stage of a run holds its rate back, and how much of the time it takes. Pure.

The loader's side is told by what its workers and its thread were busy with (loaders/_stages.py), the step's by
its phases (report/phases.py), and what is neither by the pauses of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saturate.contracts import RateWindow, StageSeconds
from saturate.report.advice import FEW_STEPS, FIRST_BATCHES, WORTH, look_up
from saturate.report.meter import added

WAITED = 0.05
"""Share of a step's time from which on waiting for data is what binds."""
PAUSED = 0.5
"""Share of the run's time from which on a pause of training, such as validation, is what binds."""
AHEAD = 0.5
"""Share of the time in which the loader's thread waits for the step to take a batch, from which on it is ahead."""
OUTSIDE = 0.25
"""Share of a step that ranks wait for each other's gradients, or the device for launches, from which on that
is what binds."""
LATER_MS = 1.0
"""Milliseconds a step by which a rank is later than the median of the others, from which on it is named."""
SLOWER = 0.9
"""Share of the fastest rank's clock below which a GPU's clock is named."""
NO_WORK = ("idle", "full")
"""Stages in which nothing is done: no rows have come yet, or the step has not taken a batch."""
OWN_WORKERS = ("idle", "read", "parse", "decode", "resize", "transforms")
OF_WORKERS = (*OWN_WORKERS, "dataset", "collate")
"""Stages that workers of our loaders have, and of any; the others are the thread's that fills slots."""
NOT_OF_A_STEP = ("data_wait", "transfer", "transforms")
"""Phases that are not the step's own."""
WAITS = ("data_wait", FIRST_BATCHES)
"""What binds where no stage of the loader is known to."""
NAMES = (*OWN_WORKERS, "plan", "workers", "clips", "dali", "finish", "full")
"""Stages of all our loaders."""

Stage = Mapping[str, float]
Binding = dict[str, Any]
"""Side, stage and share of what binds, or what is said of a rank."""


def of_windows(
    windows: Sequence[RateWindow], workers: int
) -> dict[str, dict[str, float]]:
    """Return each stage of a rank's loader in these windows: its share of the time, and a sample's ms.

    `share`: of the workers' time, or of the thread's. `ms` and `cpu_ms`: wall clock and CPU time a sample,
    all workers added up.
    """
    seconds = sum(window.seconds for window in windows)
    samples = sum(window.own_samples for window in windows)
    totals: dict[str, tuple[float, float]] = {}
    for window in windows:
        totals |= added(totals, window.stages, {})
    if not samples or not seconds:
        return {}
    share = shares(totals, seconds, workers)
    return {
        name: {
            "share": share[name],
            "ms": 1e3 * wall / samples,
            "cpu_ms": 1e3 * cpu / samples,
        }
        for name, (wall, cpu) in totals.items()
    }


def shares(stages: StageSeconds, seconds: float, workers: int) -> dict[str, float]:
    """Return the share of the time that each stage of a window has had: of the workers' time, or the thread's.

    The workers' is what their stages add up to, where that is more than `workers` would have had: a loader may
    have two kinds of them.
    """
    spent = sum(wall for name, (wall, _) in stages.items() if name in OF_WORKERS)
    workers_s = max(spent, seconds * max(workers, 1))
    return {
        # a wait that spans windows counts whole in the one that it ends in
        name: min(wall / (workers_s if name in OF_WORKERS else seconds), 1.0)
        for name, (wall, _) in stages.items()
    }


def binds(summary: Mapping[str, Any]) -> Binding | None:
    """Return the stage that binds: its `side` (loader, step, pause), `stage` and `share`; None = unknown.

    The share of a loader's stage is that of the workers' or the thread's time (of WAITS: the steps'), that of a
    phase of the step's time, that of a pause of the run's. The side is that of the `bound`, where one of the two
    ceilings is.
    """
    pauses = dict(summary.get("pauses") or {})
    pauses.pop("ceilings", None)  # once a run, however long it is
    # `paused_s` has the start of the run too, and lacks what comes after the last step
    whole = (look_up(summary, "rate.active_s") or 0.0) + sum(pauses.values())
    longest = max(pauses, key=pauses.__getitem__, default=None)
    if longest and whole and pauses[longest] > PAUSED * whole:
        return _binding("pause", longest, pauses[longest] / whole)
    wait = look_up(summary, "data_wait.share")
    if wait is None:
        return None
    bound = summary.get("bound")
    if bound == "compute" or summary.get("loader") == "synthetic":
        return _of_the_step(summary)
    slow = summary.get("slowest_rank") or {}
    step_ms = look_up(summary, "step_ms.p50") or 0.0
    # the others wait for it in their backward pass
    if "share" in slow and slow["ms"] > WAITED * step_ms:
        return _binding("loader", slow["why"], slow["share"])
    ahead = look_up(summary, "stages.full.share") or 0.0
    at_its_ceiling = bound in ("loader", "storage")
    # short epochs wait at their beginning, unless the loader is late in all of the epoch
    is_late = at_its_ceiling or (bound is None and ahead <= AHEAD)
    few = (summary.get("epoch_steps") or FEW_STEPS) < FEW_STEPS and wait > WORTH
    if few and not (summary.get("stages") and is_late):
        return _binding("loader", FIRST_BATCHES, wait)
    if not at_its_ceiling and (ahead > AHEAD or wait < WAITED):
        return _of_the_step(summary)
    return _of_the_loader(summary.get("stages") or {}) or _binding(
        "loader", WAITS[0], wait
    )


def _of_the_step(summary: Mapping[str, Any]) -> Binding | None:
    split = summary.get("split_ms") or {}
    phases = {name: split[name] for name in split if name not in NOT_OF_A_STEP}
    whole = sum(phases.values())
    if not whole:
        return None
    # of the step alone: without its kernels what is left is the host's, and of the rest some is waited for
    step_ms = look_up(summary, "ceiling.compute.step_ms") or 0.0
    kernels = look_up(summary, "ceiling.compute.kernel_ms") or step_ms
    shared = look_up(summary, "ceiling.compute.all_reduce_ms") or 0.0
    for stage, ms in (("all-reduce", shared), ("launch", step_ms - kernels)):
        if ms > OUTSIDE * step_ms:
            return _binding("step", stage, ms / step_ms)
    # inside of a graph phases cannot be told apart: those of an eager step stand for them
    if "graph" in phases and summary.get("warm_up_ms"):
        phases = dict(summary["warm_up_ms"])
        whole = sum(phases.values())
    longest = max(phases, key=phases.__getitem__)
    return _binding("step", longest, phases[longest] / whole)


def _of_the_loader(stages: Mapping[str, Stage]) -> Binding | None:
    """Return the loader's stage that holds a batch up; None where it has told none."""
    thread: dict[str, float] = {}
    workers: dict[str, float] = {}
    for name, stage in stages.items():
        if name not in NO_WORK:
            (workers if name in OF_WORKERS else thread)[name] = stage["share"]
    if not thread:
        return None
    busiest = max(thread, key=thread.__getitem__)
    if busiest != "workers" or not workers:
        return _binding("loader", busiest, thread[busiest])
    longest = max(workers, key=workers.__getitem__)
    return _binding("loader", longest, workers[longest])


def _binding(side: str, stage: str, share: float) -> Binding:
    return {"side": side, "stage": stage, "share": min(share, 1.0)}


def slowest(of_ranks: Sequence[Mapping[str, Any]]) -> Binding | None:
    """Return the `rank` that the others wait for, and `why`; None for one rank, or where all are alike.

    Each rank gives `data_wait` and `forward`, ms a step, `sm_mhz` of its GPU, and its `stages`. All ranks wait
    for the last one in the backward pass, so that only what comes before it tells them apart. `why` is the
    loader's stage, whose `share` of that rank's time is told too, "clock", or "forward".
    """
    for name in ("data_wait", "forward"):
        rank, more = _largest([one.get(name) or 0.0 for one in of_ranks])
        if more > LATER_MS:
            why = _grown(rank, of_ranks) if name == "data_wait" else name
            if name == "forward" and _slow_clock(of_ranks) == rank:
                why = "clock"
            stage = of_ranks[rank]["stages"].get(why, {})
            share = {"share": stage["share"]} if stage else {}
            return {"rank": rank, "why": why, "ms": more, **share}
    slow = _slow_clock(of_ranks)
    return None if slow is None else {"rank": slow, "why": "clock", "ms": None}


def _largest(values: Sequence[float]) -> tuple[int, float]:
    """Return the place of the largest, and how much larger it is than the median of the others."""
    place = max(range(len(values)), key=values.__getitem__)
    others = sorted([*values[:place], *values[place + 1 :]]) or [values[place]]
    usual = others[len(others) // 2]
    # a share as well: long steps differ by some milliseconds anyway
    more = values[place] - usual
    return place, more if more > 0.2 * values[place] else 0.0


def _slow_clock(of_ranks: Sequence[Mapping[str, Any]]) -> int | None:
    clocks = [one.get("sm_mhz") for one in of_ranks]
    known = [clock for clock in clocks if clock]
    if not known or min(known) > SLOWER * max(known):
        return None
    return clocks.index(min(known))


def _grown(rank: int, of_ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return the loader's stage that takes this rank the most time more than the others, a sample."""
    own = of_ranks[rank]["stages"]
    others = [one["stages"] for number, one in enumerate(of_ranks) if number != rank]
    more = {}
    for name in own.keys() - {*NO_WORK, "workers"}:
        usual = sorted(other.get(name, {"ms": 0.0})["ms"] for other in others)
        more[name] = own[name]["ms"] - usual[len(usual) // 2]
    return max(more, key=more.__getitem__, default="data_wait")
