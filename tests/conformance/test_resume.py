"""Every loader gives the tail of the same epoch, whatever was asked before."""

from __future__ import annotations

import pytest

from tests.conformance import checks
from tests.conformance.scenes import Backend, Scene

FIRSTS = (17, 0, 5, 36, 41)  # multiples of the batch of 5 and others, not in order


@pytest.mark.parametrize("training", [True, False], ids=["training", "validation"])
def test_tails(any_backend: Backend, quick: Scene, training: bool) -> None:
    feed = quick.feed(
        any_backend.device, batch_size=5, image_size=32, training=training
    )
    firsts = [first for first in FIRSTS if not training or first + 5 <= quick.samples][
        :: 2 if feed.plan.views > 1 else 1
    ]
    checks.resumes_at(
        any_backend.open, feed, quick, firsts, any_backend.repeat_difference
    )
