"""Each kind of faulty plan is stopped where it draws, by an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from contracts import FaultyPlan, Feed, UserError
from dataset.synthetic import NoBytes
from loaders import open_loader
from loaders._ops import OPERATIONS
from plan import ops
from plan.clips import ClipPlan
from plan.images import ImagePlan, ImagePolicy
from tests.conformance.plans import Videos, clip_policy

Change = Callable[[dict[str, Any]], Any]
POLICY = ImagePolicy(window="random-resized", image_size=16, flip=0.5)
COUNT, BATCH = 30, 6


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
    heights, widths = (
        np.arange(COUNT, dtype=np.int32) + 40,
        np.arange(COUNT, dtype=np.int32) + 50,
    )
    return Faulty(
        heights=heights,
        widths=widths,
        policy=POLICY,
        seed=0,
        batch_size=BATCH,
        change=change,
        **says,
    )


def put(name: str, value: Any) -> Change:
    return lambda framed: framed.__setitem__(name, value)


def typed(name: str, dtype: Any) -> Change:
    return lambda framed: framed.__setitem__(name, framed[name].astype(dtype))


def at(name: str, where: Any, value: Any) -> Change:
    return lambda framed: framed[name].__setitem__(where, value)


WHOLE = np.tile([0, 0, 16, 16], (BATCH, 1))
SIZES = np.full((BATCH, 2), 16)
DRAWN = ops.alone(ops.Op.DISTORT, ops.distortions(0, 0, np.arange(BATCH)))


def with_ops(where: Any, value: float) -> Change:
    numbers = DRAWN.copy()
    numbers[where] = value
    return put("ops", numbers)


FAULTS: dict[str, tuple[Any, ...]] = {
    "region left of the image": (
        at("regions", (2, 0), -1),
        r"regions .*: row 2 of 6, id \d+: \[-1, .*\] in an image \d+ wide, ",
    ),
    "region above the image": (at("regions", (2, 1), -3), "regions .*: row 2"),
    "region right of the image": (at("regions", (4, 2), 81), "regions .*: row 4"),
    "region below the image": (at("regions", (4, 3), 71), "regions .*: row 4"),
    "region without columns": (
        lambda framed: at("regions", (1, 2), framed["regions"][1, 0])(framed),
        "regions .*: row 1",
    ),
    "region upside down": (
        lambda framed: at("regions", 1, framed["regions"][1, [0, 3, 2, 1]])(framed),
        "regions .*: row 1",
    ),
    "window that is no number": (
        at("windows", (3, 2), np.nan),
        r"windows .*: row 3 of 6, id \d+: \[0, 0, nan, ",
    ),
    "window without end": (at("windows", (3, 3), np.inf), "windows .*: row 3"),
    "window before its region": (at("windows", (3, 0), -0.01), "windows .*: row 3"),
    "window beyond its region": (at("windows", (5, 3), 71.0), "windows .*: row 5"),
    "window without rows": (at("windows", (5, 3), 0.0), "windows .*: row 5"),
    "no regions": (put("regions", None), "regions .* NoneType, .* array"),
    "float regions": (
        typed("regions", float),
        "regions .* float64, .* int64",
    ),
    "short column": (
        lambda framed: put("turns", framed["turns"][1:])(framed),
        r"turns .* shape \(5,\), .* \(6,\)",
    ),
    "nothing to turn by": (
        lambda framed: framed.pop("turns"),
        "turns .*does not return it",
    ),
    "another field": (
        put("flips", np.zeros(BATCH, bool)),
        "flips .*`frame` returns regions, .*turns",
    ),
    "size 0": (
        put("sizes", SIZES * [1, 0]),
        r"sizes .*: row 0 .*\[16, 0\]; a side has at least a pixel",
    ),
    "size beyond the plan's": (
        put("sizes", SIZES + 1),
        r"sizes .*: row 0 .*\[17, 17\] on a canvas of \(16, 16\)",
        "filled",
    ),
    "several sizes": (
        put("sizes", SIZES - np.arange(BATCH)[:, None]),
        r"sizes .*: row 1 .* `filled` is True",
    ),
    "canvas too small": (
        put("canvas", (16, 15)),
        r"sizes .*: row 0 .* on a canvas of \(16, 15\)",
        "filled",
    ),
    "canvas too large": (
        put("canvas", (17, 16)),
        r"canvas .*: \(17, 16\), .*`sample_shape`",
        "filled",
    ),
    "canvas left free": (
        lambda framed: framed.update(sizes=SIZES - 1, canvas=(16, 16)),
        "sizes .* `filled` is True",
    ),
    "turn 8": (at("turns", 2, 8), "turns .*: row 2 .*: 8; 0 to 7", "transposes"),
    "a transpose that was not announced": (
        at("turns", 2, 4),
        "turns .*: row 2 .*: 4, .* `transposes` is False",
    ),
    "place outside": (
        put("places", WHOLE + np.eye(4, dtype=int)[3]),
        "places .*: row 0 .* in an output of \\[16, 16\\]",
        "filled",
    ),
    "place before 0": (
        put("places", WHOLE - np.eye(4, dtype=int)[0]),
        "places .*: row 0",
        "filled",
    ),
    "empty place": (put("places", WHOLE * [1, 1, 0, 1]), "places .*: row 0", "filled"),
    "places that leave room": (
        put("places", WHOLE - np.eye(4, dtype=int)[2]),
        "places .* `filled` is True",
    ),
    "frames of an image": (
        put("frames", np.zeros((BATCH, 3), int)),
        "frames .* no plan of clips",
    ),
    "operations that were not announced": (
        put("ops", DRAWN),
        "ops .*: rows have some, .* `operates` is False",
    ),
    "no operations though announced": (
        lambda framed: None,
        "ops .*: rows have none, .* `operates` is True",
        "operates",
    ),
    "an operation that there is not": (
        with_ops((4, 0, 0), 99),
        r"ops .*: row 4 .*operations \[99\]; there are 1",
        "operates",
    ),
    "half of an operation": (with_ops((4, 0, 0), 0.5), "ops .*: row 4", "operates"),
    "an operation's number that is none": (
        with_ops((4, 0, 3), np.nan),
        "ops .*: row 4 .* not all finite",
        "operates",
    ),
    "too few numbers": (
        put("ops", DRAWN[:, :, :4]),
        "ops .*: operation 1 takes 6 numbers, and has 3",
        "operates",
    ),
    "operations without slots": (
        put("ops", DRAWN[:, 0]),
        r"ops .* shape \(6, 7\)",
        "operates",
    ),
    "operations in fp64": (
        put("ops", DRAWN.astype(float)),
        "ops .* float64, .* float32",
        "operates",
    ),
}
"""Fault -> what `frame` does, what the error says, what the plan says otherwise than `Faulty`."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_plan_names_itself(fault: str) -> None:
    change, words, *otherwise = FAULTS[fault]
    with pytest.raises(FaultyPlan, match="^Faulty draws " + words) as caught:
        faulty(change, *otherwise).rows(1, 0)[0]
    assert not isinstance(caught.value, UserError) and isinstance(
        caught.value, ValueError
    )


