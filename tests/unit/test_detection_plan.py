"""The plan of detection: each sample has its numbers in whatever batch, rows are what the contract says, padding stays small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from config import Augmentation, Detection
from contracts import Rows, UserError
from plan.boxes import DetectionPlan, DetectionPolicy, padding
from plan.geometry import places
from plan.order import grouped, order
from tasks._plans import detection_policies
from tests.unit.annotated import coco_like, columns

SMALL, COUNTS = st.integers(1, 5), st.one_of(st.integers(0, 60), st.sampled_from([61, 97, 127, 200]))
SHORT_SIDES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
FLIP = DetectionPolicy(augment="flip", size=800, longer=1333, flip=0.5)
STRETCH = replace(FLIP, size=300, longer=None)
MULTISCALE = DetectionPolicy(augment="multiscale", size=800, longer=1333, short_sides=SHORT_SIDES, flip=0.5)
LSJ = DetectionPolicy(augment="lsj", size=1024, longer=1333, flip=0.5)
SSD = DetectionPolicy(augment="ssd", size=300, flip=0.5)
SSDLITE = DetectionPolicy(augment="ssdlite", size=320, flip=0.5)
POLICIES = {"flip": FLIP, "stretch": STRETCH, "multiscale": MULTISCALE, "lsj": LSJ, "ssd": SSD, "ssdlite": SSDLITE}


class Native(NamedTuple):
    size: int
    longer: int | None
    zoom: float = 1.0


def some(n: int) -> SimpleNamespace:
    """n images, of which every fifth has no box."""
    rng = np.random.default_rng(n)
    sizes = [(int(h), int(w)) for h, w in rng.integers(40, 700, (n, 2))]
    boxes = [[] if i % 5 == 4 else [(w / 4, h / 4, w / 2, h / 2), (1.0, 2.0, 9.0, 8.0)][: 1 + i % 2] for i, (h, w) in enumerate(sizes)]
    return columns(sizes, boxes)


def plan(n: int, *, policy: DetectionPolicy = FLIP, seed: int = 3, batch_size: int = 4, **numbers: Any) -> DetectionPlan:
    return DetectionPlan.of(some(n), policy, seed=seed, batch_size=batch_size, **numbers)


def by_id(rows: Rows) -> dict[int, tuple[str, ...]]:
    """id -> everything that travels with it, of the rows that are no padding; the canvas is the batch's."""
    whole = [getattr(rows, field.name) for field in fields(Rows) if field.name != "canvas"]
    return {
        int(sample): tuple(repr(column[i].tolist()) for column in whole if column is not None)
        for i, sample in enumerate(rows.ids)
        if rows.valid[i]
    }


def epoch_of(n: int, epoch: int, first: int, world_size: int, **numbers: Any) -> dict[int, tuple[str, ...]]:
    """Every row of every rank; a sample twice is an error."""
    found: dict[int, tuple[str, ...]] = {}
    for rank in range(world_size):
        for rows in plan(n, world_size=world_size, rank=rank, **numbers).rows(epoch, first):
            mine = by_id(rows)
            assert not set(mine) & set(found)
            found |= mine
    return found


# --- what a row holds ---------------------------------------------------------------------------------------------------------------


def test_a_stretched_image_has_one_size_and_no_canvas() -> None:
    rows = plan(20, policy=STRETCH).rows(0, 0)[0]
    assert (rows.sizes == 300).all() and rows.canvas is None and rows.places is None and rows.colour is None
    assert (rows.windows[:, 2:] == rows.regions[:, 2:]).all()


@pytest.mark.parametrize("name", POLICIES)
def test_rows_are_within_their_image_and_their_canvas(name: str) -> None:
    here = plan(200, policy=POLICIES[name], batch_size=8)
    source = here.columns
    flipped = 0
    for rows in here.rows(1, 0):
        limit = np.stack([source.width[rows.ids], source.height[rows.ids]], axis=1)
        assert (rows.regions[:, :2] >= 0).all() and (rows.regions[:, 2:] <= limit).all()
        extent = rows.regions[:, 2:] - rows.regions[:, :2]
        assert (rows.windows[:, :2] >= 0).all() and (rows.windows[:, 2:] <= extent + 1e-9).all()
        assert (rows.windows[:, 2:] > rows.windows[:, :2]).all()
        place = places(rows)
        assert (place[:, :2] >= 0).all() and (place[:, 2:] <= rows.sizes[:, ::-1]).all() and (place[:, 2:] > place[:, :2]).all()
        assert (rows.sizes <= rows.padded).all() and (np.array(rows.padded) <= here.sample_shape[1:]).all()
        assert rows.canvas is None or not any(side % 32 for side in rows.canvas)
        flipped += int(rows.flips.sum())
    assert 50 < flipped < 110


