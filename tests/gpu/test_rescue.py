"""The last whole step, saved while the device hangs in a later one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from engine.checkpoint import Checkpoints, Progress
from engine.distributed import ProcessWorld
from engine.emergency_save import SETTLES_S, EmergencySave
from engine.precision import loss_scaler
from tests.gpu.conftest import CUDA

HANGS = int(10e9)
"""Clock cycles, some 5 s, for which a kernel stands for an all-reduce that does not end."""


def captured(work: Callable[[], None], stream: torch.cuda.Stream) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


@pytest.mark.parametrize("ahead", [0, 1], ids=["in-it", "a-step-ahead"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_the_device_hangs_in_a_step(tmp_path: Path, graphs: bool, ahead: int) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(CUDA)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    batch = torch.randn(8, 3, device=CUDA)
    world = ProcessWorld(CUDA)
    world.size = 2
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def forward() -> None:
        net(batch).square().sum().backward()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    with torch.cuda.stream(stream):
        for _ in range(3):
            forward()
            update()
        torch.cuda.synchronize()
        run_forward = captured(forward, stream) if graphs else forward
        run_update = captured(update, stream) if graphs else update
        step: Any = SimpleNamespace(
            optimizer=optimizer,
            scaler=loss_scaler("fp32", CUDA),
            ema=None,
            graphs=object() if graphs else None,
        )
        checkpoints = Checkpoints(
            folder=tmp_path, world=world, module=net, step=step, about={}
        )
        rescue = EmergencySave(checkpoints, world, accumulate=1)
        progress = Progress()

        def train(cycles: int = 0) -> None:
            rescue.begin(progress)
            rescue.hold_launch()
            run_forward()
            torch.cuda._sleep(cycles)
            run_update()
            progress.step += 1
            rescue.done(progress)

        for _ in range(3):
            train()
        whole = {name: value.clone() for name, value in net.state_dict().items()}
        torch.cuda.synchronize()
        train(HANGS)
        for _ in range(ahead):
            train()
    began = time.monotonic()
    assert rescue.save(best=0.5)
    assert time.monotonic() - began < 4 * SETTLES_S, "it does not wait for what hangs"
    torch.cuda.synchronize()
    found = torch.load(tmp_path / "last.pt", weights_only=True, map_location=CUDA)
    assert found["progress"]["step"] == 3
    assert all(
        torch.equal(value, whole[name]) for name, value in found["model"].items()
    )
