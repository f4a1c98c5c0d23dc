"""The scheduling of this thread, which the AV1 encoder takes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_schedule() -> Iterator[None]:
    """Give this thread its scheduling back: for root the AV1 encoder makes it a real-time one, which takes a
    core from everybody else for as long as the process lives."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)
