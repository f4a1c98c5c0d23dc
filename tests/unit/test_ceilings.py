"""The ceilings: right against known durations, and training left as it was bit for bit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from contracts import Batch, Counts
from engine import optimizers
from engine.step import Step
from report import ceilings
from report.phases import Phases
from settings.optimisation import Optimisation
from tasks.classification import Classification
from tests.unit.steps import composed
from tests.unit.test_meter import Clock, Threads, alone, on_ranks

CPU = torch.device("cpu")
SIZE = 8


def batch_of(size: int = SIZE, *, failed: int = 0, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        images=torch.randn(size, 3, 8, 8, generator=generator),
        sizes=torch.full((size, 2), 8),
        targets={"labels": torch.randint(0, 5, (size,), generator=generator)},
        valid=torch.arange(size) >= failed,
        ids=np.arange(size),
        failed=tuple(range(failed)),
    )


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(144, 5),
    )


def step_of(
    module: nn.Module,
    *,
    optimizer: str = "sgd",
    precision: str = "fp32",
    accumulate: int = 1,
) -> Step:
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "accumulate": accumulate,
        "weight_decay": 1e-3,
    }
    task = Classification(np.zeros(SIZE, np.int64))
    return composed(module, task, Optimisation(**settings), precision=precision)


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock for the ceilings that only this moves: a busy machine is no slower."""
    clock = Clock()
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=clock))
    return clock.sleep


