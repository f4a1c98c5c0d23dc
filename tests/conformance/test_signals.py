"""Ctrl-C, SIGTERM and SIGKILL in the middle of an epoch: the program and its workers are gone soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conformance.scenes import Backend, Scene

ROOT = Path(__file__).parents[2]
GONE_S = 60.0


def command(backend: Backend, scene: Scene, cache: Path, *more: str) -> dict[str, Any]:
    files = "videos" if backend.clips else "images"
    arguments = [backend.name, str(backend.device), files, str(scene.folder), str(cache), "0", *more]
    return {
        "args": [sys.executable, "-m", "tests.conformance.consumer", *arguments],
        "cwd": ROOT,
        "env": {**os.environ, "TMPDIR": str(cache)},
        "text": True,
    }


@contextmanager
def running(
    backend: Backend, scene: Scene, cache: Path
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """The consumer in the middle of its first epoch, in a process group of its own, and its workers."""
    asked = command(backend, scene, cache) | dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    consumer: subprocess.Popen[str] = subprocess.Popen(**asked, start_new_session=True)
    workers: list[psutil.Process] = []
    try:
        assert consumer.stdout is not None and consumer.stderr is not None
        assert consumer.stdout.readline() == "running\n", consumer.stderr.read()
        workers = psutil.Process(consumer.pid).children(recursive=True)
        yield consumer, workers
    finally:
        consumer.kill()
        for worker in workers:
            if worker.is_running():
                worker.kill()
        consumer.communicate()


def assert_gone(consumer: subprocess.Popen[str], workers: list[psutil.Process]) -> None:
    until = time.monotonic() + GONE_S
    consumer.wait(GONE_S)
    _, alive = psutil.wait_procs(workers, timeout=max(0.1, until - time.monotonic()))
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def interrupted(backend: Backend, scene: Scene, cache: Path, send: Callable[[int, int], None]) -> None:
    """SIGINT in the middle of an epoch: one traceback of the program, none of a worker's."""
    with running(backend, scene, cache) as (consumer, workers):
        send(consumer.pid, signal.SIGINT)
        assert_gone(consumer, workers)
        assert consumer.stderr is not None
        said = consumer.stderr.read()
        assert consumer.returncode == -signal.SIGINT
        assert said.count("Traceback") == 1, said
        assert said.rstrip().endswith("KeyboardInterrupt")
    assert not list(cache.glob("saturate-*"))


def test_ctrl_c(backend: Backend, quick: Scene, tmp_path: Path) -> None:
    interrupted(backend, quick, tmp_path, os.killpg)


def test_ctrl_c_to_the_program_alone(lone_backend: Backend, quick: Scene, tmp_path: Path) -> None:
    interrupted(lone_backend, quick, tmp_path, os.kill)


def test_a_program_that_does_not_close_its_loader(
    lone_backend: Backend, quick: Scene, tmp_path: Path
) -> None:
    asked = command(lone_backend, quick, tmp_path, "leave")
    left = subprocess.run(**asked, capture_output=True, timeout=GONE_S, check=False)
    assert (left.returncode, left.stdout, left.stderr) == (0, "3\n", "")
    assert not list(tmp_path.glob("saturate-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_an_end_that_the_loader_does_not_see(
    lone_backend: Backend, quick: Scene, tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM without a handler to the whole group, SIGKILL to the program alone: workers find out by
    themselves.
    """
    with running(lone_backend, quick, tmp_path) as (consumer, workers):
        (os.killpg if number is signal.SIGTERM else os.kill)(consumer.pid, number)
        assert_gone(consumer, workers)
        assert consumer.returncode == -number
