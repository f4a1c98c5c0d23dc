"""Being asked to stop, as a flag that the loop looks at: what it does then is its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """SIGTERM or Ctrl-C as a flag; a second one is not needed and not obeyed."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, lambda got, _frame: setattr(self, "signal", self.signal or got))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
