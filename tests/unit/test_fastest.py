"""--loader auto: the fastest of the loaders is found, kept and agreed on, and the step is as it was."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import loaders
from contracts import Batch, UserError
from engine import autotune
from engine.autotune import Answers, Choice
from engine.step import Step
from report.phases import Phases
from settings.config import parse
from settings.optimisation import Optimisation
from tasks.classification import KIND, Classification
from tests.unit.steps import composed
from tests.unit.test_ceilings import SIZE, batch_of, net
from tests.unit.test_meter import Clock, Threads, alone, on_ranks

SECONDS = {"a": 0.2, "b": 0.1, "c": 0.4}
"""Loader -> what its batch takes."""


class Delays:
    """A loader of `batches` an epoch, each of which takes a while. It must be closed."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        refuses: str = "",
        broken: str = "",
        batches: int = 3,
    ) -> None:
        if name == refuses:
            raise UserError("not on this machine")
        self.in_flight = 2
        self.closed = False
        self.epochs: list[int] = []
        self._broken = name == broken
        self._batches = batches
        self._wait = lambda: clock.sleep(SECONDS[name])

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self.epochs.append(epoch)
        for at in range(self._batches):
            if self._broken:
                raise UserError("no memory")
            self._wait()
            yield batch_of(seed=at)

    def close(self) -> None:
        self.closed = True


class Opener:
    def __init__(self, clock: Clock, **how: Any) -> None:
        self.opened: list[tuple[str, Delays]] = []
        self._clock = clock
        self._how = how

    def __call__(self, name: str) -> Any:
        loader = Delays(name, self._clock, **self._how)
        self.opened.append((name, loader))
        return loader

    @property
    def names(self) -> list[str]:
        assert all(loader.closed for _, loader in self.opened)
        return [name for name, _ in self.opened]


