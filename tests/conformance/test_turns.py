"""Every loader turns and distorts as NumPy does with its unturned batches."""

from __future__ import annotations

import pytest

from tests.conformance import turning
from tests.conformance.scenes import Backend, Scene


@pytest.mark.parametrize("operates", [False, True], ids=["turned", "and distorted"])
def test_every_row_is_turned_and_operated_on(
    backend: Backend, quick: Scene, operates: bool
) -> None:
    """Without operations DALI normalises on the GPU, and what it has normalised is turned."""
    feed = quick.feed(backend.device, batch_size=8, image_size=turning.WIDTH)
    turning.rows_are_changed(
        backend.open, feed, backend.repeat_difference, operates=operates
    )