GOOD: dict[str, tuple[Any, ...]] = {
    "as it is": (lambda framed: None,),
    "a window that is off by rounding": (
        lambda framed: at("windows", (slice(None), slice(2)), -1e-9)(framed),
    ),
    "places that fill": (put("places", WHOLE),),
    "places": (put("places", WHOLE // 2 + np.array([1, 2, 1, 2])), "filled"),
    "sizes on a canvas": (
        lambda framed: framed.update(sizes=SIZES - 3, canvas=(16, 14)),
        "filled",
    ),
    "every turn": (put("turns", np.arange(2, 8, dtype=np.uint8)), "transposes"),
    "operations, two of them none": (
        put("ops", DRAWN * (np.arange(BATCH) > 1)[:, None, None].astype(np.float32)),
        "operates",
    ),
    "two slots": (put("ops", np.concatenate([DRAWN, DRAWN], axis=1)), "operates"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_plan_is_let_pass(name: str) -> None:
    assert len(list(faulty(*GOOD[name]).rows(1, 0))) == COUNT // BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced(ImagePlan):
    order: Any

    def ordered(self, epoch: int) -> Any:
        return np.asarray(self.order)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (
            [0, 1, 2, 3, 4, COUNT],
            f"row 5 of 6, id {COUNT}: the columns have samples 0 to {COUNT - 1}",
        ),
        ([0, -1, 2, 3, 4, 5], "row 1 of 6, id -1"),
        ([0, 1, 2, 3, 4, 1], "sample 1 came 2 times, and has 1 views"),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], r"it is float64 \[6\], and has to be int64"),
        (None, r"it is object \[\]"),
    ],
)
def test_ids_outside_and_twice(order: Any, words: str) -> None:
    good = faulty(lambda framed: None)
    plan = Misplaced(
        heights=good.heights,
        widths=good.widths,
        policy=POLICY,
        seed=0,
        batch_size=BATCH,
        order=order,
    )
    with pytest.raises(
        FaultyPlan, match=f"^Misplaced draws (ids|an order) that .*: {words}"
    ):
        plan.rows(0, 0)[0]


