"""What forked processes must not do to what they have inherited."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from saturate.contracts import UserError
from saturate.loaders._workers import Work, Workers
from saturate.loaders.videos._pool import Pool
from saturate.system import processes
from tests.unit.test_deal import rows_of, serve

ROOT = Path(__file__).parents[2]


class Collect(Work):
    def __call__(self, rows: Any = None, slot: Any = None) -> int:
        return gc.collect()


class DieInAMessage(Work):
    """Work with a large result, whose process is killed when half of it is written."""

    def __call__(self, rows: Any = None, slot: Any = None) -> bytes:
        Connection._send = half_a_message  # type: ignore[attr-defined]
        return bytes(1 << 20)


def half_a_message(connection: Connection, data: memoryview, *_: Any) -> None:
    if len(data) > 4:  # behind the length
        os.write(connection.fileno(), data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(connection.fileno(), data)


def read_workers() -> None:
    workers = Workers(
        DieInAMessage, workers=2, batch_size=1, part_bytes=lambda rows: rows
    )
    try:
        list(workers.run([rows_of(1)] * 4))
    finally:
        workers.close()


def read_pool() -> None:
    pool = Pool(DieInAMessage, workers=2, slot_bytes=1, pinned=False)
    try:
        for unit in serve(pool, [1] * 4):
            pool.result(unit)
    finally:
        pool.close()


def read_results() -> None:
    list(processes.results(DieInAMessage(), range(4), 2))


def read_submitted() -> None:
    processes.Pool(DieInAMessage(), 2, "two").submit(1).result()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("run", "error"),
    [
        (read_workers, UserError),
        (read_pool, UserError),
        (read_results, BrokenProcessPool),
        (read_submitted, BrokenProcessPool),
    ],
)
def test_half_a_message_of_a_killed_child_is_not_waited_for(
    run: Callable[[], None], error: type[Exception]
) -> None:
    children = alive()
    with pytest.raises(error, match=r"signal 9|abruptly"):
        run()
    until(lambda: alive() <= children)


def test_processes_that_cannot_be_started_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number = errno.EMFILE
    children, forks, whole = alive(), [0], os.fork

    def fork() -> int:
        forks[0] += 1
        if forks[0] % 3:
            return whole()
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fork", fork)
    for start, who in (
        (
            lambda: Workers(
                Collect, workers=4, batch_size=1, part_bytes=lambda rows: rows
            ),
            "--workers 4",
        ),
        (lambda: Pool(Collect, workers=4, slot_bytes=1, pinned=False), "--workers 4"),
        (lambda: list(processes.results(abs, range(9), 4)), "4 processes"),
    ):
        with pytest.raises(
            UserError,
            match=rf"^{who} cannot all be started \({re.escape(os.strerror(number))}\): .*ulimit -n",
        ):
            start()
    until(lambda: alive() <= children)


def test_work_beside_is_done_in_another_process() -> None:
    begin = mmap.mmap(-1, 1)

    def work() -> tuple[int, int]:
        until(lambda: bool(begin[0]))
        return os.getpid(), os.nice(0)

    told = processes.Beside(work)
    assert not told.done()
    begin[0] = 1
    process, nice = told.result()
    assert (
        process != os.getpid()
        and nice == min(os.nice(0) + processes.NICE, 19)
        and told.done()
    )
    assert not psutil.pid_exists(process), "it has ended, and left nothing to end later"


def test_what_work_beside_raises_is_raised_where_it_is_asked_for() -> None:
    with pytest.raises(ZeroDivisionError):
        processes.Beside(lambda: 1 // 0).result()


def alive() -> set[int]:
    here = psutil.Process().children()
    return {child.pid for child in here if child.status() != psutil.STATUS_ZOMBIE}


def until(so: Callable[[], bool]) -> None:
    while not so():
        time.sleep(0.01)
