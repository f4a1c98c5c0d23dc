"""close() ends everything within seconds, in whatever state; further epochs and openings add nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from saturate.contracts import Feed, Loader
from tests.conformance.leaving import epochs_are_flat, nothing_is_left, traces
from tests.conformance.scenes import READ_IN_THREADS, Backend, Open, Scene

ALL = (99, 99)
TAKEN: tuple[tuple[int, ...], ...] = ((), (0,), (1,), ALL, (0, 1, 2, 3))
"""How many batches a consumer takes of each iterator that it asks for."""


def used(open_: Open, feed: Feed, taken: Sequence[int]) -> Loader:
    loader = open_(feed)
    for epoch, count in enumerate(taken):
        for _ in itertools.islice(loader.batches(epoch, 0), count):
            pass
    return loader


def failed(open_: Open, feed: Feed) -> Loader:
    with suppress(ZeroDivisionError), open_(feed) as loader:
        for at, _ in enumerate(loader.batches(0, 0)):
            if at == 2:
                raise ZeroDivisionError
    return loader


def held(open_: Open, feed: Feed) -> Loader:
    loader = open_(feed)
    batches = loader.batches(0, 0)
    next(batches)
    loader.held = batches  # type: ignore[attr-defined]
    return loader


def test_close_leaves_nothing(
    any_backend: Backend, quick: Scene, temporary: Path
) -> None:
    feed = quick.feed(any_backend.device, batch_size=4, image_size=32)
    used(
        any_backend.open, feed, ALL
    ).close()  # loads libraries, starts pools of threads
    before = traces(temporary)
    ways: list[Callable[[Open, Feed], Loader]] = [
        partial(used, taken=taken) for taken in TAKEN
    ]
    for way in (*ways, failed, held):
        loader = way(any_backend.open, feed)
        loader.close()
        loader.close()
        del loader
        nothing_is_left(before, temporary)


def test_close_does_not_wait_for_a_read_that_hangs(
    lone_backend: Backend, quick: Scene, temporary: Path
) -> None:
    # a thread in a read cannot be ended; these files are late, not lost
    delay_s = 0.05 if lone_backend.name in READ_IN_THREADS else 10_000.0
    feed = quick.feed(lone_backend.device, batch_size=4, image_size=32, delay_s=delay_s)
    before = traces(temporary)
    loader = lone_backend.open(feed)
    loader.batches(0, 0)
    time.sleep(0.5)
    loader.close()
    del loader
    left = traces(temporary) - before
    assert not [name for name in left if name.startswith(("child ", "thread "))]


@pytest.mark.alone
def test_ten_epochs_are_flat(backend: Backend, quick: Scene) -> None:
    growth = epochs_are_flat(
        backend.open, quick.feed(backend.device, batch_size=8, image_size=32)
    )
    print(backend.name, {name: round(value, 3) for name, value in growth.items()})
