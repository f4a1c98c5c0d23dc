"""What stops answering: a worker, a rank, a rank that never comes. The run says who, saves, and leaves."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.end_to_end.runs import (
    TIMEOUT_S,
    Process,
    Runner,
    losses,
    points,
    summary,
    until,
)
from tests.end_to_end.test_torchrun import SMALL, ours

LEAVES_S = 5.0
SLACK_S = 4.0
"""Seconds more, on a machine that does other things too."""
HOST = socket.gethostname()


def begun(train: Runner, processes: list[Process]) -> list[Process]:
    """Return them once they have trained three steps."""
    until(lambda: len(points(train.cwd / "run", "train")) > 3, TIMEOUT_S, "three steps")
    return processes


def stop_workers(process: Process) -> None:
    for child in psutil.Process(process.pid).children():
        child.send_signal(signal.SIGSTOP)


def last(train: Runner) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(train.cwd / "run/last.pt", weights_only=True)
    return found


def left(processes: list[Process], number: signal.Signals = signal.SIGTERM) -> None:
    """Send it to all, and require that they leave as they should."""
    time.sleep(1.0)  # what was in flight is trained
    began = time.monotonic()
    for process in processes:
        process.send(number)
    assert [process.wait() for process in processes] == [128 + number] * len(processes)
    assert time.monotonic() - began < LEAVES_S + SLACK_S


FLAGS = (
    *SMALL,
    "--epochs",
    100_000,
    "--val-every",
    0,
    "--output",
    "run",
    "--save-every-minutes",
    0,
)


def test_a_worker_that_is_stopped(train: Runner, pictures: Path) -> None:
    (process,) = begun(train, [train("--data", pictures, *FLAGS, "--accumulate", 2)])
    stop_workers(process)
    left([process])
    at = last(train)["progress"]
    assert (
        at["step"]
        == len(losses(train.cwd / "run"))
        == (at["epoch"] * 96 + at["consumed"]) // 8
    )
    assert not summary(train.cwd / "run")["finished"]


@pytest.mark.parametrize("stopped", ["worker", "rank"])
def test_ranks_that_cannot_meet_leave(
    train: Runner, pictures: Path, stopped: str
) -> None:
    """Rank 0 saves its last whole step: it waits for rank 1, which waits for its worker or is stopped."""
    first, second = begun(train, train.ranks(2, "--data", pictures, *FLAGS))
    if stopped == "worker":
        stop_workers(second)
        left([first, second])
        assert (
            f"rank 1 on {HOST} waits for worker" in second.err and "(pid " in second.err
        )
    else:
        second.send(signal.SIGSTOP)
        left([first])
    assert any(
        "cannot meet the others; its last whole step is saved" in line
        for line in ours(first.err)
    )
    content = last(train)
    at = content["progress"]
    assert at["step"] * 8 == at["epoch"] * 96 + at["consumed"] > 0
    batches = {
        int(value)
        for name, value in content["model"].items()
        if name.endswith("num_batches_tracked")
    }
    assert batches <= {at["step"]}


def test_a_rank_that_stops_is_named(train: Runner, pictures: Path) -> None:
    first, second = begun(
        train, train.ranks(2, "--data", pictures, *FLAGS, "--timeout-minutes", 0.05)
    )
    second.send(signal.SIGSTOP)
    assert first.wait() == 2
    (line,) = ours(first.err)
    assert f"rank 0 on {HOST} has not gone on for 0.05 minutes" in line
    assert (
        f"rank 1 on {HOST} does not answer" in line
        and "its last whole step is saved" in line
    )
    assert last(train)["progress"]["step"] > 0


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_never_comes_is_named(train: Runner, missing: int) -> None:
    flags = (*SMALL, "--loader", "synthetic", "--timeout-minutes", 0.02)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    alone = train(
        *flags, env={**meet, "RANK": str(1 - missing), "LOCAL_RANK": str(1 - missing)}
    )
    line = alone.mistake()
    assert f"rank {1 - missing} on {HOST} has waited 0.02 minutes" in line
    assert f"for rank {missing} of 2, which has not come" in line
