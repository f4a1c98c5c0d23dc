"""What a test has started, and that may take a moment to end."""

import gc
import time
from collections.abc import Callable, Collection
from typing import Any


def left_after(
    within_s: float, found: Callable[[], Collection[Any]]
) -> Collection[Any]:
    """Return what is found still after that time, as soon as it is nothing.

    Garbage is collected after a while, and then once a second: with all that is imported here it takes a
    third of one.
    """
    until = time.monotonic() + within_s
    collect = time.monotonic() + 0.2
    while (left := found()) and time.monotonic() < until:
        time.sleep(0.01)
        if time.monotonic() > collect:
            gc.collect()
            collect = time.monotonic() + 1.0
    return left
