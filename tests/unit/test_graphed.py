"""What ranks decide about a step's graph: all of them capture it or none, and it is as it was."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch, UserError
from saturate.engine import graphed
from saturate.engine.step import Step
from saturate.settings.optimisation import Optimisation
from saturate.tasks.classification import Classification
from tests.unit.steps import composed
from tests.unit.test_ceilings import SIZE, batch_of, net
from tests.unit.test_meter import Threads, on_ranks

WHY = "CUDA cannot capture it (rank 1's driver)"


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "_refuse_waits", lambda on: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def made() -> Step:
    torch.manual_seed(0)
    return composed(
        net(), Classification(np.zeros(SIZE, np.int64)), Optimisation(lr=0.1)
    )


@pytest.mark.parametrize(
    ("fails", "said"),
    [("", ""), ("capture", WHY), ("warm-up", WHY)],
    ids=["none", "capture", "warm-up"],
)
def test_one_rank_that_cannot_capture_keeps_all_eager(
    fails: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [made(), made()]
    before = [tensor.detach().clone() for tensor in steps[0].state_tensors()]
    ranks = {id(step): rank for rank, step in enumerate(steps)}
    captures = []
    warm_up = graphed._warm_up

    def warmed(step: Step, static: Any, count: int) -> str:
        assert count == graphed.WARM_UP_OF_RANKS
        why = warm_up(step, static, 1)
        return WHY if fails == "warm-up" and ranks[id(step)] == 1 else why

    def captured(step: Step, static: Any) -> str:
        captures.append(ranks[id(step)])
        if fails == "capture" and ranks[id(step)] == 1:
            return WHY
        graphs: Any = SimpleNamespace()
        step.graphs = graphs
        return ""

    monkeypatch.setattr(graphed, "_warm_up", warmed)
    monkeypatch.setattr(graphed, "_captured", captured)

    def work(world: Threads) -> str:
        return graphed.capture(steps[world.rank], [batch_of()], world)[0]  # type: ignore[arg-type]

    assert on_ranks(2, work) == [said, said]
    assert [step.graphs is None for step in steps] == [bool(fails)] * 2
    assert sorted(captures) == ([] if fails == "warm-up" else [0, 1])
    for step in steps:
        assert all(
            torch.equal(a, b) for a, b in zip(step.state_tensors(), before, strict=True)
        )


def test_a_step_that_stays_eager_says_why() -> None:
    world: Any = SimpleNamespace(device=torch.device("cuda"))
    step: Any = None
    outcome = graphed.prepare(step, list, world, "auto", one_shape=False)
    assert outcome.facts()["graphs"] is False
    said = "batches of this task have many shapes"
    assert outcome.why_not.startswith(said)
    with pytest.raises(UserError, match=f"--graphs true: {said}"):
        graphed.prepare(step, list, world, True, one_shape=False)


def test_a_replay_reads_the_batch_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch reaches the static of its own shape, whatever the order of its targets."""
    for name, value in {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
        "graph": lambda *_, **__: nullcontext(),
        "graph_pool_handle": lambda: None,
        "current_stream": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    step: Any = SimpleNamespace(clips=False, accumulate=1)
    step.micro_batch = lambda static, **_: static

    def batch(side: int, **targets: float) -> Batch:
        return Batch(
            images=torch.full((2, 3, side, side), 1.5 * side),
            sizes=torch.full((2, 2), side),
            targets={name: torch.full((2,), value) for name, value in targets.items()},
            valid=torch.tensor([True, side == 4]),
            ids=np.arange(2),
        )

    statics = [batch(side, labels=0.0, weights=0.0) for side in (4, 8)]
    graphs = graphed.Graphs(step, statics)
    statics[0].images.zero_()
    given = batch(4, weights=3.0, labels=2.0)
    static: Any = graphs.replay(given, last=True, want_norm=True)
    assert static is statics[0] and static.valid.all()
    assert torch.equal(static.images, given.images)
    for name, other in statics[1].targets.items():
        assert torch.equal(static.targets[name], given.targets[name])
        assert not other.any()
