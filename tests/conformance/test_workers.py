"""How many workers read changes nothing but the speed; `--read-delay-ms` changes nothing but the time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from loaders import _dali
from tests.conformance import checks
from tests.conformance.looking import joined, passed, seen
from tests.conformance.scenes import Backend, Scene

DELAY_S = 0.02


@pytest.mark.parametrize("training", [True, False], ids=["training", "validation"])
def test_worker_counts(backend: Backend, small: Scene, training: bool) -> None:
    whole = passed(backend.open, small.feed(backend.device, batch_size=5, image_size=32, training=training, workers=1))
    for workers in (0, 3):
        feed = small.feed(backend.device, batch_size=5, image_size=32, training=training, workers=workers)
        found = passed(backend.open, feed)
        assert found.ids.tolist() == whole.ids.tolist()
        checks.same_samples(found, 0, whole, 0, backend.repeat_difference)


def test_batch_sizes(backend: Backend, small: Scene) -> None:
    """The same samples have the same pixels in batches of any size."""
    feed = small.feed(backend.device, batch_size=1, image_size=32)
    whole = passed(backend.open, feed)
    assert len(whole.ids) == small.samples
    for batch_size in (4, 42):
        feed = small.feed(backend.device, batch_size=batch_size, image_size=32)
        checks.same_samples(passed(backend.open, feed), 0, whole, 0, backend.repeat_difference)


def seconds(backend: Backend, small: Scene, *, workers: int, delay_s: float) -> float:
    """Of the second epoch of an open loader: threads have started and DALI's delay is compiled."""
    feed = small.feed(backend.device, batch_size=8, image_size=32, workers=workers, delay_s=delay_s)
    with backend.open(feed) as loader:
        checked = joined(seen(batch, feed) for batch in loader.batches(0, 0))
        assert checked.ids.tolist() == [i for rows in feed.plan.rows(0, 0) for i in rows.ids.tolist()]
        began = time.perf_counter()
        for _ in loader.batches(1, 0):
            pass
        return time.perf_counter() - began


def test_each_read_waits_in_the_thread_that_reads(backend: Backend, small: Scene) -> None:
    reads = small.samples // 8 * 8
    alone = seconds(backend, small, workers=1, delay_s=DELAY_S)
    assert reads * DELAY_S <= alone + 1e-3
    together = seconds(backend, small, workers=4, delay_s=DELAY_S)
    # four wait at once, a batch at a time: 8 reads in 2 rounds in DALI's threads, ceil(5 / 4) rounds of batches among processes
    assert reads / 4 * DELAY_S <= together + 1e-3
    assert together < 0.6 * alone
    assert seconds(backend, small, workers=1, delay_s=0.0) < 0.5 * reads * DELAY_S


def test_a_delay_changes_no_pixel(backend: Backend, small: Scene) -> None:
    whole = passed(backend.open, small.feed(backend.device, batch_size=5, image_size=32))
    late = passed(backend.open, small.feed(backend.device, batch_size=5, image_size=32, delay_s=0.002))
    checks.same_samples(late, 0, whole, 0, backend.repeat_difference)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Every delay that is built into a graph of DALI."""
    asked: list[float] = []
    delayed = _dali._delayed
    monkeypatch.setattr(_dali, "_delayed", lambda paths, delay_s: (asked.append(delay_s), delayed(paths, delay_s))[1])
    yield asked


def test_no_delay_costs_nothing(backend: Backend, small: Scene, delays: list[float]) -> None:
    """Without a delay DALI's graph has no step for it."""
    passed(backend.open, small.feed(backend.device, batch_size=21, image_size=32))
    assert delays == []
    passed(backend.open, small.feed(backend.device, batch_size=21, image_size=32, delay_s=0.001))
    assert set(delays) == ({0.001} if backend.name in ("dali-cpu", "dali-gpu") else set())
