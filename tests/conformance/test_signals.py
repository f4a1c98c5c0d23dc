"""Ctrl-C, SIGTERM and SIGKILL in the middle of an epoch: the program and its workers are gone soon."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.conformance.scenes import Backend, Scene
from tests.end_to_end.runs import Process, Runner, until

GONE_S = 120.0


def running(
    runner: Runner, backend: Backend, scene: Scene, cache: Path
) -> tuple[Process, list[psutil.Process]]:
    """The consumer in the middle of its first epoch, in a session of its own, and its workers."""
    process = runner.python(
        *("-m", "tests.conformance.consumer", backend.name, str(backend.device)),
        *("videos" if backend.clips else "images", str(scene.folder), str(cache)),
        env={"TMPDIR": str(cache)},
    )
    until(
        lambda: process.out.endswith("\n") or process.poll() is not None,
        GONE_S,
        "an epoch to begin",
    )
    assert process.out == "running\n", process.err
    return process, psutil.Process(process.pid).children(recursive=True)


def assert_gone(process: Process, workers: list[psutil.Process]) -> None:
    until_s = time.monotonic() + GONE_S
    process.wait(GONE_S)
    _, alive = psutil.wait_procs(workers, timeout=max(0.1, until_s - time.monotonic()))
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def test_ctrl_c(runner: Runner, backend: Backend, quick: Scene, tmp_path: Path) -> None:
    """SIGINT in the middle of an epoch: one traceback of the program, none of a worker's."""
    process, workers = running(runner, backend, quick, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    assert_gone(process, workers)
    # 1 where tabulate is installed: torch's handler at the interpreter's end imports it, and CPython forgets
    # the interrupt with the next eval
    assert process.poll() in (-signal.SIGINT, 1)
    assert process.err.count("Traceback") == 1, process.err
    assert process.err.rstrip().endswith("KeyboardInterrupt")
    assert not list(tmp_path.glob("saturate-*"))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"]
)
def test_an_end_that_the_loader_does_not_see(
    runner: Runner,
    lone_backend: Backend,
    quick: Scene,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    """SIGTERM without a handler to the whole group, SIGKILL to the program alone: workers find out by
    themselves.
    """
    process, workers = running(runner, lone_backend, quick, tmp_path)
    (os.killpg if number is signal.SIGTERM else os.kill)(process.pid, number)
    assert_gone(process, workers)
    assert process.poll() == -number
