"""How many workers read changes nothing but the speed; `--read-delay-ms` changes nothing but the time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from loaders.images import _pipeline
from tests.conformance import checks
from tests.conformance.looking import Seen, joined, passed, seen
from tests.conformance.scenes import READ_IN_THREADS, Backend, Scene

DELAY_S = 0.03


def test_a_sample_is_the_same_in_batches_of_any_size_by_any_number_of_workers(
    backend: Backend, quick: Scene
) -> None:
    whole = passed(
        backend.open, quick.feed(backend.device, batch_size=1, image_size=32, workers=1)
    )
    assert len(whole.ids) == quick.samples
    for batch_size, workers in ((5, 0), (5, 3), (42, 2)):
        feed = quick.feed(
            backend.device, batch_size=batch_size, image_size=32, workers=workers
        )
        found = passed(backend.open, feed)
        assert len(found.ids) == quick.samples // batch_size * batch_size
        checks.same_samples(found, 0, whole, 0, backend.repeat_difference)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every delay that is built into a graph of DALI."""
    asked: list[float] = []
    delayed = _pipeline._delayed

    def noting(paths: Any, delay_s: float) -> Any:
        asked.append(delay_s)
        return delayed(paths, delay_s)

    monkeypatch.setattr(_pipeline, "_delayed", noting)
    return asked


def timed(
    backend: Backend, quick: Scene, *, workers: int, delay_s: float, epochs: int = 2
) -> tuple[float, Seen]:
    """Seconds of the fastest of some epochs, and the epoch before them, in which threads start."""
    feed = quick.feed(
        backend.device, batch_size=8, image_size=32, workers=workers, delay_s=delay_s
    )
    with backend.open(feed) as loader:
        found = joined(seen(batch, feed) for batch in loader.batches(0, 0))
        took = []
        for epoch in range(1, 1 + epochs):
            began = time.perf_counter()
            for _ in loader.batches(epoch, 0):
                pass
            took.append(time.perf_counter() - began)
        return min(took), found


def test_each_read_waits_in_the_thread_that_reads(
    paced_backend: Backend, quick: Scene, delays: list[float]
) -> None:
    """`--read-delay-ms`: as many reads wait at once as there are workers; no pixel changes; no delay, no step
    for it in DALI's graph.
    """
    backend, reads = paced_backend, quick.samples // 8 * 8
    prompt, whole = timed(backend, quick, workers=1, delay_s=0.0)
    assert delays == []
    alone, late = timed(backend, quick, workers=1, delay_s=DELAY_S, epochs=1)
    checks.same_samples(late, 0, whole, 0, backend.repeat_difference)
    assert alone >= reads * DELAY_S - 1e-3 and alone - prompt > 0.5 * reads * DELAY_S
    together, late = timed(backend, quick, workers=4, delay_s=DELAY_S)
    checks.same_samples(late, 0, whole, 0, backend.repeat_difference)
    # 8 reads in 2 rounds in DALI's threads; worker processes take whole batches, of which 5 make 2 rounds
    assert together >= reads / 4 * DELAY_S - 1e-3
    assert together < 0.7 * alone
    assert set(delays) == ({DELAY_S} if backend.name in READ_IN_THREADS else set())
