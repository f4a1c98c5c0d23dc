"""The choice of --loader auto: each loader that can run here feeds the run's own step for some seconds.

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
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from saturate.contracts import Batch, Loader, Plan, UserError
from saturate.engine.distributed import ProcessWorld
from saturate.engine.step import Step
from saturate.settings.config import FACTS_OF
from saturate.system import storage
from saturate.system.resources import cores

SECONDS = 3.0
"""Seconds that a loader is measured for."""
WINDOWS = 5
"""Parts of these seconds, whose spread is told."""
WARM_UP_S = 1.0
"""Seconds of steps before them, at least."""
LONGEST_WARM_UP_S = 4.0
"""Seconds after which batches that were ready beforehand may count: steps as slow as that hardly wait."""
EACH_S = 6.0
"""Seconds that a loader takes in all, opened and closed too, mostly."""
ALIKE = 0.04
"""Loaders whose rates are within this share of the best count as equally fast, and the first in the order of
preference is taken: a loader that runs near its limit keeps up for seconds and falls behind later."""
ALL_S = 40.0
"""Seconds for all loaders: none begins that would not be done by then, if it took as long as the slowest."""
SHORT = "short"
"""How a loader is chosen where the whole training is shorter than measuring all of them."""
LR = 1e-8
"""Learning rate of these steps: so low that batches that come again and again hardly move the weights."""

Measured = dict[str, dict[str, Any]]
"""Loader -> its rate, min and max in samples/s of all ranks, or `why` there is none."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The loader of a run, and how it was found."""

    loader: str
    how: str = "given"  # or the only one, measured, kept, checkpoint, short
    measured: Measured = field(default_factory=dict)
    seconds: float = 0.0  # that measuring took in this run

    def message(self, unit: str) -> str:
        """Say what was measured of each loader, of the chosen one first; "" where nothing was."""
        if not self.measured:
            return ""
        names = sorted(self.measured, key=lambda name: name != self.loader)
        ran = {name: _line(self.measured[name]) for name in names}
        rates = {
            n: figures["rate"]
            for n, figures in self.measured.items()
            if "rate" in figures
        }
        first = ", ".join(f"{name} {ran.pop(name)}" for name in names if name in rates)
        parts = [f"{first} {unit} with the step"]
        if rates[self.loader] < max(rates.values()):
            parts.append(f"rates within {ALIKE:.0%} count as equal")
        return "; ".join([*parts, *(f"{name} {why}" for name, why in ran.items())])

    def facts(self) -> dict[str, Any]:
        """Return what a summary says of it; `loader_auto` is None where nothing was to be found out."""
        auto = None
        if self.measured or self.how in ("checkpoint", SHORT):
            seconds = round(self.seconds, 1)
            auto = {"how": self.how, "seconds": seconds, "measured": self.measured}
        return {"loader": self.loader, "loader_auto": auto}


def _line(figures: Mapping[str, Any]) -> str:
    """Return what was measured of a loader, as a message has it."""
    if "why" in figures:
        return str(figures["why"])
    return f"{figures['rate']:,.0f} ({figures['min']:,.0f} to {figures['max']:,.0f})"


def timed(flat: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the settings of `flat` that may change the rate of step or loader: an answer holds for them.

    And `epoch`, the one to measure in: where images grow, the first of the size that the run ends with.
    """
    last = max(epoch for epoch in plan.first_epochs if epoch < flat["epochs"])
    return {"epoch": last} | {
        name: value for name, value in flat.items() if FACTS_OF[name].changes_rate
    }


class Answers:
    """The answers that a machine keeps, a small JSON file each below `folder`.

    An answer holds for the same machine, ranks and settings (`conditions`), and for nothing else.
    """

    def __init__(
        self, folder: Path, conditions: Mapping[str, Any], world: ProcessWorld
    ) -> None:
        on_gpu = world.device.type == "cuda"
        self._conditions = {
            "host": socket.gethostname(),
            "gpu": torch.cuda.get_device_name(world.device) if on_gpu else None,
            "cores": cores(),
            "ranks": world.size,
            "torch": str(torch.__version__),
            **conditions,
        }
        text = json.dumps(self._conditions, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._path = folder / "fastest-loaders" / f"{digest[:24]}.json"

    def read(self) -> Choice | None:
        """Return the answer that is kept; None where there is none, or a damaged one."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            answer = Choice(
                loader=stored["loader"], how="kept", measured=stored["measured"]
            )
            answer.message("")  # raises where a figure is missing, or is none
            return answer
        return None

    def write(self, loader: str, measured: Measured) -> None:
        """Keep an answer, as one act; where the folder cannot be written it is found anew next time."""
        content = {"loader": loader, "measured": measured, "of": self._conditions}
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(f".{os.getpid()}")
            text = json.dumps(content, indent=1).encode()
            storage.replace(self._path, new, lambda file: file.write(text))


