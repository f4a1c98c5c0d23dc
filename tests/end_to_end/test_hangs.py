"""What stops answering: a worker, a rank, a rank that never comes. The run says who, and leaves."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import psutil

from tests.end_to_end.runs import (
    Process,
    Runner,
    kept,
    losses,
    reached,
    summary,
)
from tests.end_to_end.test_torchrun import SMALL, ours

LEAVES_S = 9.0
"""Five, and more on a machine that does other things too."""
HOST = socket.gethostname()
FLAGS = f"{SMALL} --epochs 100000 --val-every 0 --save-every-minutes 0"


def stop_workers(process: Process) -> None:
    for child in psutil.Process(process.pid).children():
        child.send_signal(signal.SIGSTOP)


def test_a_worker_that_is_stopped(train: Runner, pictures: Path) -> None:
    process = train("--data", pictures, FLAGS)
    reached(train.cwd / "run", 4)
    stop_workers(process)
    time.sleep(0.3)  # what was in flight is trained
    process.send(signal.SIGTERM)
    assert process.wait(LEAVES_S) == 128 + signal.SIGTERM
    at = kept(train.cwd / "run/last.pt")["progress"]
    assert at["step"] == len(losses(train.cwd / "run"))
    assert at["step"] == (at["epoch"] * 96 + at["consumed"]) // 4
    assert not summary(train.cwd / "run")["finished"]


def test_a_rank_that_stops_is_named(train: Runner, pictures: Path) -> None:
    flags = f"{FLAGS} --timeout-minutes 0.05"
    first, second = train.ranks(2, "--data", pictures, flags)
    reached(train.cwd / "run", 4)
    second.send(signal.SIGSTOP)
    assert first.wait() == 1
    line, where = ours(first.err)
    assert "there is no last.pt yet" in where
    assert f"rank 0 on {HOST} has not gone on for 0.05 minutes" in line
    assert f"rank 1 on {HOST} does not answer" in line


def test_a_rank_that_never_comes_is_named(train: Runner) -> None:
    missing = 1
    flags = f"{SMALL} --loader synthetic --timeout-minutes 0.02"
    alone = train.ranks(2, flags, missing=missing)[0]
    line = alone.mistake()
    assert f"rank {1 - missing} on {HOST} has waited 0.02 minutes" in line
    assert f"for rank {missing} of 2, which has not come" in line