class FakeStep:
    def __init__(
        self, seconds: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.seconds, self.sleep, self.calls = seconds, sleep, 0
        self.phases = Phases(CPU)
        self.given: list[Batch] = []

    def __call__(
        self, batches: Iterator[Batch], *, lr: float, epoch: int, position: int
    ) -> None:
        self.given = list(batches)
        self.calls += 1
        self.sleep(self.seconds)

    def preserved(self) -> AbstractContextManager[None]:
        return nullcontext()


def nothing() -> None:
    pass


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks as small as these lose time to threads that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_rate_of_a_step_of_known_duration(
    accumulate: int, sleep: Callable[[float], None]
) -> None:
    step = FakeStep(0.02, sleep)
    found = ceilings.compute_ceiling(
        step,
        [batch_of(failed=2)],
        accumulate=accumulate,
        world=alone(),
        synchronise=nothing,
    )
    assert found["rate"] == pytest.approx(SIZE * accumulate / 0.02)
    assert (
        found["spread"]["n"] == ceilings.BLOCKS
        and found["spread"]["min"] <= found["rate"] <= found["spread"]["max"]
    )
    assert found["steps"] * 0.02 >= 2.0
    assert step.calls == found["steps"] + 8
    assert len(step.given) == accumulate and all(
        batch.valid.all() for batch in step.given
    )
    assert step.phases.read() == {}


def test_ranks_take_as_many_steps_and_share_one_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps meet in collectives: a rank that took one more would wait for ever."""
    monkeypatch.setattr(ceilings, "LEAST_S", 0.2)

    def work(world: Threads) -> Any:
        step = FakeStep(0.02 * (world.rank + 1))
        return ceilings.compute_ceiling(
            step, [batch_of()], accumulate=1, world=world, synchronise=nothing
        ), step.calls

    (one, calls), (other, other_calls) = on_ranks(2, work)
    assert one == other and calls == other_calls
    assert one["rate"] == pytest.approx(2 * SIZE / 0.04, rel=0.3)  # a busy machine


def test_resident_batches_stand_for_all_sizes() -> None:
    """The mean size over those that are chosen is the mean over the epoch."""
    sides = np.sort(
        np.random.default_rng(0).integers(100, 1000, 3000)
    )  # like sizes are neighbours
    began: list[int] = []

    def batches(epoch: int, first: int) -> Iterator[Any]:
        assert epoch == 3
        began.append(first)
        return iter([SimpleNamespace(side=int(sides[first // 8]))])

    def work(world: Threads) -> list[int]:
        # the last rank's has other sizes
        rows = [SimpleNamespace(padded=(int(side), 10)) for side in sides[world.rank :]]
        plan: Any = SimpleNamespace(
            resident=8,
            batch_size=4,
            samples=8 * len(sides),
            global_batch_size=8,
            rows=lambda epoch, first: rows,
        )
        loader: Any = SimpleNamespace(batches=batches)
        chosen: Any = ceilings.typical(plan, loader, epoch=3, world=world)
        return [batch.side for batch in chosen]

    one, other = on_ranks(2, work)
    assert one == other and len(set(one)) == 8
    assert np.mean(one) == pytest.approx(sides.mean(), rel=0.02)
    assert max(began) <= 8 * len(sides) - 8


def train(step: Step, first: int, last: int) -> list[list[float]]:
    return [
        step(iter([batch_of(seed=i)]), lr=0.05, epoch=0, position=i * SIZE).tolist()[:2]
        for i in range(first, last)
    ]


def asked_after(times: int) -> Callable[[], bool]:
    """A request to stop that is there from the so manyth question on."""
    left = iter(range(times))
    return lambda: next(left, None) is None


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [("sgd", "fp32"), ("adamw", "fp32"), ("sgd", "fp16"), ("adamw", "bf16")],
)
def test_training_goes_on_bit_for_bit(
    optimizer: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "LEAST_S", 0.05)
    plain, measured = (
        step_of(net(), optimizer=optimizer, precision=precision) for _ in range(2)
    )
    assert measured.scaler.is_enabled() == (precision == "fp16")
    measured.scaler._growth_interval = plain.scaler._growth_interval = (
        5  # the measurement would grow it
    )
    expected = train(plain, 0, 6)
    for first, last in ((0, 3), (3, 6)):  # at first the optimiser has no state yet
        if (
            first or precision != "fp16"
        ):  # no run measures with a scale that is not made yet
            ceilings.compute_ceiling(
                measured, [batch_of()], accumulate=1, world=alone(), synchronise=nothing
            )
        assert train(measured, first, last) == expected[first:last]
    trained = (
        plain.module.state_dict()
    )  # statistics of batch norm too, which no loss shows
    assert all(
        torch.equal(value, trained[name])
        for name, value in measured.module.state_dict().items()
    )


class Lazy(torch.optim.Optimizer):
    """An optimiser that makes all it keeps in its first step, as apex's do, and keeps it in one place."""

    def __init__(self, groups: Any, place: str) -> None:
        super().__init__(groups, {"lr": 0.1})
        self.place = place

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = {
                    "state": self.state[parameter],
                    "group": group,
                    "itself": vars(self),
                }[self.place]
                kept["taken"] = kept.get("taken", 0) + 1
                parameter -= group["lr"] * parameter.grad / kept["taken"]


class Assigning(nn.Module):
    """A network that assigns a new tensor to its buffer, and makes another buffer in its first step."""

    first: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(images)
        if not hasattr(self, "first"):
            self.register_buffer("first", found.detach().mean(0))
        self.seen = self.seen + found.detach().mean(0)
        return found * self.seen.abs() + self.first


@pytest.mark.parametrize("place", ["state", "group", "itself", "network"])
def test_what_is_made_in_a_measured_step_is_taken_away(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "LEAST_S", 0.01)
    if place != "network":
        kind = optimizers.Kind(make=lambda groups, *_: Lazy(groups, place), state=())
        monkeypatch.setitem(optimizers.OPTIMIZERS, "sgd", kind)
    expected = train(step_of(Assigning()), 0, 4)
    measured = step_of(Assigning())
    for first, last in ((0, 2), (2, 4)):
        ceilings.compute_ceiling(
            measured, [batch_of()], accumulate=1, world=alone(), synchronise=nothing
        )
        assert train(measured, first, last) == expected[first:last]


@pytest.mark.parametrize("asked", [0, 1, 4])
def test_a_step_that_is_asked_to_stop_has_no_rate_and_is_put_back(
    asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "LEAST_S", 0.05)
    expected = train(step_of(net(), optimizer="adamw"), 0, 2)
    step, stop = step_of(net(), optimizer="adamw"), asked_after(asked)
    with pytest.raises(ceilings.Stopped):
        ceilings.compute_ceiling(
            step,
            [batch_of()],
            accumulate=1,
            world=alone(),
            synchronise=nothing,
            stop=stop,
        )
    assert train(step, 0, 2) == expected


def test_the_batch_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the loader's memory: the resident one is a copy."""
    monkeypatch.setattr(ceilings, "LEAST_S", 0.05)
    step, batch = FakeStep(0.001), batch_of(failed=1)
    ceilings.compute_ceiling(
        step, [batch], accumulate=1, world=alone(), synchronise=nothing
    )
    (given,) = step.given
    assert given.images.data_ptr() != batch.images.data_ptr() and torch.equal(
        given.images, batch.images
    )
    assert batch.valid.tolist() == [False] + [True] * 7


class FakeLoader:
    """A batch every `seconds`; the first `ready` of the first epoch are there at once."""

    def __init__(
        self,
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        *,
        in_flight: int = 1,
        ready: int = 0,
        epoch_batches: int = 10**9,
        failed: int = 0,
    ) -> None:
        self.seconds, self.sleep, self.in_flight = seconds, sleep, in_flight
        self.notes: Sequence[str] = ()
        self.reader, self.counts = "", Counts()
        self.ready, self.epoch_batches, self.failed = ready, epoch_batches, failed
        self.asked: list[tuple[int, int]] = []
        self.abandoned = 0

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self.asked.append((epoch, first))
        try:
            for _ in range(self.epoch_batches):
                self.sleep(self.seconds if self.ready <= 0 else 0)
                self.ready -= 1
                yield batch_of(failed=self.failed)
        except GeneratorExit:
            self.abandoned += 1

    def awaited(self) -> str:
        return ""

    def close(self) -> None:
        pass

    def __enter__(self) -> FakeLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


@pytest.mark.parametrize("in_flight", [0, 4, 400])
def test_the_rate_of_a_loader_of_known_duration_without_what_was_prefetched(
    in_flight: int, sleep: Callable[[float], None]
) -> None:
    """400 batches that are ready at once would make four seconds read a hundred times too fast."""
    loader = FakeLoader(0.01, sleep, in_flight=in_flight, ready=in_flight)
    found = ceilings.loader_ceiling(loader, epoch=3, world=alone(), synchronise=nothing)
    assert found["rate"] == pytest.approx(SIZE / 0.01)
    assert found["spread"] == pytest.approx(
        {"n": found["windows"], "min": SIZE / 0.01, "max": SIZE / 0.01, "iqr": 0.0},
        abs=1e-6,
    )
    assert found["windows"] >= 3
    assert -loader.ready * 0.01 >= 1.99
    assert loader.asked == [(3, 0)] and loader.abandoned == 1


def test_a_small_data_set_is_passed_over_several_times(
    sleep: Callable[[float], None],
) -> None:
    loader = FakeLoader(0.01, sleep, in_flight=2, epoch_batches=7, failed=2)
    found = ceilings.loader_ceiling(loader, epoch=1, world=alone(), synchronise=nothing)
    assert loader.asked[:3] == [(1, 0), (2, 0), (3, 0)]
    assert found["rate"] == pytest.approx((SIZE - 2) / 0.01)


def test_each_batch_is_awaited_on_the_device(sleep: Callable[[float], None]) -> None:
    loader = FakeLoader(0.001, sleep)
    # the copy
    found = ceilings.loader_ceiling(
        loader, epoch=0, world=alone(), synchronise=lambda: sleep(0.01)
    )
    assert found["rate"] == pytest.approx(SIZE / 0.011)


class OwnClock(Clock, threading.local):
    """A clock of each thread's own, as ranks have."""


def test_the_loaders_of_all_ranks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = OwnClock()
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=clock))

    def work(world: Threads) -> Any:
        loader = FakeLoader(0.02 * (world.rank + 1), clock.sleep)
        return ceilings.loader_ceiling(
            loader, epoch=0, world=world, synchronise=nothing
        )["rate"]

    one, other = on_ranks(2, work)
    assert one == other == pytest.approx(SIZE / 0.02 + SIZE / 0.04)


