"""Each kind of faulty plan is stopped where it draws, by an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from contracts import FaultyPlan, UserError
from dataset.synthetic import NoBytes
from loaders import open_loader
from loaders._ops import OPERATIONS
from plan import ops
from plan.clips import ClipPlan
from plan.images import ImagePlan, ImagePolicy
from tests.conformance.plans import Videos, clip_policy

Change = Callable[[dict[str, Any]], Any]
COUNT, BATCH = 30, 6
SIZES = np.full((BATCH, 2), 16)
WHOLE = np.tile([0, 0, 16, 16], (BATCH, 1))
ENDS = (0.0, 81.0, np.nan, np.inf)
DRAWN = ops.alone(ops.Op.DISTORT, ops.distortions(0, 0, np.arange(BATCH)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty(ImagePlan):
    """A plan whose author has made a mistake in `frame`; or in what it says of its batches."""

    change: Change
    operates: bool = False
    transposes: bool = False
    filled: bool = True
    together: int = 1

    def frame(self, epoch: int, ids: Any, views: Any) -> dict[str, Any]:
        framed = ImagePlan.frame(self, epoch, ids, views)
        self.change(framed)
        return framed


def faulty(change: Change, *otherwise: str) -> Faulty:
    says: dict[str, Any] = {name: name != "filled" for name in otherwise}
    return Faulty(
        heights=np.arange(COUNT) + 40,
        widths=np.arange(COUNT) + 50,
        policy=ImagePolicy(window="random-resized", image_size=16, flip=0.5),
        seed=0,
        batch_size=BATCH,
        change=change,
        **says,
    )


def put(**fields: Any) -> Change:
    return lambda framed: framed.update(fields)


def at(name: str, where: Any, value: Any) -> Change:
    return lambda framed: framed[name].__setitem__(where, value)


def with_ops(where: Any, value: float) -> Change:
    numbers = DRAWN.copy()
    numbers[where] = value
    return put(ops=numbers)


EYE = np.eye(4, dtype=int)
FAULTS: dict[str, list[Any]] = {
    "regions": [
        *(at("regions", (2, edge), -3) for edge in (0, 1)),
        *(at("regions", (4, edge), 81) for edge in (2, 3)),
        *(at("regions", 1, empty) for empty in ([5, 0, 5, 9], [0, 9, 5, 9])),
        *(put(regions=other) for other in (None, WHOLE.astype(float), WHOLE[1:])),
    ],
    "windows": [
        *(at("windows", (3, edge), -0.01) for edge in (0, 1)),
        *(at("windows", (3, edge), value) for edge in (2, 3) for value in ENDS),
    ],
    "sizes": [put(sizes=SIZES * [1, 0]), put(sizes=SIZES + 1), put(canvas=(17, 16))],
    "turns": [at("turns", 2, 4), put(turns=SIZES[:, 0])],
    "places": [put(places=WHOLE - EYE[2]), put(places=WHOLE - EYE[3])],
    "frames": [put(frames=np.zeros((BATCH, 3), int))],
    "ops": [put(ops=DRAWN)],
}
"""Field -> what `frame` does wrong with it."""
FREE: dict[str, list[Any]] = {
    "sizes": [put(sizes=SIZES * [1, 0]), put(sizes=SIZES + 1), put(canvas=(16, 15))],
    "turns": [at("turns", 2, 8)],
    "places": [
        *(put(places=WHOLE + EYE[edge]) for edge in (2, 3)),
        *(put(places=WHOLE - EYE[edge]) for edge in (0, 1)),
        put(places=WHOLE * [1, 1, 0, 1]),
        put(places=WHOLE * [1, 1, 1, 0]),
    ],
    "ops": [
        put(),
        *(with_ops((4, 0, 0), code) for code in (99, 0.5, -1)),
        with_ops((4, 0, 3), np.nan),
        put(ops=DRAWN[:, :, :4]),
        put(ops=DRAWN.astype(float)),
    ],
}
"""The same of a plan whose images leave room, turn and have operations."""
SAYS = ("filled", "transposes", "operates")


@pytest.mark.parametrize("faults", [FAULTS, FREE], ids=["fault", "free"])
def test_a_faulty_plan_names_itself_and_the_field(faults: dict[str, list[Any]]) -> None:
    for field, changes in faults.items():
        for change in changes:
            plan = faulty(change, *SAYS) if faults is FREE else faulty(change)
            if faults is FREE and field != "ops":
                plan = replace(plan, operates=False)
            with pytest.raises(FaultyPlan, match=f"^Faulty draws {field} that no"):
                plan.rows(1, 0)[0]


def test_the_row_is_named() -> None:
    with pytest.raises(FaultyPlan, match=r"row 3 of 6, id \d+, has \[0.0, 0.0, nan, "):
        faulty(at("windows", (3, 2), np.nan)).rows(1, 0)[0]


@pytest.mark.parametrize(
    ("change", "otherwise"),
    [
        (at("windows", (slice(None), slice(2)), -1e-9), ()),
        (put(places=WHOLE), ()),
        (put(places=WHOLE // 2 + 1), ("filled",)),
        (put(sizes=SIZES - 3, canvas=(16, 14)), ("filled",)),
        (put(turns=np.arange(2, 8, dtype=np.uint8)), ("transposes",)),
        (put(ops=np.concatenate([DRAWN, 0 * DRAWN], axis=1)), ("operates",)),
    ],
)
def test_a_good_plan_is_let_pass(change: Change, otherwise: tuple[str, ...]) -> None:
    assert len(list(faulty(change, *otherwise).rows(1, 0))) == COUNT // BATCH


@pytest.mark.parametrize(
    "items", [[0, 1, COUNT], [0, -1, 2], [0, 1, 1], [0.0, 1.0, 2.0]], ids=str
)
def test_ids_outside_and_twice(items: list[Any]) -> None:
    with pytest.raises(FaultyPlan, match=r"^Faulty draws ids "):
        faulty(put()).draw(0, np.array(items), 3)


def test_opening_refuses_a_plan_without_a_batch() -> None:
    """Else a loop of one's own would pass over nothing, and end well."""
    plan = replace(faulty(put()), batch_size=COUNT + 1)
    feed: Any = SimpleNamespace(plan=plan, source=NoBytes(COUNT), transforms=None)
    with pytest.raises(UserError, match=f"no batch: a step takes {COUNT + 1} samples"):
        open_loader("synthetic", feed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyClips(ClipPlan):
    change: Change

    def frame(self, epoch: int, ids: Any, views: Any) -> dict[str, Any]:
        framed = ClipPlan.frame(self, epoch, ids, views)
        self.change(framed)
        return framed


@pytest.mark.parametrize(
    "change",
    [
        lambda framed: framed.pop("frames"),
        at("frames", (2, 1), -1),
        at("frames", (2, 1), 10**6),
        put(frames=np.zeros((BATCH, 3), int)),
        put(frames=np.zeros((BATCH, 4), np.int32)),
    ],
)
def test_frames_of_clips(change: Change) -> None:
    plan = FaultyClips(
        columns=Videos(BATCH),
        policy=clip_policy(),
        seed=3,
        batch_size=BATCH,
        change=change,
    )
    with pytest.raises(FaultyPlan, match=r"^FaultyClips draws frames "):
        plan.rows(0, 0)[0]


def test_views_of_a_video_may_meet_in_a_batch() -> None:
    policy = clip_policy(clips=2, crops=3)
    plan = ClipPlan(
        columns=Videos(3), policy=policy, seed=3, batch_size=6, training=False
    )
    assert [set(rows.ids.tolist()) for rows in plan.rows(0, 0)] == [{0}, {1}, {2}]
    with pytest.raises(FaultyPlan, match="each 6 times at most"):
        plan.draw(0, np.array([0, 1, 2, 3, 4, 5, 5]), 7)


def test_padding_is_held_to_it_too() -> None:
    """Its numbers are decoded by those who decode whole batches."""
    plan = replace(faulty(at("windows", (-1, 0), np.nan)), training=False, batch_size=7)
    with pytest.raises(FaultyPlan, match="row 6 of 7"):
        plan.rows(0, 0)[4]


def test_every_operation_can_be_done() -> None:
    assert OPERATIONS.keys() == {*ops.Op} and 0 not in OPERATIONS