def choose(
    names: Sequence[str],
    open_loader: Callable[[str], Loader],
    *,
    step: Step,
    samples: int,
    epoch: int,
    run_steps: float,
    answers: Answers,
    before: object = None,
    info: Callable[[str], None],
) -> Choice:
    """Return the fastest of the loaders `names`, which this rank can run. Every rank calls it.

    Where several are about as fast, it is the first of them in the order of `names`. `samples`: those of
    a step, of all ranks. `epoch`: the one whose batches are measured. `run_steps`: those that the run takes; where
    they take less time than measuring all loaders, it is the first one that runs. `before`: the loader of the
    checkpoint that is resumed, which stays. Nothing is measured where one is left, or where an answer is kept. Whatever
    the steps change is put back bit for bit. Raises UserError where none of them runs.
    """
    world = step.world
    everyones = world.gather(list(names))
    common = [name for name in names if all(name in usable for usable in everyones)]
    # without a common one each rank takes its likeliest, and none measures alone
    names = common or names[:1]
    if len(names) == 1:
        return Choice(loader=names[0])
    if before in names:
        return Choice(loader=str(before), how="checkpoint")
    stored: Choice | None = world.gather(answers.read())[0]
    # another loader may have been installed since
    if stored is not None and stored.measured.keys() == {*names}:
        return stored
    listed = ", ".join(names)
    info(f"--loader auto: measuring {listed}, {SECONDS:g} s each beside the step")
    began = time.perf_counter()
    measured: Measured = {}
    slowest_s = 0.0
    with step.preserved():
        for name in names:
            at = _agreed(time.perf_counter() - began, world)
            if at + slowest_s > ALL_S:
                measured[name] = {"why": f"was not measured: {ALL_S:g} s were over"}
                continue
            steps = math.inf if measured else run_steps / len(names)
            measured[name] = _measured(
                partial(open_loader, name), step, samples, epoch, steps
            )
            if SHORT in measured[name]:
                took = time.perf_counter() - began
                return Choice(loader=name, how=SHORT, seconds=took)
            slowest_s = max(slowest_s, _agreed(time.perf_counter() - began, world) - at)
    rates = {
        name: figures["rate"] for name, figures in measured.items() if "rate" in figures
    }
    if not rates:
        why = "; ".join(
            f"{name} {_line(figures)}" for name, figures in measured.items()
        )
        raise UserError(f"--loader auto: {why}")
    enough = (1 - ALIKE) * max(rates.values())
    fastest = next(name for name in names if rates.get(name, 0.0) >= enough)
    if world.rank == 0:
        answers.write(fastest, measured)
    return Choice(
        loader=fastest,
        how="measured",
        measured=measured,
        seconds=time.perf_counter() - began,
    )


def _agreed(seconds: float, world: ProcessWorld) -> float:
    """Return rank 0's seconds: what ranks decide by them, they decide alike."""
    return float(world.gather(seconds)[0])


def _measured(
    open_loader: Callable[[], Loader],
    step: Step,
    samples: int,
    epoch: int,
    run_steps: float,
) -> dict[str, Any]:
    """Return a loader's rates as _rates does; or `why` it cannot run here."""
    world = step.world
    with ExitStack() as stack:
        if world.device.type == "cuda":
            # the next loader gets the memory that this one had
            stack.callback(torch.cuda.empty_cache)
        why = ""
        first: list[Batch] = []
        stack.callback(first.clear)
        try:
            loader = stack.enter_context(closing(open_loader()))
            batches = stack.enter_context(closing(_endless(loader, epoch)))
            first.append(next(batches))  # some take their memory only now
        except UserError as error:
            why = f"cannot run here: {error}"
        # a rank that cannot would leave the others waiting in their steps
        if why := next(filter(None, world.gather(why)), ""):
            return {"why": why}
        ready = loader.in_flight
        chained = itertools.chain(first, batches)
        return _rates(step, chained, ready, samples, run_steps)


def _rates(
    step: Step, batches: Iterator[Batch], ready: int, samples: int, run_steps: float
) -> dict[str, Any]:
    """Measure steps on these batches, of which up to `ready` may be there before anyone asks; or say SHORT where
    `run_steps` take less time than that.
    """
    world = step.world

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
        # a clock may stand for the first step
        a_second = math.ceil(count / max(last_s, 1e-4))
        count = min(2 * count, a_second)
    if run_steps < a_second * EACH_S:
        return {SHORT: True}
    count = max(round(a_second * SECONDS / WINDOWS), 1)
    windows: list[float] = []
    while sum(windows) < SECONDS:
        windows.append(seconds_of(count))
    in_window = samples * count
    # the mean of all seconds: small sets begin anew within some windows, and workers deliver in bursts
    return {
        "rate": round(in_window * len(windows) / sum(windows), 1),
        "min": round(in_window / max(windows), 1),
        "max": round(in_window / min(windows), 1),
    }


def _endless(loader: Loader, first: int) -> Generator[Batch]:
    """Yield the batches of one epoch after the other from `first` on, as training takes them."""
    for epoch in itertools.count(first):
        count = 0
        for count, batch in enumerate(loader.batches(epoch, 0), start=1):  # noqa: B007
            yield batch
        if not count:
            raise UserError("it gives no batch")