def test_types_and_shapes_are_the_contract() -> None:
    for name, policy in POLICIES.items():
        rows = plan(9, policy=policy).rows(0, 0)[0]
        kinds = {field.name: getattr(rows, field.name) for field in fields(Rows) if field.name != "canvas"}
        assert {key: (value.dtype, value.shape) for key, value in kinds.items() if value is not None} == {
            "ids": (np.int64, (4,)),
            "regions": (np.int64, (4, 4)),
            "windows": (np.float64, (4, 4)),
            "sizes": (np.int64, (4, 2)),
            "flips": (np.bool_, (4,)),
            "valid": (np.bool_, (4,)),
            **({"places": (np.int64, (4, 4))} if name in ("lsj", "ssd") else {}),
            **({"colour": (np.float32, (4, 6))} if name == "ssd" else {}),
        }
        assert rows.canvas is None or [type(side) for side in rows.canvas] == [int, int]


def test_a_flipped_place_is_counted_from_the_right() -> None:
    plain, turned = (plan(40, policy=replace(LSJ, flip=flip), batch_size=30).rows(0, 0)[0] for flip in (0.0, 1.0))
    assert plain.places is not None and turned.places is not None
    assert (plain.places[:, 0] == 0).all() and (turned.places[:, 2] == 1024).all()
    assert (turned.places[:, 0] == 1024 - plain.places[:, 2]).all() and (turned.places[:, 1::2] == plain.places[:, 1::2]).all()


# --- which rows -------------------------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(COUNTS, SMALL, SMALL, SMALL, st.integers(0, 70), st.booleans())
@example(n=2, world_size=5, batch_size=1, accumulate=1, first=0, keep_empty=False)
def test_training_rows_are_the_grouped_order(
    n: int, world_size: int, batch_size: int, accumulate: int, first: int, keep_empty: bool
) -> None:
    source = some(n)
    used = np.arange(n) if keep_empty else source.with_boxes
    ids = used[order(3, 2, len(used))]
    ids = ids[grouped(*FLIP.outputs(3, 2, ids, source.height[ids], source.width[ids]).T, seed=3, epoch=2)]
    for rank in range(world_size):
        numbers: dict[str, Any] = {"world_size": world_size, "rank": rank, "batch_size": batch_size, "accumulate": accumulate}
        mine = plan(n, keep_empty=keep_empty, **numbers)
        assert mine.samples == len(used)
        rows = mine.rows(2, first)
        assert len(rows) == mine.steps(first) * accumulate == max(len(used) - first, 0) // mine.global_batch_size * accumulate
        for m, row in enumerate(rows):
            start = first + (m * world_size + rank) * batch_size
            assert row.ids.tolist() == ids[start : start + batch_size].tolist() and row.valid.all()


@settings(max_examples=50)
@given(COUNTS, SMALL, SMALL)
@example(n=1, world_size=5, batch_size=4)
def test_validation_has_each_sample_once_padded_at_the_end(n: int, world_size: int, batch_size: int) -> None:
    policy = replace(FLIP, flip=0.0)
    plans = [plan(n, policy=policy, world_size=world_size, rank=rank, batch_size=batch_size, training=False) for rank in range(world_size)]
    lists = [list(p.rows(0, 0)) for p in plans]
    assert {p.steps() for p in plans} == {len(lists[0])} == {len(rows) for rows in lists}
    together: list[int] = []
    for rows in (row for rank_rows in zip(*lists, strict=True) for row in rank_rows):
        assert len(rows) == batch_size and not rows.flips.any()
        assert (rows.valid == (rows.ids >= 0)).all() and set(rows.ids[~rows.valid]) <= {-1}
        assert (rows.regions[:, 2:] > rows.regions[:, :2]).all(), "padding carries the numbers of a real image"
        together += rows.ids.tolist()
    assert sorted(together[:n]) == list(range(n)) and set(together[n:]) <= {-1}


