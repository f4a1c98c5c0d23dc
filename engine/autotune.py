"""Which loader is the fastest here: each that can run feeds the run's own step for some seconds.

    an answer is kept  -> that loader
    else               -> open, warm up, measure, close; one loader after the other, all ranks together

Must not know a loader by name.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from contracts import Batch, Loader, Plan, UserError
from engine.distributed import ProcessWorld
from engine.step import Step
from settings.config import FACTS
from system.resources import cores

SECONDS = 3.0
"""Seconds that a loader is measured for."""
WINDOWS = 5
"""Parts of these seconds, whose spread is told."""
WARM_UP_S = 1.0
"""Seconds of steps before them, at least."""
LONGEST_WARM_UP_S = 4.0
"""Seconds after which batches that were ready beforehand may count: steps as slow as that hardly wait."""
ALIKE = 0.04
"""Loaders whose rates are within this share of the best count as equally fast, and the first in the order of
preference is taken: a loader that runs near its limit keeps up for seconds and falls behind later."""
ALL_S = 40.0
"""Seconds for all loaders: none begins that would not be done by then, if it took as long as the slowest."""
LR = 1e-8
"""Learning rate of these steps: so low that batches that come again and again hardly move the weights."""

Open = Callable[[str], Loader]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The loader of a run, and how it was found."""

    loader: str
    how: str = "given"  # or the only one, measured, kept, checkpoint
    measured: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # name -> rate, min, max; or why
    seconds: float = 0.0  # that measuring took in this run

    def told(self, unit: str) -> tuple[str, ...]:
        """Return a line for each loader that was measured, the chosen one's first."""
        if self.how == "checkpoint":
            return (f"--loader auto: {self.loader}, as in the checkpoint",)
        before = (
            "--loader auto, as measured before"
            if self.how == "kept"
            else "--loader auto"
        )
        names = sorted(self.measured, key=lambda name: name != self.loader)
        lines = [
            f"{before}: {_line(name, self.measured[name], unit)}" for name in names
        ]
        rates = _rates_of(self.measured)
        if rates and rates[self.loader] < max(rates.values()):
            lines[0] += (
                f", taken: rates within {ALIKE:.0%} count as equal, and it comes first"
            )
        return tuple(lines)

    def facts(self) -> dict[str, Any]:
        """Return what a summary says of it; `loader_auto` is None where nothing was to be found out."""
        if not self.measured and self.how != "checkpoint":
            return {"loader": self.loader, "loader_auto": None}
        found = {
            "how": self.how,
            "seconds": round(self.seconds, 1),
            "measured": dict(self.measured),
        }
        return {"loader": self.loader, "loader_auto": found}


