"""The plan: DESIGN's steps, micro-batches and ranks for any numbers, and what a row holds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from config import Augmentation
from contracts import Rows, UserError
from models import Native
from models.classification import MEAN, STD
from plan import windows
from plan.draws import Purpose, uniforms
from plan.images import ImagePlan, ImagePolicy
from plan.order import order
from tasks._plans import image_policies

ROOT = Path(__file__).resolve().parents[2]
RANDOM = ImagePolicy(window="random-resized", image_size=16, flip=0.5)
CENTER = ImagePolicy(window="center", image_size=16, resize=18)
SMALL, COUNTS = st.integers(1, 5), st.one_of(st.integers(0, 60), st.sampled_from([61, 97, 127]))
EVERY = tuple(field.name for field in fields(Rows))


def sizes(n: int) -> dict[str, Any]:
    """Columns of n images, all different."""
    return {"heights": np.arange(n, dtype=np.int32) % 37 + 20, "widths": np.arange(n, dtype=np.int32) % 41 + 15}


def plan(n: int, *, policy: ImagePolicy = RANDOM, seed: int = 3, batch_size: int = 4, **numbers: Any) -> ImagePlan:
    return ImagePlan(**sizes(n), policy=policy, seed=seed, batch_size=batch_size, **numbers)


def by_id(rows: Rows) -> dict[int, tuple[str, ...]]:
    """id -> everything else that travels with it, of the rows that are no padding."""
    whole = [getattr(rows, name) for name in EVERY]
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


# --- which rows ---------------------------------------------------------------------------------------------------------------------


@given(COUNTS, SMALL, SMALL, SMALL, st.integers(0, 70), st.integers(0, 5))
@example(n=2, world_size=5, batch_size=1, accumulate=1, first=0, epoch=0)
def test_training_rows_are_the_order(n: int, world_size: int, batch_size: int, accumulate: int, first: int, epoch: int) -> None:
    ordered = order(3, epoch, n)
    for rank in range(world_size):
        mine = plan(n, world_size=world_size, rank=rank, batch_size=batch_size, accumulate=accumulate)
        global_batch_size = world_size * batch_size * accumulate
        assert mine.samples == n and mine.global_batch_size == global_batch_size
        rows = mine.rows(epoch, first)
        assert mine.steps(first) == max(n - first, 0) // global_batch_size
        assert len(rows) == mine.steps(first) * accumulate
        for k, m in product(range(mine.steps(first)), range(accumulate)):
            step = ordered[first + k * global_batch_size : first + (k + 1) * global_batch_size]
            micro = step[m * world_size * batch_size : (m + 1) * world_size * batch_size]
            row = rows[k * accumulate + m]
            assert (row.ids == micro[rank * batch_size : (rank + 1) * batch_size]).all()
            assert row.valid.all() and len(row) == batch_size


@given(COUNTS, SMALL, SMALL)
@example(n=1, world_size=5, batch_size=4)
def test_validation_has_each_sample_once_padded_at_the_end(n: int, world_size: int, batch_size: int) -> None:
    plans = [plan(n, policy=CENTER, world_size=world_size, rank=rank, batch_size=batch_size, training=False) for rank in range(world_size)]
    lists = [list(p.rows(0, 0)) for p in plans]
    assert {p.steps() for p in plans} == {len(lists[0])} == {len(rows) for rows in lists}
    together: list[int] = []
    for rows in (row for rank_rows in zip(*lists, strict=True) for row in rank_rows):
        assert len(rows) == batch_size
        assert (rows.valid == (rows.ids >= 0)).all() and set(rows.ids[~rows.valid]) <= {-1}
        # padding carries the numbers of a real image, so that decoding it is never a special case
        assert (rows.regions[:, 2:] > rows.regions[:, :2]).all()
        together += rows.ids.tolist()
    assert together[:n] == list(range(n)) and set(together[n:]) <= {-1}


def test_validation_is_alike_in_every_epoch() -> None:
    val = plan(11, policy=CENTER, training=False)
    for one, other in zip(val.rows(0, 0), val.rows(7, 0), strict=True):
        assert by_id(one) == by_id(other)


@settings(max_examples=40)
@given(COUNTS, SMALL, SMALL, SMALL, SMALL, st.data())
def test_resuming_at_another_world_size_and_batch_gives_the_same_rows(
    n: int, world: int, batch: int, world_after: int, batch_after: int, data: Any
) -> None:
    """The tail of the same epoch, and each sample with the numbers it would have had."""
    through = by_id(plan(n, batch_size=n).rows(2, 0)[0]) if n else {}
    assert len(through) == n
    consumed = data.draw(st.integers(0, n // (world * batch))) * world * batch
    before = epoch_of(n, 2, 0, world, batch_size=batch)
    after = epoch_of(n, 2, consumed, world_after, batch_size=batch_after)
    tail = order(3, 2, n)[consumed:]
    tail = tail[: len(tail) // (world_after * batch_after) * world_after * batch_after]
    assert set(after) == set(tail.tolist())
    for sample, row in (before | after).items():
        assert row == through[sample]


def test_epochs_and_seeds_draw_other_numbers_for_the_same_sample() -> None:
    seen = [epoch_of(40, epoch, 0, 1, seed=seed, batch_size=1) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for i in range(40):
        assert len({rows[i] for rows in seen}) >= 3, "two windows of a small image may be alike, four may not"


# --- what a row holds ---------------------------------------------------------------------------------------------------------------


def test_types_and_shapes_are_the_contract() -> None:
    for rows in (plan(9).rows(0, 0)[0], plan(9, policy=CENTER, training=False).rows(0, 0)[2]):
        kinds = {name: (getattr(rows, name).dtype, getattr(rows, name).shape) for name in EVERY if getattr(rows, name) is not None}
        assert kinds == {
            "ids": (np.int64, (4,)),
            "regions": (np.int64, (4, 4)),
            "windows": (np.float64, (4, 4)),
            "sizes": (np.int64, (4, 2)),
            "flips": (np.bool_, (4,)),
            "valid": (np.bool_, (4,)),
        }
        assert (rows.sizes == 16).all()


def test_numbers_are_those_of_the_policy() -> None:
    heights, widths = sizes(30)["heights"], sizes(30)["widths"]
    rows = plan(30, batch_size=30).rows(4, 0)[0]
    draws = uniforms(3, 4, Purpose.WINDOW, rows.ids, windows.UNIFORMS)
    assert (rows.regions == windows.random_resized(heights[rows.ids], widths[rows.ids], draws)).all()
    assert (rows.windows == windows.filling(rows.regions)).all()
    assert (rows.flips == (uniforms(3, 4, Purpose.FLIP, rows.ids, 1)[:, 0] < 0.5)).all()

    rows = plan(30, policy=CENTER, batch_size=30, training=False).rows(0, 0)[0]
    regions, inner = windows.resize_then_center(heights, widths, resize=18, crop=16)
    assert (rows.regions == regions).all() and (rows.windows == inner).all() and not rows.flips.any()

    rows = plan(30, policy=ImagePolicy(window="stretch", image_size=16), batch_size=30, training=False).rows(0, 0)[0]
    assert (rows.regions == np.stack([0 * widths, 0 * heights, widths, heights], axis=1)).all()
    assert (rows.windows == rows.regions).all()


@pytest.mark.parametrize(("flip", "share"), [(0.0, 0.0), (1.0, 1.0), (0.5, 0.5), (0.1, 0.1)])
def test_flips_come_with_their_probability(flip: float, share: float) -> None:
    policy = ImagePolicy(window="stretch", image_size=8, flip=flip)
    rows = plan(20_000, policy=policy, batch_size=20_000).rows(0, 0)[0]
    assert rows.flips.mean() == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 20_000))


def test_policies_read_their_settings() -> None:
    settings = Augmentation(crop_scale=(0.3, 0.9), crop_ratio=(0.5, 2.0), flip=0.25, train_window="stretch", val_window="stretch")
    assert image_policies(settings, Native(128, MEAN, STD))[0] == ImagePolicy(
        window="stretch", image_size=128, resize=146, scale=(0.3, 0.9), ratio=(0.5, 2.0), flip=0.25
    )
    assert image_policies(settings, Native(224, MEAN, STD))[1] == ImagePolicy(window="stretch", image_size=224, resize=256)
    assert image_policies(Augmentation(val_resize=232), Native(224, MEAN, STD))[1].resize == 232
    assert image_policies(Augmentation(), Native(224, MEAN, STD, zoom=232 / 224))[1].resize == 232


def test_a_crop_larger_than_the_resize_is_a_mistake() -> None:
    with pytest.raises(UserError, match="--val-resize 200 is smaller than --image-size 224") as caught:
        ImagePolicy(window="center", image_size=224, resize=200)
    assert "\n" not in str(caught.value)
    ImagePolicy(window="stretch", image_size=224, resize=200)  # does not read it
    ImagePolicy(window="center", image_size=224, resize=224)


# --- its edges ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "world_size", "rank", "first"), [(True, 1, 0, 0), (True, 3, 1, 24), (False, 2, 0, 0), (False, 2, 1, 8)]
)
@pytest.mark.parametrize("batch_size", [1, 4, 24, 64, 65])
def test_small_batches_drawn_together_are_those_drawn_alone(
    training: bool, world_size: int, rank: int, first: int, batch_size: int
) -> None:
    here = plan(1003, batch_size=batch_size, world_size=world_size, rank=rank, training=training)
    rows = here.rows(1, first)
    own = here.ordered(1)[first:]
    for i in [*np.random.default_rng(0).permutation(len(rows)), len(rows) - 1, 0]:
        begin = (i * world_size + rank) * batch_size
        alone = here.draw(1, own[begin : begin + batch_size])
        assert np.array_equal(rows[i].ids, alone.ids)
        assert np.array_equal(rows[i].valid, alone.valid)
        assert by_id(rows[i]) == by_id(alone)
    assert len(rows) > 1


def test_rows_are_a_lazy_sequence() -> None:
    rows = plan(20).rows(0, 0)
    assert len(rows) == 5
    assert [by_id(row) for row in rows[3:]] == [by_id(rows[3]), by_id(rows[4])]
    for index in (-1, 5):
        with pytest.raises(IndexError):
            rows[index]


@pytest.mark.parametrize(
    ("n", "world_size", "accumulate", "said"),
    [(10, 2, 1, "--batch-size 5"), (10, 1, 3, "--batch-size 3"), (3, 4, 1, "too few samples"), (0, 1, 1, "too few")],
)
def test_no_step_at_all_is_a_mistake_that_names_what_fits(n: int, world_size: int, accumulate: int, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        plan(n, batch_size=64, world_size=world_size, accumulate=accumulate).require_a_step()
    assert "\n" not in str(caught.value) and f"{n} training samples" in str(caught.value)
    if "--batch-size" in said:
        plan(n, batch_size=int(said.split()[1]), world_size=world_size, accumulate=accumulate).require_a_step()
    plan(n, batch_size=64, policy=CENTER, training=False).require_a_step()


def test_importing_the_plan_imports_no_torch() -> None:
    """Workers that only draw rows start in a tenth of a second instead of seconds."""
    code = "import sys, plan.epoch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    planted = "import sys, torch, plan.epoch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", planted], cwd=ROOT).returncode == 1
