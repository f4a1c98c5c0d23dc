"""The formulas of scripts/simulate.py, held against what they are about."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from dataset.stores.folder import open_folder
from engine.distributed import ProcessWorld, Vote
from plan.order import order
from scripts.simulate import FORMULAS, GIB, ORDER_BYTES, STATE_BYTES, Case, table
from tests.unit.folders import JPEG, fill

FILES = 100


def test_columns(cache: Path, tmp_path: Path) -> None:
    names = [f"n{i % 4}/{i:05d}.jpg" for i in range(FILES)]
    found = open_folder(fill(tmp_path / "set", dict.fromkeys(names, JPEG)), cache=cache)
    columns = [np.load(path) for path in found.folder.glob("*.npy")]
    case = Case(ranks=1, samples=FILES, name_bytes=len(names[0]))
    expected = FORMULAS["columns, GiB a host"](case) * GIB
    assert sum(column.nbytes for column in columns) == pytest.approx(expected, rel=0.01)


def test_order() -> None:
    tracemalloc.start()
    order(0, 0, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak == pytest.approx(ORDER_BYTES * 100_000, rel=0.01)


def test_votes() -> None:
    world = ProcessWorld(torch.device("cpu"))
    for world.size in (1, 64, 65, 1024):
        case = Case(ranks=world.size, samples=1)
        assert FORMULAS["vote every, steps"](case) == Vote(world).every


def test_a_checkpoint_is_weights_and_momentum() -> None:
    net = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    net(torch.ones(100)).sum().backward()
    optimizer.step()
    states = [each["momentum_buffer"] for each in optimizer.state.values()]
    tensors = [*net.state_dict().values(), *states]
    count = sum(p.numel() for p in net.parameters())
    assert sum(t.nbytes for t in tensors) == STATE_BYTES * count


def test_failures() -> None:
    """Young's interval loses least: one that is half or twice as long loses more."""
    case = Case(ranks=16_384, samples=1)
    written, failure = (
        FORMULAS["checkpoint, s"](case),
        3600 * FORMULAS["a failure every, h"](case),
    )
    # 419 failures in 54 days
    assert failure == pytest.approx(54 * 86_400 / 419, rel=0.001)
    best = 60 * FORMULAS["save every, min (Young)"](case)

    def lost(interval_s: float) -> float:
        return written / interval_s + (interval_s / 2 + case.restart_s) / failure

    assert FORMULAS["lost by failures, %"](case) == pytest.approx(100 * lost(best))
    assert lost(best) < min(lost(best / 2), lost(best * 2))


def test_every_formula_has_a_line_and_every_case_a_column() -> None:
    cases = [Case(ranks=ranks, samples=1e9) for ranks in (1, 8, 4096)]
    lines = table(cases).splitlines()
    assert len(lines) == 3 + len(FORMULAS)
    assert {line.count("|") for line in lines} == {len(cases) + 2}
