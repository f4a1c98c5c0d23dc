"""The ceilings: right against known durations, and training left as it was bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from saturate.contracts import Batch
from saturate.engine.step import Step
from saturate.report import ceilings
from saturate.report.phases import Phases
from saturate.settings.optimisation import Optimisation
from saturate.tasks.classification import Classification
from tests.unit.steps import composed
from tests.unit.test_meter import Clock, Threads, alone, on_ranks

pytestmark = pytest.mark.usefixtures("one_thread")
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


class OwnClock(Clock, threading.local):
    """A clock of each thread's own, as ranks have."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> OwnClock:
    """The clock of the ceilings, which only this moves: a busy machine is no slower."""
    clock = OwnClock()
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=clock))
    return clock


class FakeStep:
    """A step that takes so many seconds."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self.clock = clock
        self.calls = 0
        self.phases = Phases(torch.device("cpu"))
        self.given: list[Batch] = []

    def __call__(self, batches: Iterator[Batch], **where: Any) -> None:
        self.given = list(batches)
        self.calls += 1
        self.clock.sleep(self.seconds)

    def preserved(self) -> Any:
        return nullcontext()

    def unshared(self) -> Any:
        return nullcontext(False)

    dtype = "float32"

    def forward(self, batch: Batch) -> None:
        """Nothing is counted on a CPU."""


def compute(step: Any, world: Any = None, **how: Any) -> dict[str, Any]:
    """Measure with one batch, of which one sample failed."""
    how = {"accumulate": 1, "world": world or alone(), **how}
    batches = [batch_of(failed=1)]
    return ceilings.compute_ceiling(step, batches, synchronise=lambda: None, **how)


def test_the_rate_of_a_step_of_known_duration(clock: OwnClock) -> None:
    step, accumulate = FakeStep(0.02, clock), 3
    batch = batch_of(failed=2)
    found = ceilings.compute_ceiling(
        step, [batch], accumulate=accumulate, world=alone(), synchronise=lambda: None
    )
    assert found["rate"] == pytest.approx(SIZE * accumulate / 0.02)
    spread = found["spread"]
    assert spread["n"] == ceilings.BLOCKS
    assert spread["min"] <= found["rate"] <= spread["max"]
    assert found["steps"] * 0.02 >= 2.0
    assert step.calls == found["steps"] + 8
    assert len(step.given) == accumulate and step.phases.read() == {}
    # a batch may be the loader's memory: the resident one is a copy, with every sample valid
    for given in step.given:
        assert given.valid.all() and torch.equal(given.images, batch.images)
        assert given.images.data_ptr() != batch.images.data_ptr()
    assert batch.valid.sum() == SIZE - 2


def test_ranks_take_as_many_steps_and_share_one_figure(clock: OwnClock) -> None:
    """The steps meet in collectives: a rank that took one more would wait for ever."""

    def work(world: Threads) -> Any:
        step = FakeStep(0.02 * (world.rank + 1), clock)
        return compute(step, world), step.calls

    (one, calls), (other, other_calls) = on_ranks(2, work)
    assert one == other and calls == other_calls
    assert one["rate"] == pytest.approx(2 * SIZE / 0.02), "rank 0's clock"


def test_the_kernels_are_those_of_a_whole_step_of_the_usual_size(
    clock: OwnClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All micro-batches of a step are counted, and a step of the smallest batch is not the mean."""
    step = FakeStep(0.02, clock)
    forwards: list[int] = []
    step.forward = lambda batch: forwards.append(len(batch.ids))  # type: ignore[method-assign]

    def taken(take: Callable[[], Any], *of: Any, **how: Any) -> dict[str, float]:
        take()
        return {}

    monkeypatch.setattr("saturate.report.kernels.kernel_ms", taken)
    monkeypatch.setattr("saturate.report.kernels.arithmetic", taken)
    ceilings.compute_ceiling(
        step,
        [batch_of(size) for size in (2, 4, 8)],
        accumulate=3,
        world=alone(),
        synchronise=lambda: None,
    )
    assert forwards == [len(batch.ids) for batch in step.given] == [4, 4, 4]