def _rates_of(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the rates of the loaders that have one."""
    return {name: its["rate"] for name, its in measured.items() if "rate" in its}


def _line(name: str, found: Mapping[str, Any], unit: str) -> str:
    if "why" in found:
        return f"{name} {found['why']}"
    return f"{name} {found['rate']:,.0f} {unit} with the step ({found['min']:,.0f} to {found['max']:,.0f})"


def timed(flat: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the settings of `flat` that may change the rate of step or loader: an answer holds for them.

    And `epoch`, the one to measure in: where images grow, the first of the size that the run ends with.
    """
    last = max(epoch for epoch in plan.first_epochs if epoch < flat["epochs"])
    return {"epoch": last} | {
        name: value for name, value in flat.items() if FACTS[name].changes_rate
    }


class Answers:
    """The answers that a machine keeps, a small JSON file each below `folder`.

    An answer holds for the same machine, ranks and settings (`of`), and for nothing else.
    """

    def __init__(
        self, folder: Path, of: Mapping[str, Any], world: ProcessWorld
    ) -> None:
        gpu = (
            torch.cuda.get_device_name(world.device)
            if world.device.type == "cuda"
            else None
        )
        machine = {
            "host": socket.gethostname(),
            "gpu": gpu,
            "cores": cores(),
            "ranks": world.size,
        }
        self._of = {**machine, "torch": str(torch.__version__), **of}
        digest = hashlib.sha256(
            json.dumps(self._of, sort_keys=True).encode()
        ).hexdigest()
        self._path = folder / "fastest-loaders" / f"{digest[:24]}.json"

    def read(self) -> Choice | None:
        """Return the answer that is kept; None where there is none, or a damaged one."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["of"] == self._of:
                answer = Choice(
                    loader=str(kept["loader"]),
                    how="kept",
                    measured=dict(kept["measured"]),
                )
                answer.told("")  # raises where a figure is missing, or is none
                return answer
        return None

    def write(self, loader: str, measured: Mapping[str, Any]) -> None:
        """Keep an answer, as one act; where the folder cannot be written it is found anew next time."""
        content = json.dumps(
            {"loader": loader, "measured": measured, "of": self._of}, indent=1
        )
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_text(content, encoding="utf-8")
            os.replace(new, self._path)


def choose(
    names: Sequence[str],
    open_loader: Open,
    *,
    step: Step,
    samples: int,
    epoch: int,
    answers: Answers,
    before: object = None,
    say: Callable[[str], None],
) -> Choice:
    """Return the fastest of the loaders `names`, which this rank can run. Every rank calls it.

    Where several are about as fast, it is the first of them in the order of `names`. `samples`: those of
    a step, of all ranks. `epoch`: the one whose batches are measured. `before`: the loader of the checkpoint
    that is resumed, which stays. Nothing is measured where one is left, or where an answer is kept. Whatever
    the steps change is put back bit for bit. Raises UserError where none of them runs.
    """
    world = step.world
    everyones = world.gather(list(names))
    names = [name for name in names if all(name in its for its in everyones)] or list(
        names
    )
    if len(names) == 1:
        return Choice(loader=names[0])
    if before in names:
        return Choice(loader=str(before), how="checkpoint")
    kept = world.gather(answers.read())[0]
    if kept is not None and kept.loader in names:
        return kept
    say(
        f"--loader auto: measuring {', '.join(names)}, {SECONDS:g} s each beside the step"
    )
    began = time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    slowest = 0.0
    with step.preserved():
        for name in names:
            at = _agreed(time.perf_counter() - began, world)
            if at + slowest > ALL_S:
                found[name] = {"why": f"was not measured: {ALL_S:g} s were over"}
                continue
            found[name] = _measured(
                name, open_loader, step=step, samples=samples, epoch=epoch, world=world
            )
            slowest = max(slowest, _agreed(time.perf_counter() - began, world) - at)
    rates = _rates_of(found)
    if not rates:
        raise UserError(
            f"--loader auto: {'; '.join(_line(name, its, '') for name, its in found.items())}"
        )
    enough = (1 - ALIKE) * max(rates.values())
    fastest = next(name for name in names if rates.get(name, 0.0) >= enough)
    if world.rank == 0:
        answers.write(fastest, found)
    return Choice(
        loader=fastest,
        how="measured",
        measured=found,
        seconds=time.perf_counter() - began,
    )


def _agreed(seconds: float, world: ProcessWorld) -> float:
    """Return rank 0's seconds: what ranks decide by them, they decide alike."""
    return float(world.gather(seconds)[0])


def _measured(
    name: str,
    open_loader: Open,
    *,
    step: Step,
    samples: int,
    epoch: int,
    world: ProcessWorld,
) -> dict[str, Any]:
    """Return samples/s of all ranks and their spread as rate, min and max; or `why` it cannot run here."""
    loader = None
    batches = None
    first: Batch | None = None
    why = ""
    try:
        try:
            loader = open_loader(name)
            batches = _endless(loader, epoch)
            first = next(batches)  # some take their memory only now
        except UserError as error:
            why = f"cannot run here: {error}"
        # a rank that cannot would leave the others waiting in their steps
        if why := next(filter(None, world.gather(why)), ""):
            return {"why": why}
        assert loader is not None and batches is not None and first is not None
        return _rates(
            step,
            itertools.chain([first], batches),
            loader.in_flight,
            samples=samples,
            world=world,
        )
    finally:
        del first
        if batches is not None:
            batches.close()
        if loader is not None:
            loader.close()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()  # what this one had is the next one's


def _rates(
    step: Step,
    batches: Iterator[Batch],
    ready: int,
    *,
    samples: int,
    world: ProcessWorld,
) -> dict[str, Any]:
    """Measure steps on these batches, of which up to `ready` may be there before anyone asks."""

    def seconds_of(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            step(batches, lr=LR, epoch=0, position=0)
            step.phases.step()
        world.synchronise()
        seconds = _agreed(time.perf_counter() - began, world)
        step.phases.interrupt()
        step.phases.read()  # no step of the training took these times
        return seconds

    warm_s = 0.0
    taken = 0
    count = 1
    while warm_s < WARM_UP_S or (
        taken * step.accumulate < ready and warm_s < LONGEST_WARM_UP_S
    ):
        last_s = seconds_of(count)
        warm_s += last_s
        taken += count
        a_second = math.ceil(
            count / max(last_s, 1e-4)
        )  # a clock may stand for the first step
        count = min(2 * count, a_second)
    count = max(round(a_second * SECONDS / WINDOWS), 1)
    windows: list[float] = []
    while sum(windows) < SECONDS:
        windows.append(seconds_of(count))
    rates = [samples * count / seconds for seconds in windows]
    # of all seconds: small sets begin anew within some windows, and workers deliver in bursts
    rate = samples * count * len(windows) / sum(windows)
    return {
        "rate": round(rate, 1),
        "min": round(min(rates), 1),
        "max": round(max(rates), 1),
    }


def _endless(loader: Loader, first: int) -> Generator[Batch]:
    """Yield the batches of one epoch after the other from `first` on, as training takes them."""
    for epoch in itertools.count(first):
        empty = True
        for batch in loader.batches(epoch, 0):
            empty = False
            yield batch
        if empty:
            raise UserError("it gives no batch")
