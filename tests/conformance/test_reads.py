"""Reads of a worker that are under way together, of its rows and of those that it gets next."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from saturate.contracts import UserError
from saturate.loaders._read_retry import AGAIN, Reads


class Slow:
    """A source whose every read takes a while."""

    alone_while_fast = False

    def __init__(self, reads_at_once: int, takes_s: float) -> None:
        self.reads_at_once = reads_at_once
        self.takes_s = takes_s
        self.asked: Counter[int] = Counter()
        self.most = self.under_way = 0
        self.lock = threading.Lock()

    def name(self, sample: int) -> str:
        return f"sample {sample}"

    def read(self, sample: int) -> bytes:
        with self.lock:
            self.asked[sample] += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        time.sleep(self.takes_s)
        with self.lock:
            self.under_way -= 1
        if sample == 13:
            raise UserError("sample 13 is gone")
        return b"%d" % sample


@pytest.mark.parametrize("at_once", [1, 4])
def test_reads_are_those_asked_for_once_each(at_once: int) -> None:
    """Some are asked for and never wanted, some wanted and never asked for, one cannot be had."""
    source: Any = Slow(at_once, 0.01)
    reads = Reads(source)
    for first in range(0, 24, 4):
        reads.ask(np.arange(first, first + 8))
        for sample in range(first, first + 4):
            if sample == 13:
                with pytest.raises(UserError, match="sample 13 is gone"):
                    reads.read(sample)
            else:
                assert reads.read(sample) == b"%d" % sample
    reads.ask(np.array([1]))
    assert reads.read(2) == b"2"
    assert {source.asked[sample] for sample in range(24) if sample != 2} <= {1, 2}
    assert all(source.asked[sample] == 1 for sample in range(3, 24))
    assert source.most == 1 if at_once == 1 else 1 < source.most <= at_once + 1, (
        "one more is read at once"
    )


def test_threads_read_a_store_while_it_is_slow() -> None:
    """One read at a time from the page cache, several from a disk; a change is seen within an epoch."""
    source: Any = Slow(4, 0.0)
    source.alone_while_fast = True
    reads = Reads(source)
    most = []
    for takes_s in (0.0, 0.002, 0.0):
        source.takes_s = takes_s
        for first in range(0, 8 * AGAIN, 8):
            if first == 4 * AGAIN:
                source.most = 0  # from here on the change was seen
            samples = 1000 + np.arange(first, first + 16)
            reads.ask(samples)
            for sample in samples[:8].tolist():
                reads.read(sample)
        most.append(source.most)
        assert (reads._threads is None) == (len(most) == 1)
    assert most[0] == most[2] == 1 and 1 < most[1] <= 4 and not reads._asked
