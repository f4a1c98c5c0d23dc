"""What a test may change of its process, and gives back: the scheduling of its thread, and what signals do."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def own_schedule() -> Iterator[None]:
    """Give this thread its scheduling back: for root the AV1 encoder makes it a real-time one, which takes a
    core from everybody else for as long as the process lives."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


@contextmanager
def own_signals() -> Iterator[None]:
    """Raise AssertionError where signals act otherwise afterwards, and have them act as before: a process in which
    SIGPIPE has its default is gone without a word, many tests later.
    """
    before = _handlers()
    yield
    changed = {number for number, way in _handlers().items() if way != before[number]}
    for number in changed:
        signal.signal(number, before[number])
    assert not changed, f"the test has left other handlers of {sorted(changed)}"


def _handlers() -> dict[int, Any]:
    # PyTorch's DataLoader takes SIGCHLD for good, and pytest-timeout gives SIGALRM back when a test has failed
    numbers = signal.valid_signals() - {signal.SIGCHLD, signal.SIGALRM}
    return {number: signal.getsignal(number) for number in numbers}
