"""A plan that draws nonsense ends the run by its own error; what plans say holds."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from contracts import Array, FaultyPlan
from plan.epoch import EpochPlan
from tests.conformance.scenes import Backend, Scene


def spoiled(plan: EpochPlan, sample: int) -> EpochPlan:
    """The plan, but that the windows of one sample are not numbers."""
    kind: Any = type(plan)

    class Spoiled(kind):
        __slots__ = ()

        def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
            framed = dict(super().frame(epoch, ids, views))
            framed["windows"] = np.where(
                ids[:, None] == sample, np.nan, framed["windows"]
            )
            return framed

    made: EpochPlan = Spoiled(
        **{one.name: getattr(plan, one.name) for one in fields(plan) if one.init}
    )
    return made


@pytest.mark.parametrize("workers", [0, 2])
def test_the_error_reaches_who_asks_for_batches(
    backend: Backend, quick: Scene, workers: int
) -> None:
    """Behind batches that are good, so that threads and workers are under way."""
    feed = quick.feed(
        backend.device, batch_size=2, image_size=32, training=False, workers=workers
    )
    assert isinstance(feed.plan, EpochPlan)
    with (
        backend.open(replace(feed, plan=spoiled(feed.plan, 35))) as loader,
        pytest.raises(FaultyPlan) as caught,
    ):
        list(loader.batches(0, 0))
    assert str(caught.value).startswith(
        "Spoiled draws windows that no loader can follow: row "
    )
    assert "id 35, has [nan, nan, nan, nan]" in str(caught.value)
