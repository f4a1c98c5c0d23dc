"""Each kind of faulty plan is stopped where it draws, by an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from saturate.contracts import FaultyPlan
from saturate.plan.clips import ClipPlan
from saturate.plan.images import ImagePlan, ImagePolicy
from tests.conformance.plans import Videos, clip_policy, sized

Change = Callable[[dict[str, Any]], Any]
COUNT, BATCH = 30, 6
WHOLE = np.tile([0, 0, 16, 16], (BATCH, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty(ImagePlan):
    """A plan whose author has made a mistake in `frame`."""

    change: Change
    batches_per_draw: int = 1

    def frame(self, epoch: int, ids: Any, views: Any) -> dict[str, Any]:
        framed = ImagePlan.frame(self, epoch, ids, views)
        self.change(framed)
        return framed


def faulty(change: Change) -> Faulty:
    return Faulty(
        sized(np.arange(COUNT) + 40, np.arange(COUNT) + 50),
        ImagePolicy(window="random-resized", image_size=16, flip=0.5),
        seed=0,
        batch_size=BATCH,
        change=change,
    )


def at(name: str, where: Any, value: Any) -> Change:
    return lambda framed: framed[name].__setitem__(where, value)


def places(edge: int, value: int) -> Change:
    moved = WHOLE.copy()
    moved[2, edge] = value
    return lambda framed: framed.update(places=moved)


FAULTS: dict[str, list[Change]] = {
    "regions": [
        *(at("regions", (2, edge), -3) for edge in (0, 1)),
        *(at("regions", (4, edge), 81) for edge in (2, 3)),
        *(at("regions", 1, empty) for empty in ([5, 0, 5, 9], [0, 9, 5, 9])),
    ],
    "windows": [
        *(at("windows", (3, edge), -0.01) for edge in (0, 1)),
        *(at("windows", (3, edge), end) for edge in (2, 3) for end in (0, 81, np.nan)),
    ],
    "sizes": [at("sizes", (1, 1), 0), at("sizes", (1, 0), 17)],
    "turns": [at("turns", 2, 4)],
    "places": [
        *(places(edge, -1) for edge in (0, 1)),
        *(places(edge, end) for edge in (2, 3) for end in (0, 17)),
    ],
}
"""Field -> what `frame` does wrong with it."""


@pytest.mark.parametrize("field", FAULTS)
def test_a_faulty_plan_names_itself_the_field_and_the_row(field: str) -> None:
    for change in FAULTS[field]:
        with pytest.raises(
            FaultyPlan, match=rf"^Faulty draws {field} that no .* row \d of 6, id \d+, "
        ):
            faulty(change).rows(1, 0)[0]


def test_a_window_may_be_off_by_rounding() -> None:
    change = at("windows", (slice(None), slice(2)), -1e-9)
    assert len(list(faulty(change).rows(1, 0))) == COUNT // BATCH


@pytest.mark.parametrize("items", [[0, 1, COUNT], [0, -1, 2], [0, 1, 1]], ids=str)
def test_ids_outside_and_twice(items: list[int]) -> None:
    with pytest.raises(FaultyPlan, match=r"^Faulty draws ids "):
        faulty(lambda framed: None).draw(0, np.array(items), 3)


@pytest.mark.parametrize("frame", [-1, 10**6])
def test_frames_of_clips(frame: int) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class FaultyClips(ClipPlan):
        def frame(self, epoch: int, ids: Any, views: Any) -> dict[str, Any]:
            framed = ClipPlan.frame(self, epoch, ids, views)
            framed["frames"][2, 1] = frame
            return framed

    videos: Any = Videos(BATCH)
    plan = FaultyClips(columns=videos, policy=clip_policy(), seed=3, batch_size=BATCH)
    with pytest.raises(FaultyPlan, match=r"^FaultyClips draws frames "):
        plan.rows(0, 0)[0]


def test_views_of_a_video_may_meet_in_a_batch() -> None:
    policy = clip_policy(clips=2, crops=3)
    videos: Any = Videos(3)
    plan = ClipPlan(columns=videos, policy=policy, seed=3, batch_size=6, training=False)
    assert [set(rows.ids.tolist()) for rows in plan.rows(0, 0)] == [{0}, {1}, {2}]
    with pytest.raises(FaultyPlan, match="each 6 times at most"):
        plan.draw(0, np.array([0, 1, 2, 3, 4, 5, 5]), 7)