def test_a_slow_loader_is_measured_by_one_round_of_what_is_in_flight(
    sleep: Callable[[float], None],
) -> None:
    loader = FakeLoader(3.0, sleep, in_flight=8)
    found = ceilings.loader_ceiling(loader, epoch=0, world=alone(), synchronise=nothing)
    assert found["rate"] == pytest.approx(SIZE / 3.0)
    assert found["windows"] == 1 and -loader.ready == 16


@pytest.mark.parametrize("asked", [0, 5, 20])
def test_a_loader_that_is_asked_to_stop_hears_it_at_the_next_batch(
    asked: int, sleep: Callable[[float], None]
) -> None:
    loader = FakeLoader(3.0, sleep, in_flight=16)
    with pytest.raises(ceilings.Stopped):
        ceilings.loader_ceiling(
            loader, epoch=0, world=alone(), synchronise=nothing, stop=asked_after(asked)
        )
    assert -loader.ready == asked + 1 and loader.abandoned == 1


@pytest.mark.parametrize("asked", [0, 3])
def test_one_rank_that_is_asked_to_stop_ends_it_for_all(
    asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "LEAST_S", 0.1)

    def work(world: Threads) -> Any:
        stop = asked_after(asked) if world.rank else ceilings.never
        step, loader = FakeStep(0.001), FakeLoader(0.001)
        with pytest.raises(ceilings.Stopped):
            ceilings.compute_ceiling(
                step,
                [batch_of()],
                accumulate=1,
                world=world,
                synchronise=nothing,
                stop=stop,
            )
        with pytest.raises(ceilings.Stopped):
            ceilings.loader_ceiling(
                loader, epoch=0, world=world, synchronise=nothing, stop=stop
            )
        return step.calls

    one, other = on_ranks(2, work)
    assert one == other
