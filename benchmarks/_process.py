"""A program in a process of its own, of which nothing is left when it ends; and signals that end like Ctrl-C.
Must not know a suite."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 35.0
"""torchrun gives its ranks 30 s."""


def ran(command: list[str], log: Any, limit_s: float) -> int | None:
    """Run a command and return its exit code, None when it took too long. Whatever it has started is gone
    when this returns."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,  # else a child could take the terminal's keys
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # a group of its own, so that one signal reaches whatever it forks
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to all that the process has started, and after a while SIGKILL. torchrun's ranks are
    sessions of their own."""
    with _later():
        with suppress(psutil.Error):
            # listed before any signal: who has lost its parent is nobody's child any more
            family = (
                psutil.Process(process.pid).children(recursive=True)
                if process.poll() is None
                else []
            )
            for number, patience_s in (
                (signal.SIGTERM, PATIENCE_S),
                (signal.SIGKILL, 5.0),
            ):
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(patience_s)
            for one in family:
                with suppress(psutil.Error):
                    one.kill()
            psutil.wait_procs(family, timeout=5.0)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # workers that outlived it


@contextmanager
def _heard_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Send signals that end a program to `handler` inside. One that is ignored, as under nohup that of a
    closed terminal, stays so."""
    before = {
        number: known
        for number in ENDING
        if (known := signal.getsignal(number)) is not signal.SIG_IGN
    }
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def _later() -> Iterator[None]:
    """Hold signals back inside, so that all processes are ended: a signal is heard when this is left."""
    came: list[int] = []
    try:
        with _heard_by(lambda number, _: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end like Ctrl-C inside: the point under way is ended too, and the
    rows so far stay."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _heard_by(interrupt):
        yield