@pytest.mark.parametrize("framed", [None, [("regions", 0)]])
def test_a_frame_that_is_no_mapping(
    framed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "frame", lambda *_: framed)
    with pytest.raises(
        FaultyPlan, match=r"^Faulty draws a frame .* has to be a mapping of fields"
    ):
        faulty(put("turns", 0)).rows(0, 0)[0]


class Own:
    """contracts.Plan of someone who has written all of it; one of its batches is spoiled."""

    def __init__(self, plan: ImagePlan, change: Change) -> None:
        self._plan = plan
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def rows(self, epoch: int, first: int) -> list[Any]:
        drawn = list(self._plan.rows(epoch, first))
        changes: dict[str, Any] = {
            name: getattr(drawn[1], name).copy() for name in ("ids", "windows")
        }
        self._change(changes)
        return [drawn[0], replace(drawn[1], **changes), *drawn[2:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (at("windows", (2, 0), np.nan), r"windows .*row 2 of 6, id \d+"),
        (at("ids", 3, COUNT), f"ids .*row 3 of 6, id {COUNT}"),
        (
            lambda framed: framed.update(ids=framed["ids"] + 0.0),
            "ids .*they are float64",
        ),
    ],
)
def test_a_plan_that_derives_from_none_of_ours_is_checked_at_the_door(
    change: Change, words: str
) -> None:
    plan = faulty(lambda framed: None)
    columns = SimpleNamespace(height=plan.heights, width=plan.widths)
    feed = Feed(
        plan=Own(plan, change),
        source=NoBytes(COUNT),
        columns=columns,
        targets=lambda rows: {},
        device=torch.device("cpu"),
        workers=0,
    )
    with open_loader("synthetic", feed) as loader:
        batches = loader.batches(0, 0)
        assert len(next(batches).ids) == BATCH
        with pytest.raises(FaultyPlan, match=f"^Own draws {words}"):
            list(batches)


def test_opening_refuses_a_plan_without_a_batch() -> None:
    """Else a loop of one's own would pass over nothing, and end well."""
    plan = replace(faulty(lambda framed: None), batch_size=COUNT + 1)
    feed: Any = SimpleNamespace(plan=plan, source=NoBytes(COUNT), transforms=None)
    with pytest.raises(
        UserError, match=f"no batch: a step takes {COUNT + 1} samples, .* {COUNT};"
    ):
        open_loader("synthetic", feed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyClips(ClipPlan):
    change: Change
    together: int = 1

    def frame(self, epoch: int, ids: Any, views: Any) -> dict[str, Any]:
        framed = ClipPlan.frame(self, epoch, ids, views)
        self.change(framed)
        return framed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda framed: framed.pop("frames"), "a plan of clips says which"),
        (
            at("frames", (2, 1), -1),
            r"row 2 of 6, id \d+: \[.*-1.*\]; the first of a video is 0",
        ),
        (
            at("frames", (2, 1), 10**6),
            r"row 2 of 6, id \d+: \[.*1e\+06.*\]; the last is \d+",
        ),
        (
            lambda framed: put("frames", framed["frames"][:, 1:])(framed),
            r"shape \(6, 3\), and have to be \(6, 4\)",
        ),
        (typed("frames", np.int32), "int32, and have to be int64"),
    ],
)
def test_frames_of_clips(change: Change, words: str) -> None:
    plan = FaultyClips(
        columns=Videos(COUNT),
        policy=clip_policy(),
        seed=3,
        batch_size=BATCH,
        change=change,
    )
    with pytest.raises(
        FaultyPlan,
        match=f"^FaultyClips draws frames that no loader can follow: .*{words}",
    ):
        plan.rows(0, 0)[0]


def test_views_of_a_video_may_meet_in_a_batch() -> None:
    plan = ClipPlan(
        columns=Videos(3),
        policy=clip_policy(clips=2, crops=3),
        seed=3,
        batch_size=6,
        training=False,
    )
    assert [set(rows.ids.tolist()) for rows in plan.rows(0, 0)] == [{0}, {1}, {2}]
    with pytest.raises(FaultyPlan, match="came 7 times, and has 6 views"):
        replace(plan, batch_size=7).draw(0, np.array([0, 1, 2, 3, 4, 5, 5]))


def test_padding_is_held_to_it_too() -> None:
    """Its numbers are decoded by those who decode whole batches."""
    plan = replace(faulty(at("windows", (-1, 0), np.nan)), training=False, batch_size=7)
    rows = plan.rows(0, 0)
    assert len(rows) == 5
    with pytest.raises(FaultyPlan, match="row 6 of 7"):
        rows[4]


def test_every_operation_can_be_done() -> None:
    assert OPERATIONS.keys() == {*ops.Op} and 0 not in OPERATIONS
