"""Work in processes that are forked from this one: they see its memory as it was, and send back what they
made."""

from __future__ import annotations

import atexit
import errno
import gc
import mmap
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext
from typing import Any, Generic, TypeVar

from saturate.contracts import UserError, counted

T = TypeVar("T")
R = TypeVar("R")

GRACE_S = 1.0
"""Seconds in which a process that is told to end may finish what it is doing."""
KILLED = "memory was short, or a file that it had mapped (an LMDB, an Arrow file) was cut short or cannot be read"
"""Why the system kills a process that reads."""
LOOK_S = 0.2
"""How often whoever waits for a child looks whether it lives, and whether all were told to end."""
NICE = 10
"""Niceness of a process that works beside a run, so that the loaders' processes come first."""
_FORKING = threading.Lock()
_forked = False


class Stop:
    """A stop flag that children see if they were forked after it was made. It is set at the latest when nobody
    holds it, or the program ends."""

    def __init__(self) -> None:
        self._word = mmap.mmap(-1, 1)
        self.end = weakref.finalize(self, _set_flag, self._word, os.getpid())
        self.end.atexit = False  # that is too late: see _at_exit
        _stops.add(self)

    def now(self) -> None:
        self._word[0] = 1

    @property
    def is_set(self) -> bool:
        return bool(self._word[0])

    def after(self, job: Future[Any]) -> None:
        """Set the flag when a child of `job` has crashed: Python 3.12 joins the others first, and they ignore
        SIGTERM."""
        if not job.cancelled() and isinstance(job.exception(), BrokenExecutor):
            self.now()


def _set_flag(word: mmap.mmap, owner: int) -> None:
    if os.getpid() == owner:  # a child has it too
        word[0] = 1


_stops: weakref.WeakSet[Stop] = weakref.WeakSet()


def _at_exit() -> None:
    for stop in list(_stops):
        stop.end()


# concurrent.futures registers its wait for processes here, before us: what was registered last is called
# first
getattr(threading, "_register_atexit", atexit.register)(_at_exit)


class Fork(ForkContext):
    """The fork context of one pool: this process does not wait for the rest of a message whose writer died.

    All children of a pool write into one pipe, so its end stays open when one of them is killed, and a plain
    read of the second half of that child's message never returns. With this context it raises EOFError.
    """

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self._stop = stop
        self._parent = os.getpid()
        self._children: list[Any] = []

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        child = ForkContext.Process(*args, **kwargs)
        self._children.append(child)
        return child

    def Queue(self, maxsize: int = 0) -> Any:
        return self._watched(super().Queue(maxsize))

    def SimpleQueue(self) -> Any:
        return self._watched(super().SimpleQueue())

    def _watched(self, queue: Any) -> Any:
        # the queue's methods are bound to this reader already, so it is not replaced
        queue._reader.__class__ = _WatchedConnection
        queue._reader.nobody_writes = self._nobody_writes
        return queue

    def _nobody_writes(self) -> bool:
        if os.getpid() != self._parent:
            return False  # a child reads what its parent writes, and ends with it (`begin`)
        return self._stop.is_set or any(
            child.exitcode is not None for child in self._children
        )


class _WatchedConnection(Connection):
    """The reading end of a queue's pipe."""

    nobody_writes: Callable[[], bool]

    def _recv(self, size: int, read: object = None) -> Any:
        return super()._recv(size, self._read)  # type: ignore[misc]

    def _read(self, handle: int, size: int) -> bytes:
        while not self.poll(LOOK_S):
            # asked in this order: what was written before a child ended is read first
            if self.nobody_writes() and not self.poll(0):
                raise EOFError("a process ended in the middle of a message")
        return os.read(handle, size)


def begin(stop: Stop, parent: int) -> None:
    """Prepare a child, first of all.

    It ends when it is told to, whatever it hangs in, and when its parent is gone.
    """
    # Ctrl-C and what torchrun or Slurm send reach the whole process group; the parent decides when children end
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)

    def end() -> None:
        while os.getppid() == parent:
            if stop.is_set:
                time.sleep(GRACE_S)  # it ends in order, unless it cannot
                os._exit(0)
            time.sleep(LOOK_S)
        os._exit(1)

    try:
        threading.Thread(target=end, daemon=True).start()
    except RuntimeError:  # no thread for it: the system starts no more processes either
        os._exit(1)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off until the end of what is inside: an import, which may make another error of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *how: came.append(how))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(*came[0])


@contextmanager
def forking() -> Iterator[None]:
    """Hold this around whatever forks.

    One at a time: a child of another pool would inherit the pipe whose end tells that this pool's child has
    ended. Children do not collect what this process has left to its garbage collector: something on the GPU
    among that would end them (cudaErrorInitializationError).
    """
    with _FORKING, warnings.catch_warnings():
        # Python >= 3.12 warns that a fork may copy a lock that some thread holds; the children use none but
        # their own
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        # inherited: it is for this process to act on
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        gc.freeze()
        try:
            yield
        finally:
            if not _forked:
                gc.unfreeze()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def starting(stop: Stop, who: str) -> Iterator[None]:
    """Hold this around what starts processes, `who`.

    Where it fails those that there are end. Raises UserError where the system starts no more.
    """
    try:
        with forking():
            yield
    except BaseException as error:
        stop.now()
        number = getattr(error, "errno", None)
        if isinstance(error, OSError) or "thread" in str(error):
            bound = "memory, ulimit -u and docker's --pids-limit bound their number"
            if number in (errno.EMFILE, errno.ENFILE):
                bound = "ulimit -n, the limit of open files, is too low for them"
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"{who} cannot all be started ({reason}): {bound}"
            ) from None
        raise