class CountedStep:
    """Stands in for a step of ranks whose collectives are threads'."""

    accumulate = 1

    def __init__(self, world: Any, take: Callable[..., None]) -> None:
        world.synchronise = lambda: None
        self.world = world
        self.phases = Phases(torch.device("cpu"))
        self._take = take

    def __call__(self, batches: Iterator[Batch], **how: Any) -> None:
        self._take(batches, **how)

    def preserved(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Passes only where a loader takes its time: a busy machine chooses alike."""
    clock = Clock()
    monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=clock))
    return clock


def step_of(world: Any = None, **settings: Any) -> Step:
    torch.manual_seed(0)
    optimisation = Optimisation(lr=0.1, weight_decay=1e-3, **settings)
    step = composed(net(), Classification(np.zeros(SIZE, np.int64)), optimisation)
    if world is not None:
        world.synchronise = lambda: None
        step.world = world
    return step


def chosen(opener: Any, folder: Path, step: Any = None, **asked: Any) -> Choice:
    step = step or CountedStep(alone(), lambda batches, **_: next(batches))
    of = {"manifest": "of-pictures", **asked.pop("of", {})}
    how: dict[str, Any] = {
        "step": step,
        "samples": SIZE,
        "epoch": 0,
        "say": lambda _: None,
        **asked,
    }
    names = how.pop("names", list(SECONDS))
    return autotune.choose(
        names, opener, answers=Answers(folder, of, step.world), **how
    )


def test_the_fastest_is_found_and_the_step_is_as_it_was(
    clock: Clock, tmp_path: Path
) -> None:
    """An epoch is shorter than a measurement, and begins anew."""
    accumulate = 2
    step = step_of(alone(), accumulate=accumulate, optimizer="adamw")
    before = [tensor.detach().clone() for tensor in step.state_tensors()]
    opener = Opener(clock, refuses="c", batches=2 * accumulate)
    began = clock()
    choice = chosen(opener, tmp_path, step, samples=accumulate * SIZE)
    assert (choice.loader, choice.how) == ("b", "measured")
    assert choice.measured["b"]["rate"] == pytest.approx(SIZE / 0.1, rel=0.02)
    assert choice.measured["a"]["rate"] == pytest.approx(SIZE / 0.2, rel=0.02)
    assert choice.measured["c"] == {"why": "cannot run here: not on this machine"}
    assert 2 * (autotune.SECONDS + autotune.WARM_UP_S) <= clock() - began < 12, (
        "3 s each after a warm-up"
    )
    assert opener.names == ["a", "b"]
    assert all(
        torch.equal(a, b) for a, b in zip(step.state_tensors(), before, strict=True)
    )
    assert step.optimizer.param_groups[0]["lr"] == 0.1 and step.phases.read() == {}
    assert choice.told("img/s")[0].startswith(
        "--loader auto: b 80 img/s with the step ("
    )
    assert (
        choice.told("img/s")[2]
        == "--loader auto: c cannot run here: not on this machine"
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
        said = [
            ("rates within 4% count as equal" in line) for line in choice.told("img/s")
        ]
        assert said == [expected == "a", False, False]


def test_an_answer_is_kept_for_the_same_machine_and_settings(
    clock: Clock, tmp_path: Path
) -> None:
    first = chosen(Opener(clock), tmp_path)
    again = Opener(clock)
    kept = chosen(again, tmp_path)
    assert (kept.loader, kept.how, kept.measured, again.names) == (
        "b",
        "kept",
        first.measured,
        [],
    )
    assert kept.told("img/s")[0].startswith("--loader auto, as measured before: b ")
    other = Opener(clock)
    assert chosen(
        other, tmp_path, of={"batch_size": 9}
    ).how == "measured" and other.names == ["a", "b", "c"]
    gone = Opener(clock)
    assert chosen(gone, tmp_path, names=["a", "c"]).loader == "a", (
        "b cannot run here any more"
    )
    files = {path: path.read_text() for path in tmp_path.rglob("*.json")}
    damaged: tuple[dict[str, Any], ...] = (
        {"measured": ["b"]},
        {"measured": {"b": {}}},
        {"measured": {"b": {"rate": "fast"}}},
    )
    for content in ("{", *damaged):
        for path, whole in files.items():
            path.write_text(
                content
                if isinstance(content, str)
                else json.dumps(json.loads(whole) | content)
            )
        assert chosen(Opener(clock), tmp_path).how == "measured", (
            "a damaged answer is none"
        )
    (tmp_path / "file").touch()
    assert chosen(Opener(clock), tmp_path / "file").how == "measured", (
        "and no folder to keep it is none either"
    )


@pytest.mark.parametrize(
    ("flags", "alike"),
    [
        ("--graphs false", False),
        ("--compile true", False),
        ("--precision fp32", False),
        ("--accumulate 2", False),
        ("--image-size 64", False),
        ("--auto-augment randaugment", False),
        ("--mixup 0.2", False),
        ("--ema 0.9", False),
        ("--optimizer adamw", False),
        ("--grad-checkpointing true", False),
        ("--read-threads 4", False),
        ("--lr 0.5 --warmup-epochs 0 --epochs 3 --steps 9", True),
        ("--val-batch-size 9 --val-every 0 --val-resize 300", True),
        ("--seed 7 --output there --log-every 3 --manifest-dir here", True),
    ],
)
def test_what_an_answer_is_kept_for(flags: str, alike: bool) -> None:
    """All that changes the rate of the step or the loader, and no more."""
    plan: Any = SimpleNamespace(first_epochs=(0,))
    plain, other = (
        autotune.timed(parse(words).flat(), plan) for words in ([], flags.split())
    )
    assert (plain == other) is alike


@pytest.mark.parametrize(("epochs", "epoch"), [(16, 13), (13, 12), (5, 0)])
def test_loaders_are_measured_with_the_images_that_the_run_ends_with(
    epochs: int, epoch: int, clock: Clock, tmp_path: Path
) -> None:
    plan: Any = SimpleNamespace(first_epochs=(0, 12, 13))
    assert (
        autotune.timed(parse(["--epochs", str(epochs)]).flat(), plan)["epoch"] == epoch
    )
    opener = Opener(clock)
    chosen(opener, tmp_path, epoch=epoch)
    assert [loader.epochs[0] for _, loader in opener.opened] == [epoch] * 3


@pytest.mark.parametrize(
    ("asked", "loader", "how"),
    [
        ({"names": ["c"]}, "c", "given"),
        ({"before": "c"}, "c", "checkpoint"),
        ({"before": "x"}, "b", "measured"),
    ],
    ids=["one", "checkpoint", "checkpoint-elsewhere"],
)
def test_nothing_is_measured_without_a_choice(
    asked: dict[str, Any], loader: str, how: str, clock: Clock, tmp_path: Path
) -> None:
    opener = Opener(clock)
    choice = chosen(opener, tmp_path, **asked)
    assert (choice.loader, choice.how) == (loader, how)
    assert bool(opener.names) is (how == "measured")
    assert (choice.facts()["loader_auto"] is None) is (how == "given")


def test_time_and_failures(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "ALL_S", 9.5)
    choice = chosen(Opener(clock), tmp_path)
    assert choice.measured["c"]["why"] == "was not measured: 9.5 s were over"
    one = chosen(Opener(clock, broken="b"), tmp_path / "broken", names=["b", "c"])
    assert one.loader == "c" and "no memory" in one.measured["b"]["why"]
    with pytest.raises(
        UserError, match="--loader auto: b cannot run here: it gives no batch; c cannot"
    ):
        chosen(Opener(clock, batches=0), tmp_path / "none", names=["b", "c"])


def test_ranks_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 cannot open the fastest, and is slow by its own clock: all take what all can, by rank 0's."""
    clocks: dict[int, Clock] = {}
    monkeypatch.setattr(
        autotune,
        "time",
        SimpleNamespace(perf_counter=lambda: clocks[threading.get_ident()]()),
    )
    steps = [0, 0]

    def work(world: Threads) -> Choice:
        clock = clocks[threading.get_ident()] = Clock()

        def counted(batches: Iterator[Batch], **_: Any) -> None:
            next(batches)
            steps[world.rank] += 1
            clock.sleep(0.05 * world.rank)

        step = CountedStep(world, counted)
        opener = Opener(clock, refuses="b" if world.rank else "")
        names = ["a", "b"] if world.rank else ["a", "b", "c"]
        return chosen(opener, tmp_path / str(world.rank), step, names=names)

    one, other = on_ranks(2, work)
    assert one.loader == other.loader == "a" and one.measured == other.measured
    assert steps[0] == steps[1] > 10
    assert "not on this machine" in one.measured["b"]["why"] and "c" not in one.measured


def test_candidates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = {"nvidia.dali"}
    monkeypatch.setattr(loaders, "installed", lambda package: package in here)

    def names(*argv: str, gpu: bool) -> tuple[str, ...]:
        return KIND.may_open(parse(["--data", str(tmp_path), *argv]), gpu=gpu)

    assert names(gpu=True) == ("dali-gpu", "torchvision", "dali-cpu", "dali-fed")
    assert names(gpu=False) == ("torchvision", "dali-cpu", "dali-fed")
    assert names("--loader", "dali-fed", gpu=True) == ("dali-fed",)
    assert names("--evaluate", "true", "--weights", "x", gpu=True) == ("dali-gpu",)
    here.clear()
    assert names(gpu=True) == ("torchvision",), "nothing to measure"
    assert not loaders.usable("synthetic", gpu=True) and not loaders.usable(
        "dali-cpu", gpu=True, files=False
    )
