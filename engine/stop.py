"""Being asked to stop, as a flag that the loop looks at: what it does then is its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ECHO_S = 3.0
"""Signals that come this soon after the first one are the same request: torchrun passes on what the terminal
sent to all.
"""


class StopRequest:
    """SIGTERM or Ctrl-C as a flag: calling it says whether one has come.

    For a loop that never looks a second Ctrl-C is a KeyboardInterrupt, and a third ends the process.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._heard_s = 0.0

    def __call__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear both signals inside."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _hear(self, number: int, _frame: object) -> None:
        if self.signal is None:
            self.signal = number
            self._heard_s = time.monotonic()
            later = f"Ctrl-C {ECHO_S:.0f} s from now or later ends without a checkpoint"
            _say(f"stopping after this step; {later}")
        elif number == signal.SIGINT and time.monotonic() - self._heard_s > ECHO_S:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)  # closing may hang too
            _say("ending now, without a checkpoint")
            raise KeyboardInterrupt


def _say(line: str) -> None:
    """Say a line once, and not on every rank."""
    if int(os.environ.get("RANK", 0)) == 0:
        with suppress(OSError):
            # past Python's streams, in whose middle the signal may have come
            os.write(2, f"train.py: {line}\n".encode())
