"""A program in a process of its own, of which nothing is left when it ends; and signals that end like Ctrl-C.
Must not know a suite.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from saturate.run._reasons import reason

ROOT = Path(__file__).resolve().parents[1]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 35.0
"""torchrun gives its ranks 30 s."""


def ran(command: list[str], log: Path, limit_s: float) -> tuple[str, str]:
    """Run a command, whose words go to the file `log`; return how it ended, and why if that is not "ok": "oom",
    "failed", or "timeout". Whatever it has started is gone when this returns.
    """
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,  # else a child could take the terminal's keys
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # one signal then reaches whatever it forks
        )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return "timeout", f"took longer than {limit_s:g} s"
    finally:
        _end(process)
    return reason(code, log.read_text(encoding="utf-8", errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to all that the process has started, and SIGKILL to what is then left."""
    # torchrun's ranks are sessions of their own; listed first, for who has lost its parent is nobody's child
    family: list[psutil.Process] = []
    if process.poll() is None:
        with suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
    for child in family:
        with suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(family, timeout=5.0)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end like Ctrl-C inside: the point under way is ended too, and the
    rows so far stay. A signal that is ignored, as under nohup, stays so.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ENDING}
    changed = [number for number in ENDING if before[number] is not signal.SIG_IGN]
    try:
        for number in changed:
            signal.signal(number, interrupt)
        yield
    finally:
        for number in changed:
            signal.signal(number, before[number])
