"""A plan that draws nonsense ends the run by its own error; what plans say holds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from contracts import Array, FaultyPlan
from plan.epoch import EpochPlan
from tests.conformance import checks
from tests.conformance.placed import feed_of
from tests.conformance.plans import PLANS
from tests.conformance.scenes import CPU, Backend, Scene


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
    assert "id 35: [nan, nan, nan, nan]" in str(caught.value)


@dataclass(frozen=True)
class Lying:
    inner: Any
    says: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.says[name] if name in self.says else getattr(self.inner, name)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("sizes", {"filled": True}),
        ("sizes", {"resident": 1}),
        ("sizes", {"operates": True}),
        ("colour", {"operates": False}),
        ("turned", {"transposes": False}),
        ("places", {"sample_shape": (3, 64, 48)}),
    ],
    ids=str,
)
def test_a_plan_that_says_otherwise_is_refused(
    photographs: Scene, kind: str, says: dict[str, Any]
) -> None:
    plan = feed_of(photographs, kind, CPU).plan
    assert checks.raises(checks.batches_are_as_the_plan_says, Lying(plan, says))


def test_crops_that_are_of_other_frames_are_refused() -> None:
    plan = PLANS["clips-of-views"](60, batch_size=4, training=False)
    assert checks.raises(
        checks.batches_are_as_the_plan_says, Lying(plan, {"same_frames": 4})
    )
