"""Optimisers and the average of the weights as CUDA graphs: the numbers of eager steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from saturate.engine import graphed, optimizers
from saturate.engine.distributed import ProcessWorld
from tests.gpu.test_graphs import batch_of, made, trained

CASES: dict[str, dict[str, Any]] = {
    **{
        name: {"optimizer": name, "lr": 1e-3}
        for name, kind in optimizers.OPTIMIZERS.items()
        if kind.capturable
        and name not in ("sgd", "adamw")  # which tests/gpu/test_graphs.py has
    },
    "ema": {"ema": 0.9, "accumulate": 2},
    "ema warmed up": {"ema": 0.99, "ema_warmup": True},
    "value": {"clip_grad_value": 0.01},
    "agc": {"clip_grad_agc": 0.02},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("deterministic")
def test_captured_is_eager(case: str, world: ProcessWorld) -> None:
    """Bit for bit: losses, loss scales, weights, state and average, also of steps that overflow."""
    eager, graph = (made(world, "resnet18", **CASES[case]) for _ in range(2))
    why, _ = graphed.capture(graph, [batch_of(99, "fp16", world.device)], world)
    assert not why
    for step in (eager, graph):
        step.scaler.update(2.0**24)  # too high: the first steps overflow
    expected, found = (trained(step, "fp16") for step in (eager, graph))
    np.testing.assert_array_equal(found, expected)
    assert (np.diff(found[:, 3]) < 0).any(), "a step has overflowed"
    for a, b in zip(graph.state_tensors(), eager.state_tensors(), strict=True):
        assert torch.equal(a, b)
