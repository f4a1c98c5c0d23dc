"""Every loader gives the tail of the same epoch, whatever was asked before."""

from __future__ import annotations

import itertools

import pytest

from tests.conformance import checks
from tests.conformance.looking import joined, passed, seen
from tests.conformance.scenes import Backend, Scene

FIRSTS = (17, 0, 5, 36, 41)  # multiples of the batch of 5 and others, not in order


@pytest.mark.parametrize("training", [True, False], ids=["training", "validation"])
def test_tails(backend: Backend, quick: Scene, training: bool) -> None:
    feed = quick.feed(backend.device, batch_size=5, image_size=32, training=training)
    firsts = [first for first in FIRSTS if not training or first + 5 <= quick.samples][
        :: 2 if feed.plan.views > 1 else 1
    ]
    checks.resumes_at(backend.open, feed, quick, firsts, backend.repeat_difference)


def test_abandoned_iterators_leave_no_pixels_behind(
    lone_backend: Backend, quick: Scene
) -> None:
    """And a loader that was opened for it goes on where another one was stopped."""
    feed = quick.feed(lone_backend.device, batch_size=4, image_size=32)
    whole = passed(lone_backend.open, feed, 1)
    checks.same_samples(
        passed(lone_backend.open, feed, 1, 18),
        0,
        whole,
        18,
        lone_backend.repeat_difference,
    )
    with lone_backend.open(feed) as loader:
        for taken in (2, 0, 1, 4):
            for _ in itertools.islice(loader.batches(0, 0), taken):
                pass
        assert not list(loader.batches(0, quick.samples))
        found = joined(seen(batch, feed) for batch in loader.batches(1, 0))
    checks.same_samples(found, 0, whole, 0, lone_backend.repeat_difference)


def test_ids_whatever_was_asked_before(any_backend: Backend, quick: Scene) -> None:
    """Tails, nothing at all, and iterators that are abandoned after none, one or several batches."""
    feed = quick.feed(any_backend.device, batch_size=5, image_size=32)
    tails = [
        *itertools.product((0, 1, 7), (0, 5, 13)),
        (0, quick.samples),
        (0, quick.samples - 4),
    ]
    asked: list[tuple[int, int, int | None]] = [
        (epoch, first, None) for epoch, first in tails
    ]
    asked += [(taken, 0, taken) for taken in (0, 1, 3, 0, 0, 2, 1)]
    with any_backend.open(feed) as loader:
        for epoch, first, taken in (*asked, (1, 0, None)):
            ids = [
                batch.ids.tolist()
                for batch in itertools.islice(loader.batches(epoch, first), taken)
            ]
            assert ids == [
                rows.ids.tolist() for rows in feed.plan.rows(epoch, first)[:taken]
            ]
