"""Work in processes that are forked from this one: they have what it has, and send back what they made."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_FORKING = threading.Lock()


@contextmanager
def forking() -> Iterator[None]:
    """Around whatever forks.

    One at a time: a child of another pool would inherit the pipe whose end tells that this pool's child has ended. Children do not collect
    what this process has left to its garbage collector: something on the GPU among that would end them (cudaErrorInitializationError).
    """
    with _FORKING, warnings.catch_warnings():
        # Python >= 3.12 warns that a fork may copy a lock that some thread holds; the children use none but their own
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: it is for this process to act on
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def results(work: Callable[[T], R], items: Iterable[T], workers: int, *, threads: bool = False) -> Generator[R]:
    """What `work` makes of each item, in their order; by so many processes, or by threads of this one. Items and results are pickled.

    Ctrl-C and SIGTERM are for this process to act on; when it is gone, the others end too. Closing it waits for what was begun.
    """
    fork = multiprocessing.get_context("fork")
    pool: Executor = ThreadPoolExecutor(workers) if threads else ProcessPoolExecutor(workers, fork, _start, (work, os.getpid()))
    try:
        with forking():  # all of them start here
            made = pool.map(work if threads else _do, items)
        yield from made
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def gathered(work: Callable[[T], R], items: Sequence[T], workers: int) -> list[R]:
    """`results`, all of them. Where there are no processes, or no memory for them, this one does the work: a run does not end for that."""
    try:
        return list(results(work, items, workers))
    except (BrokenProcessPool, OSError) as error:
        warnings.warn(f"worker processes did not live ({type(error).__name__}: {error}): one does their work, slowly", stacklevel=2)
        return [work(item) for item in items]


_work: Callable[[Any], Any] | None = None  # of a worker process


def _start(work: Callable[[Any], Any], parent: int) -> None:
    global _work
    _work = work
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides
        signal.signal(number, signal.SIG_IGN)

    def end_with_parent() -> None:  # one that was killed would leave us waiting for work for ever
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _do(item: Any) -> Any:
    assert _work is not None
    return _work(item)
