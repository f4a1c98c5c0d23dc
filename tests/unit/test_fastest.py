"""--loader auto: the fastest of the loaders is found, kept and agreed on, and the step is as it was."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from saturate import loaders
from saturate.contracts import Batch, UserError
from saturate.engine import autotune
from saturate.engine.autotune import Answers, Choice
from saturate.report import facts
from saturate.report.phases import Phases
from saturate.run.build import may_open
from saturate.settings.config import parse
from saturate.settings.optimisation import Optimisation
from saturate.tasks import kind_of
from saturate.tasks.classification import Classification
from tests.unit.steps import composed
from tests.unit.test_ceilings import SIZE, batch_of, net
from tests.unit.test_meter import Clock, Threads, alone, on_ranks

SECONDS = {"a": 0.2, "b": 0.1, "c": 0.4}
"""Loader -> what its batch takes."""


class Opener:
    """Opens loaders of `batches` an epoch, each of which takes a while; one may refuse or break."""

    def __init__(
        self, clock: Clock, *, refuses: str = "", broken: str = "", batches: int = 3
    ) -> None:
        self.clock, self.refuses, self.broken = clock, refuses, broken
        self.count = batches
        self.opened: dict[str, MagicMock] = {}
        self.epochs: list[int] = []

    def __call__(self, name: str) -> Any:
        if name == self.refuses:
            raise UserError("not on this machine")
        loader = MagicMock(in_flight=2, batches=partial(self.batches, name))
        self.opened[name] = loader
        return loader

    def batches(self, name: str, epoch: int, first: int) -> Iterator[Batch]:
        self.epochs.append(epoch)
        for at in range(self.count):
            if name == self.broken:
                raise UserError("no memory")
            self.clock.sleep(SECONDS[name])
            yield batch_of(seed=at)

    @property
    def names(self) -> list[str]:
        for loader in self.opened.values():
            loader.close.assert_called_once_with()
        return [*self.opened]


class CountedStep:
    """Stands in for a step of ranks whose collectives are threads'."""

    accumulate = 1

    def __init__(self, world: Any, take: Callable[..., None]) -> None:
        world.synchronise = lambda: None
        self.world = world
        self.phases = Phases(torch.device("cpu"))
        self.take = take

    def __call__(self, batches: Iterator[Batch], **_: Any) -> None:
        self.take(batches)

    def preserved(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Passes only where a loader takes its time: a busy machine chooses alike."""
    clock = Clock()
    monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=clock))
    return clock


def chosen(
    opener: Any,
    folder: Path,
    step: Any = None,
    *,
    names: Any = tuple(SECONDS),
    samples: int = SIZE,
    before: str | None = None,
    of: Any = None,
    run_steps: float = math.inf,
) -> Choice:
    step = step or CountedStep(alone(), next)
    return autotune.choose(
        names,
        opener,
        step=step,
        samples=samples,
        epoch=0,
        run_steps=run_steps,
        answers=Answers(folder, of or {"manifest": "of-pictures"}, step.world),
        before=before,
        info=lambda _: None,
    )


def test_the_fastest_is_found_and_the_step_is_as_it_was(
    clock: Clock, tmp_path: Path
) -> None:
    """An epoch is shorter than a measurement, and begins anew."""
    torch.manual_seed(0)
    settings = Optimisation(lr=0.1, accumulate=2, optimizer="adamw")
    step = composed(net(), Classification(np.zeros(SIZE, np.int64)), settings)
    world: Any = alone()
    world.synchronise = lambda: None
    step.world = world
    before = [tensor.detach().clone() for tensor in step.state_tensors()]
    opener = Opener(clock, refuses="c", batches=4)
    began = clock()
    choice = chosen(opener, tmp_path, step, samples=2 * SIZE)
    assert (choice.loader, choice.how) == ("b", "measured")
    for name in ("a", "b"):
        rate = choice.measured[name]["rate"]
        assert rate == pytest.approx(SIZE / SECONDS[name], rel=0.02)
    assert choice.measured["c"] == {"why": "cannot run here: not on this machine"}
    least = 2 * (autotune.SECONDS + autotune.WARM_UP_S)
    assert least <= clock() - began < 12, "3 s each after a warm-up"
    assert opener.names == ["a", "b"]
    for tensor, old in zip(step.state_tensors(), before, strict=True):
        assert torch.equal(tensor, old)
    assert step.optimizer.param_groups[0]["lr"] == 0.1 and step.phases.read() == {}
    told = choice.message("img/s")
    assert re.fullmatch(
        r"b 80 \(.* to .*\), a .* img/s with the step; c cannot run here: not on this machine",
        told,
    )
    json.dumps(choice.facts())


@pytest.mark.parametrize(("seconds", "expected"), [(0.103, "a"), (0.106, "b")])
def test_of_loaders_about_as_fast_the_first_is_taken(
    seconds: float,
    expected: str,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SECONDS, "a", seconds)
    for how in ("measured", "kept"):
        choice = chosen(Opener(clock), tmp_path)
        assert (choice.loader, choice.how) == (expected, how)
        said = " with the step; rates within 4% count as equal"
        assert (said in choice.message("img/s")) == (expected == "a")


def test_an_answer_is_kept_for_the_same_machine_and_settings(
    clock: Clock, tmp_path: Path
) -> None:
    first = chosen(Opener(clock), tmp_path)
    again = Opener(clock)
    kept = chosen(again, tmp_path)
    assert (kept.loader, kept.how, again.names) == ("b", "kept", [])
    assert kept.measured == first.measured
    assert kept.message("img/s") == first.message("img/s")
    other = chosen(Opener(clock), tmp_path, of={"batch_size": 9})
    assert other.how == "measured"
    # b cannot run here any more
    assert chosen(Opener(clock), tmp_path, names=["a", "c"]).loader == "a"
    # and now it can, which that answer does not know of
    assert chosen(Opener(clock), tmp_path).loader == "b"
    for path in tmp_path.rglob("*.json"):
        path.write_text("{")
    assert chosen(Opener(clock), tmp_path).how == "measured"


def test_a_resume_takes_the_loader_of_its_checkpoint(
    clock: Clock, tmp_path: Path
) -> None:
    opener = Opener(clock)
    choice = chosen(opener, tmp_path, before="c")
    assert (choice.loader, choice.how) == ("c", "checkpoint")
    assert not opener.names


@pytest.mark.parametrize(("steps", "how"), [(89, "short"), (91, "measured")])
def test_a_run_shorter_than_measuring_takes_the_first(
    steps: int, how: str, clock: Clock, tmp_path: Path
) -> None:
    """Three loaders take 6 s each, in which the first one feeds 90 steps."""
    opener, began = Opener(clock), clock()
    choice = chosen(opener, tmp_path, run_steps=steps)
    assert choice.how == how and choice.loader == ("a" if how == "short" else "b")
    assert opener.names == (["a"] if how == "short" else [*SECONDS])
    if how == "short":
        assert clock() - began < 4 and choice.message("img/s") == ""
        about: dict[str, Any] = {"auto": {"loader": "a"}, "loaders": [*SECONDS]}
        said = facts.chosen(about["auto"], about | choice.facts())
        assert said == "loader a (the training is shorter than measuring them)"
        assert not [*tmp_path.rglob("*.json")], "a longer run is to measure"


def test_time_and_failures(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "ALL_S", 9.5)
    choice = chosen(Opener(clock), tmp_path)
    assert choice.measured["c"]["why"] == "was not measured: 9.5 s were over"
    one = chosen(Opener(clock, broken="b"), tmp_path / "broken", names=["b", "c"])
    assert one.loader == "c" and "no memory" in one.measured["b"]["why"]
    said = "--loader auto: b cannot run here: it gives no batch; c cannot"
    with pytest.raises(UserError, match=said):
        chosen(Opener(clock, batches=0), tmp_path / "none", names=["b", "c"])


def test_ranks_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 cannot open the fastest, and is slow by its own clock: all take what all can, by rank 0's."""
    clocks: dict[int, Clock] = {}
    own = SimpleNamespace(perf_counter=lambda: clocks[threading.get_ident()]())
    monkeypatch.setattr(autotune, "time", own)
    steps = [0, 0]

    def work(world: Threads) -> Choice:
        clock = clocks[threading.get_ident()] = Clock()

        def counted(batches: Iterator[Batch]) -> None:
            next(batches)
            steps[world.rank] += 1
            clock.sleep(0.05 * world.rank)

        opener = Opener(clock, refuses="b" if world.rank else "")
        names = ["a", "b"] if world.rank else ["a", "b", "c"]
        folder = tmp_path / str(world.rank)
        return chosen(opener, folder, CountedStep(world, counted), names=names)

    one, other = on_ranks(2, work)
    assert one.loader == other.loader == "a" and one.measured == other.measured
    assert steps[0] == steps[1] > 10
    assert "not on this machine" in one.measured["b"]["why"] and "c" not in one.measured


def test_candidates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = {"nvidia.dali"}
    monkeypatch.setattr(loaders, "installed", lambda package: package in here)

    def names(*argv: str, gpu: bool) -> tuple[str, ...]:
        config = parse(["--data", str(tmp_path), *argv])
        return may_open(kind_of(config), config, gpu=gpu)

    assert names(gpu=True) == ("dali-gpu", "torchvision", "dali-cpu", "dali-fed")
    assert names(gpu=False) == ("torchvision", "dali-cpu", "dali-fed")
    assert names("--loader", "dali-fed", gpu=True) == ("dali-fed",)
    evaluated = ("--evaluate", "true", "--weights", "x")
    assert names(*evaluated, gpu=True) == ("dali-gpu",)
    reader = ("--reader", "opencv")
    assert names(*reader, gpu=True) == ("torchvision",), "the others do not read by it"
    assert names(*reader, *evaluated, gpu=True) == ("torchvision",)
    assert names(*reader, "--task", "superres", gpu=True) == ("paired",)
    here.clear()
    assert names(gpu=True) == ("torchvision",), "nothing to measure"
    assert not loaders.usable("synthetic", gpu=True) and not loaders.usable(
        "dali-cpu", gpu=True, files=False
    )
