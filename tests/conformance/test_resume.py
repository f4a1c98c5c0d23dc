"""Resuming is asking for another `first`: every loader gives the tail of the same epoch, whatever was asked
before.
"""

from __future__ import annotations

import itertools

import pytest

from tests.conformance import checks
from tests.conformance.looking import joined, passed, seen
from tests.conformance.scenes import Backend, Scene

FIRSTS = (0, 5, 10, 3, 17, 36, 41)  # multiples of the batch of 5 and others, not in order


@pytest.mark.parametrize("training", [True, False], ids=["training", "validation"])
def test_tails(backend: Backend, quick: Scene, training: bool) -> None:
    feed = quick.feed(backend.device, batch_size=5, image_size=32, training=training)
    firsts = [first for first in FIRSTS if not training or first + 5 <= quick.samples][
        :: 2 if feed.plan.views > 1 else 1
    ]
    checks.resumes_at(backend.open, feed, quick, firsts, backend.repeat_difference)


def test_tails_of_ids(any_backend: Backend, quick: Scene) -> None:
    feed = quick.feed(any_backend.device, batch_size=5, image_size=32)
    with any_backend.open(feed) as loader:
        for epoch, first in itertools.product((0, 1, 7), (0, 5, 13)):
            ids = [batch.ids.tolist() for batch in loader.batches(epoch, first)]
            assert ids == [rows.ids.tolist() for rows in feed.plan.rows(epoch, first)]


def test_nothing_left(any_backend: Backend, quick: Scene) -> None:
    feed = quick.feed(any_backend.device, batch_size=5, image_size=32)
    with any_backend.open(feed) as loader:
        for first in (quick.samples, quick.samples - 4, quick.samples):
            assert list(loader.batches(0, first)) == []
        assert next(iter(loader.batches(0, 0))).ids.tolist() == feed.plan.rows(0, 0)[0].ids.tolist()


def test_another_process_and_another_day(lone_backend: Backend, quick: Scene) -> None:
    """Two loaders that know nothing of each other: the second begins where the first was stopped."""
    feed = quick.feed(lone_backend.device, batch_size=6, image_size=32)
    whole = passed(lone_backend.open, feed, 3)
    with lone_backend.open(feed) as loader:
        begin = joined(seen(batch, feed) for batch in itertools.islice(loader.batches(3, 0), 3))
    checks.same_samples(begin, 0, whole, 0, lone_backend.repeat_difference)
    checks.same_samples(passed(lone_backend.open, feed, 3, 18), 0, whole, 18, lone_backend.repeat_difference)


def test_abandoned_iterators(any_backend: Backend, quick: Scene) -> None:
    """Asked again many times quickly, after none, one or several batches; the last iterator gives the whole
    epoch.
    """
    feed = quick.feed(any_backend.device, batch_size=4, image_size=32)
    with any_backend.open(feed) as loader:
        for taken in (0, 1, 3, 0, 0, 2, 1):
            batches = loader.batches(taken, 0)
            for rows, batch in zip(feed.plan.rows(taken, 0)[:taken], batches, strict=False):
                assert batch.ids.tolist() == rows.ids.tolist()
        ids = [batch.ids.tolist() for batch in loader.batches(1, 0)]
        assert ids == [rows.ids.tolist() for rows in feed.plan.rows(1, 0)]


def test_abandoned_iterators_leave_no_pixels_behind(lone_backend: Backend, quick: Scene) -> None:
    feed = quick.feed(lone_backend.device, batch_size=4, image_size=32)
    whole = passed(lone_backend.open, feed, 1)
    with lone_backend.open(feed) as loader:
        for taken in (2, 0, 1, 4):
            for _ in itertools.islice(loader.batches(0, 0), taken):
                pass
        checks.same_samples(
            joined(seen(batch, feed) for batch in loader.batches(1, 0)),
            0,
            whole,
            0,
            lone_backend.repeat_difference,
        )


def test_validation_in_the_middle_of_an_epoch(lone_backend: Backend, quick: Scene, ruled: Scene) -> None:
    """A second loader is opened, passed and closed between two training batches; neither notices."""
    feed = quick.feed(lone_backend.device, batch_size=5, image_size=32)
    val_feed = ruled.feed(lone_backend.device, batch_size=7, image_size=40, training=False)
    whole, val_whole = passed(lone_backend.open, feed), passed(lone_backend.open, val_feed)
    parts = []
    with lone_backend.open(feed) as loader:
        for at, batch in enumerate(loader.batches(0, 0)):
            if at in (2, 5):
                kept = seen(batch, feed)
                val_seen = passed(lone_backend.open, val_feed)
                checks.same_samples(val_seen, 0, val_whole, 0, lone_backend.repeat_difference)
                # still ours: contracts.Batch says "until you ask for the next one"
                checks.same_samples(seen(batch, feed), 0, kept, 0, 0)
            parts.append(seen(batch, feed))
    checks.same_samples(joined(parts), 0, whole, 0, lone_backend.repeat_difference)


def test_two_loaders_in_turn(lone_backend: Backend, quick: Scene) -> None:
    """Batch by batch from two open loaders."""
    one, two = (
        quick.feed(lone_backend.device, batch_size=5, image_size=32, training=training)
        for training in (True, False)
    )
    expected = passed(lone_backend.open, one), passed(lone_backend.open, two)
    found: tuple[list, list] = ([], [])
    with lone_backend.open(one) as first, lone_backend.open(two) as second:
        for a, b in zip(first.batches(0, 0), second.batches(0, 0), strict=False):
            found[0].append(seen(a, one))
            found[1].append(seen(b, two))
    for parts, whole in zip(found, expected, strict=True):
        checks.same_samples(joined(parts), 0, whole, 0, lone_backend.repeat_difference)