def test_resident_batches_stand_for_all_sizes() -> None:
    """The mean size over those that are chosen is the mean over the epoch."""
    sides = np.sort(np.random.default_rng(0).integers(100, 1000, 3000))
    began: list[int] = []

    def batches(epoch: int, first: int) -> Iterator[Any]:
        assert epoch == 3
        began.append(first)
        return iter([int(sides[first // 8])])

    def work(world: Threads) -> list[int]:
        # the last rank's has other sizes
        rows = [SimpleNamespace(padded=(int(side), 10)) for side in sides[world.rank :]]
        plan: Any = SimpleNamespace(
            batches=SimpleNamespace(rows=4),
            samples=8 * len(sides),
            global_batch_size=8,
            rows=lambda epoch, first: rows,
        )
        loader: Any = SimpleNamespace(batches=batches)
        chosen: Any = ceilings.typical(plan, loader, epoch=3, world=world)
        return list(chosen)

    one, other = on_ranks(2, work)
    assert one == other and len(set(one)) == 8
    assert np.mean(one) == pytest.approx(sides.mean(), rel=0.02)
    assert max(began) <= 8 * len(sides) - 8


# --- training goes on as if nothing had been measured --------------------------


def step_of(module: nn.Module, optimizer: str, precision: str = "fp32") -> Step:
    task = Classification(np.zeros(SIZE, np.int64))
    settings: Any = {"optimizer": optimizer, "weight_decay": 1e-3}
    return composed(module, task, Optimisation(**settings), precision=precision)


def train(step: Step, first: int, last: int) -> list[list[float]]:
    return [
        step(iter([batch_of(seed=i)]), lr=0.05, epoch=0, position=i * SIZE).tolist()[:2]
        for i in range(first, last)
    ]


def asked_after(times: int) -> Callable[[], bool]:
    """A request to stop that is there from the so manyth question on."""
    left = iter(range(times))
    return lambda: next(left, None) is None


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


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        ("sgd", "fp32"),
        ("sgd", "fp16"),
        ("adamw", "bf16"),
    ],
)
def test_training_goes_on_bit_for_bit(
    optimizer: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the measurement is asked to stop in the middle."""
    monkeypatch.setattr(ceilings, "LEAST_S", 0.02)
    plain, measured = (step_of(Assigning(), optimizer, precision) for _ in range(2))
    # the measurement would grow it
    measured.scaler._growth_interval = plain.scaler._growth_interval = 5
    expected = train(plain, 0, 6)
    for first, last in ((0, 3), (3, 6)):  # at first the optimiser has no state yet
        # no run measures with a scale that is not made yet
        if first or precision != "fp16":
            compute(measured)
            with pytest.raises(ceilings.Stopped):
                compute(measured, stop=asked_after(4))
        assert train(measured, first, last) == expected[first:last]
    trained = plain.module.state_dict()
    # statistics of batch norm too, which no loss shows
    for name, value in measured.module.state_dict().items():
        assert torch.equal(value, trained[name]), name


# --- the loader ----------------------------------------------------------------


class FakeLoader:
    """A batch every `seconds`; the first `ready` of the first epoch are there at once."""

    def __init__(
        self,
        seconds: float,
        clock: Clock,
        *,
        in_flight: int = 1,
        ready: int = 0,
    ) -> None:
        self.seconds = seconds
        self.clock = clock
        self.in_flight = in_flight
        self.ready = ready
        self.asked: list[tuple[int, int]] = []
        self.abandoned = 0

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self.asked.append((epoch, first))
        try:
            while True:
                self.clock.sleep(self.seconds if self.ready <= 0 else 0)
                self.ready -= 1
                yield batch_of()
        except GeneratorExit:
            self.abandoned += 1


def drain(loader: Any, world: Any = None, **how: Any) -> dict[str, Any]:
    how = {"synchronise": lambda: None, "world": world or alone(), **how}
    batches = ceilings.endless(loader, 3)
    return ceilings.loader_ceiling(batches, in_flight=loader.in_flight, **how)


@pytest.mark.parametrize("in_flight", [0, 4, 400])
def test_the_rate_of_a_loader_of_known_duration_without_what_was_prefetched(
    in_flight: int, clock: OwnClock
) -> None:
    """400 batches that are ready at once would make four seconds read a hundred times too fast."""
    loader = FakeLoader(0.01, clock, in_flight=in_flight, ready=in_flight)
    found = drain(loader)
    rate = pytest.approx(SIZE / 0.01)
    assert found["rate"] == found["spread"]["min"] == found["spread"]["max"] == rate
    assert found["windows"] == found["spread"]["n"] >= 3
    assert -loader.ready * 0.01 >= 1.99
    assert loader.asked == [(3, 0)] and loader.abandoned == 1


def test_the_loaders_of_all_ranks_are_as_fast_as_the_slowest(clock: OwnClock) -> None:
    def work(world: Threads) -> Any:
        return drain(FakeLoader(0.02 * (world.rank + 1), clock), world)

    one, other = on_ranks(2, work)
    assert one == other
    assert one["rate"] == one["spread"]["max"] == pytest.approx(2 * SIZE / 0.04)


@pytest.mark.parametrize("asked", [0, 3])
def test_one_rank_that_is_asked_to_stop_ends_it_for_all(
    asked: int, clock: OwnClock
) -> None:
    def work(world: Threads) -> Any:
        stop = asked_after(asked) if world.rank else ceilings.never
        step, loader = FakeStep(0.001, clock), FakeLoader(3.0, clock, in_flight=16)
        with pytest.raises(ceilings.Stopped):
            compute(step, world, stop=stop)
        with pytest.raises(ceilings.Stopped):
            drain(loader, world, stop=stop)
        if world.rank:
            assert -loader.ready == 1, "it hears it at the next batch"
        return step.calls, loader.abandoned

    one, other = on_ranks(2, work)
    assert one == other and one[1] == 1


def test_a_rank_that_is_short_of_memory_steps_as_often_as_the_others(
    clock: OwnClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "saturate.report.kernels._kernel_ms", lambda step, _: step() or 1.0
    )
    monkeypatch.setattr("saturate.report.kernels.peak", lambda *_: 1.0)

    def work(world: Threads) -> Any:
        world.device = torch.device("cuda")
        step = FakeStep(0.02, clock)
        if world.rank:
            step.forward = out_of_memory  # type: ignore[method-assign,assignment]
        found = compute(step, world)
        return found["kernel_ms"], "arithmetic_ms" in found, step.calls

    one, other = on_ranks(2, work)
    assert one == (1.0, True, other[2]) and other[:2] == (1.0, False)
    # in a step itself nobody may go on: the others wait for this rank there
    monkeypatch.setattr("saturate.report.kernels._kernel_ms", out_of_memory)
    on_gpu = alone()
    on_gpu.device = torch.device("cuda")
    with pytest.raises(torch.OutOfMemoryError):
        compute(FakeStep(0.02, clock), on_gpu)


def out_of_memory(*_: Any) -> Any:
    raise torch.OutOfMemoryError
