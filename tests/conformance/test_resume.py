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
