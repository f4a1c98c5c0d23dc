"""The request to stop a run, a signal such as SIGTERM or Ctrl-C, as a flag: the loop looks at it, and decides what
to do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ECHO_S = 3.0
"""Signals that come this soon after the first one are the same request: torchrun passes on what the terminal
sent to all.
"""

SIGNALS = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    # what Slurm sends before a job's time is over: --signal=USR1@90
    signal.SIGUSR1: signal.SIGTERM,
    signal.SIGUSR2: signal.SIGTERM,
}
"""Signals that ask a run to stop, and as which of them each acts; the exit code is 128 + that one's number."""


AGENT = os.getppid()
"""torchrun's process, where it has started this one; --unkillable forks its trainers from this process later."""
AFTER_AGENT = """
import os, select, sys
try:
    select.select([os.pidfd_open(int(sys.argv[1]))], [], [], 60)
except (AttributeError, OSError):
    pass
print(sys.argv[2], file=sys.stderr)
"""


class Asked(Exception):
    """A run was asked to stop while it waited for a batch that does not come."""


class StopRequest:
    """One of SIGNALS as a flag: calling it says whether one has come.

    For a loop that never looks a second Ctrl-C is a KeyboardInterrupt, and a third ends the process.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        # whether a wait that may be given up is to end by the next signal
        self.gives_up = False
        self._heard_s = 0.0
        self._may_give_up = False

    def __call__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear these signals inside."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
                for number, handler in before.items():
                    signal.signal(number, handler)

    @contextmanager
    def may_give_up(self) -> Iterator[None]:
        """Let what is waited for inside be given up: then Asked is raised there."""
        self._may_give_up = True
        try:
            if self.gives_up:
                raise Asked
            yield
        finally:
            self._may_give_up = False

    def _hear(self, number: int, _frame: object) -> None:
        if self.signal is None:
            self.signal = SIGNALS[signal.Signals(number)]
            self._heard_s = time.monotonic()
            later = f"Ctrl-C {ECHO_S:.0f} s from now or later ends without a checkpoint"
            if int(os.environ.get("RANK", 0)) == 0:  # once, and not on every rank
                notify(f"stopping after this step; {later}")
        if self.gives_up and self._may_give_up:
            # at the first signal, too: the watch, a thread, has heard it while this one hung in a library
            raise Asked
        is_echo = time.monotonic() - self._heard_s <= ECHO_S
        if number == signal.SIGINT and not is_echo:
            for each in SIGNALS:
                signal.signal(each, signal.SIG_DFL)  # closing may hang too
            if int(os.environ.get("RANK", 0)) == 0:
                notify("ending now, without a checkpoint")
            raise KeyboardInterrupt


def notify(line: str) -> None:
    """Say a line at any moment, in any thread."""
    with suppress(OSError):
        # past Python's streams, in whose middle a signal may have come
        os.write(2, f"train.py: {line}\n".encode(errors="replace"))


def notify_after_torchrun(line: str) -> None:
    """Say a line on stderr once torchrun has ended, whose traceback after Ctrl-C buries what its ranks say.

    A small process of its own waits for that, for a minute at most. Without torchrun nothing is said.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-ISc", AFTER_AGENT, str(AGENT), f"train.py: {line}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # deaf to the terminal, and not torchrun's to kill
        )
