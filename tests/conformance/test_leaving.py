"""close() ends everything within seconds, in whatever state; further epochs and openings add nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts import Feed, Loader
from tests.conformance.leaving import WITHIN_S, Traces, epochs_are_flat, nothing_is_left, slope
from tests.conformance.scenes import READ_IN_THREADS, Backend, Open, Scene

CLOSE_S = 15.0


class Stopped(Exception):
    """What went wrong in the consumer."""


def _nothing_asked(open_: Open, feed: Feed) -> Loader:
    return open_(feed)


def _nothing_taken(open_: Open, feed: Feed) -> Loader:
    loader = open_(feed)
    loader.batches(0, 0)
    return loader


def _one_taken(open_: Open, feed: Feed) -> Loader:
    loader = open_(feed)
    next(iter(loader.batches(0, 0)))
    return loader


def _all_taken(open_: Open, feed: Feed) -> Loader:
    loader = open_(feed)
    for epoch in (0, 1):
        for _ in loader.batches(epoch, 0):
            pass
    return loader


def _asked_again(open_: Open, feed: Feed) -> Loader:
    loader = open_(feed)
    for epoch in range(4):
        for _ in itertools.islice(loader.batches(epoch, 0), epoch):
            pass
    return loader


def _exception(open_: Open, feed: Feed) -> Loader:
    loader = open_(feed)
    with pytest.raises(Stopped), loader:
        _third_batch_fails(loader)
    return loader


def _third_batch_fails(loader: Loader) -> None:
    for at, _ in enumerate(loader.batches(0, 0)):
        if at == 2:
            raise Stopped


def _held_iterator(open_: Open, feed: Feed) -> Loader:
    loader = open_(feed)
    batches = loader.batches(0, 0)
    next(batches)
    loader.held = batches  # type: ignore[attr-defined]
    return loader


WAYS: tuple[Callable[[Open, Feed], Loader], ...] = (
    _nothing_asked,
    _nothing_taken,
    _one_taken,
    _all_taken,
    _asked_again,
    _exception,
    _held_iterator,
)


def test_close_leaves_nothing(any_backend: Backend, quick: Scene, temporary: Path) -> None:
    feed = quick.feed(any_backend.device, batch_size=4, image_size=32)
    _all_taken(any_backend.open, feed).close()  # libraries are loaded, pools of threads have started
    before = Traces.now(temporary)
    for way in WAYS:
        loader = way(any_backend.open, feed)
        began = time.monotonic()
        loader.close()
        assert time.monotonic() - began < CLOSE_S
        loader.close()
        del loader
        nothing_is_left(before, temporary)


def test_close_does_not_wait_for_a_read_that_hangs(
    lone_backend: Backend, quick: Scene, temporary: Path
) -> None:
    backend = lone_backend
    if backend.name in READ_IN_THREADS:  # a thread in a read cannot be ended; these files are late, not lost
        feed = quick.feed(backend.device, batch_size=4, image_size=32, delay_s=0.05)
    else:
        feed = quick.feed(backend.device, batch_size=4, image_size=32, delay_s=100.0)
    before = Traces.now(temporary)
    loader = backend.open(feed)
    loader.batches(0, 0)
    time.sleep(0.5)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 30
    del loader
    left = Traces.now(temporary)
    assert left.children == before.children
    assert left.threads == before.threads


def test_ten_openings_add_nothing(lone_backend: Backend, quick: Scene, temporary: Path) -> None:
    feed = quick.feed(lone_backend.device, batch_size=8, image_size=32)
    traces: list[Traces] = []
    for at in range(12):
        with lone_backend.open(feed) as loader:
            for _ in itertools.islice(loader.batches(at, 0), at % 4):
                pass
        del loader
        if at >= 2:
            nothing_is_left(traces[0] if traces else Traces.now(temporary), temporary, WITHIN_S)
            traces.append(Traces.now(temporary))
    assert slope([trace.files for trace in traces]) <= 0
    assert slope([trace.os_threads for trace in traces]) <= 0


@pytest.mark.alone
def test_ten_epochs_are_flat(backend: Backend, quick: Scene) -> None:
    growth = epochs_are_flat(backend.open, quick.feed(backend.device, batch_size=8, image_size=32))
    print(backend.name, {name: round(value, 3) for name, value in growth.items()})
