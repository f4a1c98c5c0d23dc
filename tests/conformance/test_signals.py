"""Ctrl-C, SIGTERM and SIGKILL in the middle of an epoch: the program and its workers are gone soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conformance.scenes import Backend, Scene
from tests.end_to_end.runs import ROOT, Process, Runner, until

GONE_S = 120.0


def consumer(backend: Backend, scene: Scene, cache: Path, *more: str) -> list[str]:
    """The command line of a program that passes over the scene."""
    files = "videos" if backend.clips else "images"
    arguments = [
        backend.name,
        str(backend.device),
        files,
        str(scene.folder),
        str(cache),
        "0",
        *more,
    ]
    return ["-m", "tests.conformance.consumer", *arguments]


def running(
    runner: Runner, backend: Backend, scene: Scene, cache: Path
) -> tuple[Process, list[psutil.Process]]:
    """The consumer in the middle of its first epoch, in a session of its own, and its workers."""
    process = runner.python(
        *consumer(backend, scene, cache), env={"TMPDIR": str(cache)}
    )
    until(
        lambda: process.out or process.poll() is not None, GONE_S, "an epoch to begin"
    )
    assert process.out == "running\n", process.err
    return process, psutil.Process(process.pid).children(recursive=True)


def assert_gone(process: Process, workers: list[psutil.Process]) -> None:
    until_s = time.monotonic() + GONE_S
    process.wait(GONE_S)
    _, alive = psutil.wait_procs(workers, timeout=max(0.1, until_s - time.monotonic()))
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def interrupted(
    runner: Runner,
    backend: Backend,
    scene: Scene,
    cache: Path,
    send: Callable[[int, int], None],
) -> None:
    """SIGINT in the middle of an epoch: one traceback of the program, none of a worker's."""
    process, workers = running(runner, backend, scene, cache)
    send(process.pid, signal.SIGINT)
    assert_gone(process, workers)
    # 1 where tabulate is installed: torch's handler at the interpreter's end imports it, and CPython forgets
    # the interrupt with the next eval
    assert process.poll() in (-signal.SIGINT, 1)
    assert process.err.count("Traceback") == 1, process.err
    assert process.err.rstrip().endswith("KeyboardInterrupt")
    assert not list(cache.glob("saturate-*"))


def test_ctrl_c(runner: Runner, backend: Backend, quick: Scene, tmp_path: Path) -> None:
    interrupted(runner, backend, quick, tmp_path, os.killpg)


def test_ctrl_c_to_the_program_alone(
    runner: Runner, lone_backend: Backend, quick: Scene, tmp_path: Path
) -> None:
    interrupted(runner, lone_backend, quick, tmp_path, os.kill)


def test_a_program_that_does_not_close_its_loader(
    lone_backend: Backend, quick: Scene, tmp_path: Path
) -> None:
    """Started anew: the zygote's programs leave out the interpreter's own end."""
    left = subprocess.run(
        [sys.executable, *consumer(lone_backend, quick, tmp_path, "leave")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
        capture_output=True,
        timeout=GONE_S,
        check=False,
    )
    assert (left.returncode, left.stdout, left.stderr) == (0, "3\n", "")
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