def test_validation_is_alike_in_every_epoch_and_by_size() -> None:
    val = plan(61, policy=replace(FLIP, flip=0.0), training=False, batch_size=61)
    assert by_id(val.rows(0, 0)[0]) == by_id(val.rows(7, 0)[0])
    sizes = val.rows(0, 0)[0].sizes.tolist()
    assert all((a[0] > a[1]) <= (b[0] > b[1]) for a, b in pairwise(sizes)), "upright ones last"


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=10)
@given(st.sampled_from([0, 5, 61, 130]), SMALL, SMALL, SMALL, SMALL, st.data())
def test_resuming_at_another_world_size_and_batch_gives_the_same_rows(
    name: str, n: int, world: int, batch: int, world_after: int, batch_after: int, data: Any
) -> None:
    """The tail of the same epoch, and each sample with the numbers it would have had."""
    policy = POLICIES[name]
    used = plan(n, policy=policy).samples
    through = plan(n, policy=policy, batch_size=used).rows(2, 0)[0] if used else None
    whole = by_id(through) if through else {}
    consumed = data.draw(st.integers(0, used // (world * batch))) * world * batch
    before = epoch_of(n, 2, 0, world, batch_size=batch, policy=policy)
    after = epoch_of(n, 2, consumed, world_after, batch_size=batch_after, policy=policy)
    tail = (through.ids if through else np.zeros(0, int))[consumed:]
    tail = tail[: len(tail) // (world_after * batch_after) * world_after * batch_after]
    assert set(after) == set(tail.tolist())
    for sample, row in (before | after).items():
        assert row == whole[sample]


@pytest.mark.parametrize("name", POLICIES)
def test_epochs_and_seeds_draw_other_numbers_for_the_same_sample(name: str) -> None:
    seen = [epoch_of(40, epoch, 0, 1, seed=seed, batch_size=8, policy=POLICIES[name]) for seed in (0, 1) for epoch in range(6)]
    alike = 0 if name in ("lsj", "ssd") else 3  # flip has two outcomes, and a crop by overlap may be none
    assert sum(len({rows[sample] for rows in seen}) < 2 for sample in seen[0]) <= alike


# --- groups -----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coco() -> SimpleNamespace:
    return coco_like(16_000)


@pytest.mark.parametrize(("policy", "most"), [(FLIP, 0.05), (MULTISCALE, 0.10)], ids=["flip", "multiscale"])
@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 16), (4, 2), (1, 24), (8, 8), (1, 64)])
def test_padding_is_small(coco: SimpleNamespace, policy: DetectionPolicy, most: float, world_size: int, batch_size: int) -> None:
    here = DetectionPlan.of(coco, policy, seed=1, batch_size=batch_size, world_size=world_size)
    assert padding(here.rows(0, 0)[:400]) < most
    assert here.resident == 8


def test_padding_in_validation_is_small_and_in_the_plain_order_is_not(coco: SimpleNamespace) -> None:
    here = DetectionPlan.of(coco, replace(FLIP, flip=0.0), seed=1, batch_size=16, training=False)
    assert padding(here.rows(0, 0)) < 0.03
    drawn = [here.draw(0, order(1, 0, 16_000)[start : start + 16]) for start in range(0, 1600, 16)]
    assert padding(drawn) > 0.2, "what the grouping is for"


def test_padding_by_hand() -> None:
    rows = plan(4, keep_empty=True).rows(0, 0)[0]
    rows = replace(rows, sizes=np.array([[10, 20], [20, 10], [20, 20], [5, 4]]), canvas=(32, 32))
    assert padding([rows, rows]) == pytest.approx(1 - 820 / 4096)
    assert padding([replace(rows, canvas=None)]) == pytest.approx(1 - 820 / 1600)
    placed = replace(
        rows, canvas=None, sizes=np.full((4, 2), 20), places=np.array([[0, 0, 20, 20], [5, 0, 20, 10], [0, 0, 4, 5], [1, 1, 2, 2]])
    )
    assert padding([placed]) == pytest.approx(1 - (400 + 150 + 20 + 1) / 1600)
    assert padding([]) == 0


