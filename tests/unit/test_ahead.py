"""The thread that fills slots ahead of the consumer."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Generator

import pytest
import torch

from saturate.loaders._stages import Stages
from saturate.loaders._staging import Ahead

CPU = torch.device("cpu")


class Counting:
    def __init__(self) -> None:
        self.made, self.closed = 0, threading.Event()
        self._changed = threading.Condition()

    def __call__(self) -> Generator[int]:
        try:
            for item in itertools.count():
                with self._changed:
                    self.made += 1
                    self._changed.notify()
                yield item
        finally:
            self.closed.set()

    def makes(self, count: int) -> bool:
        """Whether it comes to make so many, and stays there."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.made >= count, timeout=10):
                return False
            return not self._changed.wait_for(lambda: self.made > count, timeout=0.1)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_thread_goes_on_when_it_is_told_to_or_the_next_one_is_asked_for(
    depth: int,
) -> None:
    source = Counting()
    ahead = Ahead(source, depth=depth, device=CPU, laps=Stages(0).thread)
    full = depth + 1  # those that wait, and one that has no place yet
    try:
        assert source.makes(full)
        items = iter(ahead)
        assert next(items) == 0
        assert source.makes(full)
        ahead.release()
        assert source.makes(full + 1)
        ahead.release()
        assert source.makes(full + 1)
        assert next(items) == 1
        assert next(items) == 2
        assert source.makes(full + 2)
    finally:
        ahead.close()
    assert source.closed.is_set()


def test_a_signal_that_does_not_wake_the_consumer_is_heard() -> None:
    """Another thread gets it; its handler runs in the main thread all the same."""
    asked, heard, was_heard = threading.Event(), threading.Event(), []

    def source() -> Generator[int]:
        asked.set()
        was_heard.append(heard.wait(60))  # the consumer waits meanwhile
        yield from ()

    # raises nothing: Python may run it in a callback of the garbage collector, where that is lost
    def handler(*_: object) -> None:
        heard.set()

    def send() -> None:
        asked.wait()
        time.sleep(0.2)  # the consumer waits by now
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    ahead = Ahead(source, depth=2, device=CPU, laps=Stages(0).thread)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        assert list(ahead) == []
        assert was_heard == [True]
    finally:
        heard.set()
        sender.join()
        ahead.close()
        signal.signal(signal.SIGUSR1, before)
