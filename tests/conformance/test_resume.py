"""Every loader gives the tail of the same epoch, whatever was asked before."""

from __future__ import annotations

import itertools

import pytest
import torch

from loaders import open_loader
from tests.conformance import checks
from tests.conformance.scenes import Backend, Scene

FIRSTS = (17, 0, 5, 36, 41)  # multiples of the batch of 5 and others, not in order


@pytest.mark.parametrize("training", [True, False], ids=["training", "validation"])
def test_tails(backend: Backend, quick: Scene, training: bool) -> None:
    feed = quick.feed(backend.device, batch_size=5, image_size=32, training=training)
    firsts = [first for first in FIRSTS if not training or first + 5 <= quick.samples][
        :: 2 if feed.plan.views > 1 else 1
    ]
    checks.resumes_at(backend.open, feed, quick, firsts, backend.repeat_difference)


def test_ids_of_noise_whatever_was_asked_before(
    device: torch.device, small: Scene
) -> None:
    """Tails, nothing at all, and iterators that are abandoned after none, one or several batches."""
    feed = small.feed(device, batch_size=5, image_size=32)
    tails = [
        *itertools.product((0, 1, 7), (0, 5, 13)),
        (0, small.samples),
        (0, small.samples - 4),
    ]
    asked: list[tuple[int, int, int | None]] = [
        (epoch, first, None) for epoch, first in tails
    ]
    asked += [(taken, 0, taken) for taken in (0, 1, 3, 0, 0, 2, 1)]
    with open_loader("synthetic", feed) as loader:
        for epoch, first, taken in (*asked, (1, 0, None)):
            ids = [
                batch.ids.tolist()
                for batch in itertools.islice(loader.batches(epoch, first), taken)
            ]
            assert ids == [
                rows.ids.tolist() for rows in feed.plan.rows(epoch, first)[:taken]
            ]