@pytest.mark.parametrize("name", POLICIES)
def test_padding_is_what_no_image_covers(name: str) -> None:
    batches = plan(61, policy=POLICIES[name]).rows(0, 0)
    covered = []
    for rows in batches:
        canvas = np.zeros((len(rows), *rows.padded), bool)
        for row, (x0, y0, x1, y1) in enumerate(places(rows).tolist()):
            canvas[row, y0:y1, x0:x1] = True
        covered.append(canvas.ravel())
    share = padding(plan(61, policy=POLICIES[name]).rows(0, 0))
    assert share == pytest.approx(1 - np.concatenate(covered).mean())
    assert (share == 0) == (name in ("stretch", "ssdlite"))


def test_the_largest_shape_holds_every_batch(coco: SimpleNamespace) -> None:
    for policy in (FLIP, MULTISCALE):
        here = DetectionPlan.of(coco, policy, seed=1, batch_size=3)
        assert here.sample_shape == (3, 1344, 1344) and here.image_size == 1344
    assert DetectionPlan.of(coco, LSJ, seed=1, batch_size=3).sample_shape == (3, 1024, 1024)
    assert DetectionPlan.of(coco, replace(LSJ, size=1000), seed=1, batch_size=3).sample_shape == (3, 1024, 1024)
    ssd = DetectionPlan.of(coco, SSD, seed=1, batch_size=3)
    assert ssd.sample_shape == (3, 300, 300) and ssd.resident == 1
    landscapes = columns([(480, 640), (400, 640)], [[(0.0, 0.0, 9.0, 9.0)]] * 2)
    assert DetectionPlan.of(landscapes, FLIP, seed=1, batch_size=1).sample_shape == (3, 800, 1280)


# --- settings and mistakes --------------------------------------------------------------------------------------------------------------


def test_policies_read_their_settings() -> None:
    made, stretched = Native(640, 1333), Native(300, None)
    settings = Augmentation(flip=0.25)
    assert detection_policies(settings, Detection(), made)[0] == DetectionPolicy(augment="flip", size=640, longer=1333, flip=0.25)
    many = Detection(augment="multiscale", short_sides=(100, 200), longer_side=1000)
    assert detection_policies(settings, many, made)[0] == DetectionPolicy(
        augment="multiscale", size=640, longer=1000, short_sides=(100, 200), flip=0.25
    )
    for name in ("ssd", "ssdlite", "lsj", "flip"):
        detection = Detection(augment=name)
        assert detection_policies(settings, detection, stretched)[0] == DetectionPolicy(augment=name, size=300, flip=0.25)
        assert detection_policies(Augmentation(), detection, stretched)[1] == DetectionPolicy(augment="flip", size=300)
    assert detection_policies(Augmentation(), Detection(longer_side=900), made)[1] == DetectionPolicy(augment="flip", size=640, longer=900)
    assert [POLICIES[name].centred for name in ("flip", "lsj", "ssd", "ssdlite")] == [False, False, True, True]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DetectionPolicy(augment="multiscale", size=300, short_sides=(1,)), "--augment multiscale: .* 300 x 300"),
        (lambda: DetectionPolicy(augment="ssd", size=800, longer=1333), "--augment ssd stretches images"),
        (lambda: DetectionPolicy(augment="flip", size=1600, longer=1333), "--image-size 1600 .* 1333"),
        (lambda: replace(MULTISCALE, short_sides=()), "--short-sides, which has none"),
        (lambda: replace(MULTISCALE, longer=700), "--short-sides up to 800 .* 700"),
        (
            lambda: detection_policies(Augmentation(), Detection(longer_side=500), Native(300, None))[1],
            "--longer-side 500.* --image-size 300; leave",
        ),
        (lambda: plan(10, batch_size=64).require_a_step(), "there are 8 training samples.*--batch-size 8"),
        (lambda: plan(0).require_a_step(), "none of the 0 training images has a box"),
    ],
)
def test_mistakes_are_one_line(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)