@contextmanager
def killed_if_late(processes: Sequence[Any]) -> Iterator[None]:
    """Kill worker processes that were told to end, and have not when twice their GRACE_S is over.

    One may be stopped. What runs inside waits for them.
    """

    def kill() -> None:
        for process in processes:
            if process.is_alive():
                process.kill()

    timer = threading.Timer(2 * GRACE_S, kill)
    with suppress(RuntimeError):  # no thread for it: they are waited for
        # what is closed by the interpreter's own end: its processes have ended (_at_exit), and a thread would
        # never begin, for which Python 3.11 waits for ever
        if not sys.is_finalizing():
            timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()


class Pool(Generic[T, R]):
    """Processes that do work(item) for items that are asked for bit by bit. Items and results are pickled.

    They are there at once, and end when nobody holds this, or with the program. Raises UserError where the
    system starts no processes; `who` says what they are.
    """

    def __init__(self, work: Callable[[T], R], workers: int, who: str) -> None:
        self._stop = Stop()
        with starting(self._stop, who):
            fork = Fork(self._stop)
            self._pool = ProcessPoolExecutor(
                workers, fork, _start, (work, self._stop, os.getpid())
            )
            self._pool.submit(int)  # the first one starts them all

    def submit(self, item: T) -> Future[R]:
        """Return the result to come of an item."""
        job: Future[R] = self._pool.submit(_do, item)
        job.add_done_callback(self._stop.after)
        return job

    def drop(self) -> None:
        """Have the processes end within seconds: nobody will ask for more."""
        self._stop.now()

    def kill(self) -> None:
        """End the processes at once, whatever they do."""
        self.drop()
        for process in [*(getattr(self._pool, "_processes", None) or {}).values()]:
            process.kill()

    def close(self) -> None:
        """Wait for the end of the processes."""
        with killed_if_late(
            [*(getattr(self._pool, "_processes", None) or {}).values()]
        ):
            self._pool.shutdown(cancel_futures=True)


def results(
    work: Callable[[T], R], items: Iterable[T], workers: int, *, threads: bool = False
) -> Generator[R]:
    """Yield work(item) for each item, in their order, made by `workers` processes, or by threads of this one.
    Items and results are pickled.

    Ctrl-C and SIGTERM are for this process to act on; when it is gone, the others end too. Closing it ends
    them within seconds, whatever they wait for; threads go on, and the program waits for them when it ends.
    Raises UserError where processes cannot be started, and BrokenProcessPool when one was killed.
    """
    if threads:
        executor = ThreadPoolExecutor(workers)
        try:
            yield from executor.map(work, items)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
        return
    pool = Pool(work, workers, counted(workers, "process"))
    try:
        jobs = deque(pool.submit(item) for item in items)
        while jobs:
            yield jobs.popleft().result()
    except BaseException:
        pool.drop()
        raise
    finally:
        pool.close()


def apart(work: Callable[[], R]) -> R:
    """Return work(), done in a process that ends then. Raises what it raises of OSError and UserError, and
    BrokenProcessPool when it was killed."""

    def answered(_: None) -> R | BaseException:
        try:
            return work()
        except (OSError, UserError) as error:
            return error

    (answer,) = results(answered, [None], 1)
    if isinstance(answer, BaseException):
        raise answer
    return answer


class Beside(Generic[R]):
    """The result of `work`, made in a process of its own while this one goes on. That process yields to
    others, and may fork more."""

    def __init__(self, work: Callable[[], R]) -> None:
        self._work = work
        self._pool: Pool[None, R] | None = None
        try:
            self._pool = Pool(self._patiently, 1, "a process beside the run")
            self._job = self._pool.submit(None)
        except UserError as error:  # `result` does the work
            _warn(error)

    def _patiently(self, _nothing: None) -> R:
        # here and in what is forked next: a fifth of the time to score detections went to looking for cycles
        gc.disable()
        os.nice(NICE)
        return self._work()

    def done(self) -> bool:
        """Whether `result` need not wait for the process."""
        return self._pool is None or self._job.done()

    def result(self) -> R:
        """Wait for it and for the end of the process, and raise what the work has raised.

        Where the process did not live, this one does the work.
        """
        if self._pool is None:
            return self._work()
        try:
            return self._job.result()
        except BrokenProcessPool as error:
            _warn(error)
        finally:
            self._pool.close()
        return self._work()

    def drop(self) -> None:
        """End it within seconds: nobody will ask for the result."""
        if self._pool is not None:
            self._pool.drop()

    def kill(self) -> None:
        """End it at once: it has nothing to finish."""
        if self._pool is not None:
            self._pool.kill()


def _warn(error: Exception) -> None:
    warnings.warn(
        f"worker processes did not live ({type(error).__name__}: {error}): one does their work, slowly",
        stacklevel=3,
    )


def _renew() -> None:
    """Renew the lock in a child, which has its parent's, and held.

    What it has inherited stays frozen if it forks too.
    """
    global _FORKING, _forked
    _FORKING = threading.Lock()
    _forked = True


os.register_at_fork(after_in_child=_renew)

_work: Callable[[Any], Any] | None = None  # of a worker process


def _start(work: Callable[[Any], Any], stop: Stop, parent: int) -> None:
    global _work
    _work = work
    begin(stop, parent)


def _do(item: object) -> Any:
    assert _work is not None
    return _work(item)
