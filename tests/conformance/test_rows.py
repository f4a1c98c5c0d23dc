"""ids, labels, padding, windows and flips of every loader are the plan's."""

from __future__ import annotations

import pytest

from tests.conformance import checks
from tests.conformance.scenes import Backend, Scene


@pytest.mark.parametrize("training", [True, False], ids=["training", "validation"])
def test_ids_labels_and_padding(
    any_backend: Backend, quick: Scene, training: bool
) -> None:
    feed = quick.feed(
        any_backend.device, batch_size=5, image_size=32, training=training
    )
    assert (
        training or not list(feed.plan.rows(0, 0))[-1].valid.all()
    )  # the last batch is padded
    checks.rows_are_the_plans(any_backend.open, feed)


def test_what_fills_a_step_up_is_a_sample(any_backend: Backend, quick: Scene) -> None:
    feed = quick.feed(any_backend.device, batch_size=5, image_size=32)
    checks.fillers_are_samples(any_backend.open, feed, any_backend.repeat_difference)


def test_windows_flips_and_own_pixels_of_training(
    backend: Backend, ruled: Scene
) -> None:
    feed = ruled.feed(backend.device, batch_size=6, image_size=64)
    for epoch in (0, 1):
        checks.windows_are_the_plans(
            backend.open, feed, ruled, epoch, backend.edge_difference
        )
