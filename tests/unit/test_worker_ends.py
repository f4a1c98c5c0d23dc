"""Worker processes that die, hang or are stopped: whose file it was is said, and closing takes seconds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from saturate.contracts import Rows, UserError
from saturate.loaders._read_retry import mark
from saturate.loaders._workers import Work, Workers
from saturate.loaders.videos._pool import Pool
from tests.unit.test_deal import serve
from tests.unit.test_workers import rows_of

DEADLY, STOPPED = 3, 1
BATCH = 8


class Fatal(Work):
    """Work that begins with each sample in turn, and ends or stops in that of its kind."""

    def __init__(self, sample: int, marks: bool) -> None:
        self.sample = sample
        self.marks = marks

    def __call__(self, rows: Rows, slot: np.ndarray) -> None:
        for sample in rows.ids.tolist():
            if self.marks:
                mark(sample)
            if sample == self.sample:
                os.kill(
                    os.getpid(), signal.SIGKILL if sample == DEADLY else signal.SIGSTOP
                )


def workers(sample: int, marks: bool = True) -> Workers:
    return Workers(
        lambda: Fatal(sample, marks),
        workers=2,
        batch_size=BATCH,
        part_rows=4,
        part_bytes=lambda count: 12 * count,
        name_of=lambda sample: f"/data/{sample}.jpg",
    )


def pool(sample: int) -> Pool:
    return Pool(
        lambda: Fatal(sample, True), workers=2, slot_bytes=8, pinned=False,
        name_of=lambda sample: f"/data/{sample}.jpg",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("marks", "named"), [(True, "/data/3.jpg;"), (False, "no single file;")]
)
def test_a_worker_that_is_killed_names_its_file(marks: bool, named: str) -> None:
    killed = workers(DEADLY, marks)
    with pytest.raises(
        UserError, match=f"signal 9, Killed, busy with {named} .*fewer --workers"
    ):
        list(killed.run([rows_of([(1, 1)] * BATCH)]))
    killed.close()


def test_a_worker_for_clips_that_is_killed_names_its_file() -> None:
    killed = pool(DEADLY)
    units = serve(killed, [1, DEADLY, 2])
    with pytest.raises(
        UserError, match=r"signal 9, Killed, busy with /data/3\.jpg; .*fewer --workers"
    ):
        [killed.result(unit) for unit in units]
    killed.close()


@pytest.mark.parametrize("make", [workers, pool], ids=["in-order", "pool"])
def test_a_worker_that_does_not_answer(make: Callable[[int], Any]) -> None:
    """It is said what it is busy with, and closing does not wait for it, which never goes on."""
    slow = make(STOPPED)
    if isinstance(slow, Pool):
        serve(slow, [STOPPED])
    else:
        slow._sampler.start([rows_of([(1, 1)] * BATCH)])
        iter(slow._loader)
    until = time.monotonic() + 60
    named = f"busy with /data/{STOPPED}.jpg"
    while named not in slow.awaited() and time.monotonic() < until:
        time.sleep(0.05)
    assert named in slow.awaited()
    slow.close()
