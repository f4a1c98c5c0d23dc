"""Assertions that every plan must pass: functions of (make, ...)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np

from saturate.contracts import Array, Plan, Rows
from saturate.plan.boxes import DetectionPlan, DetectionPolicy
from saturate.plan.clips import ClipPlan, ClipPolicy
from saturate.plan.images import ImagePlan, ImagePolicy
from saturate.plan.patches import PatchPlan, PatchPolicy
from tests.unit.annotated import columns

Make = Callable[..., Plan]
"""make(n, training=True, seed=3, batch_size=1, world_size=1, rank=0, accumulate=1) -> the plan of n
samples."""

SHORT_SIDES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)


@dataclass
class Videos:
    """What a plan reads of a manifest: n videos, all different, some segments, one with a single frame."""

    n: int
    step: int = 512  # ticks from frame to frame
    time_base: tuple[int, int] = (1, 12800)  # so that a step is 1/25 s
    exif = None
    fetch = None

    def __post_init__(self) -> None:
        ids = np.arange(self.n)
        self.height = (ids % 37 + 60).astype(np.int32)
        self.width = (ids % 41 + 55).astype(np.int32)
        self.first = ids % 5 * 3
        self.frames = np.where(ids % 7, ids % 23 + 10, 1)
        self.time_base_num, self.time_base_den = (
            np.full(self.n, value, np.int32) for value in self.time_base
        )

    def __len__(self) -> int:
        return self.n

    def pts(self, sample: int) -> Array:
        return 1000 + self.step * np.arange(
            self.first[sample] + self.frames[sample] + 4
        )


def sized(height: Array, width: Array, **more: Any) -> Any:
    """Columns of which a plan reads the sizes, and `more`."""
    return SimpleNamespace(height=height, width=width, exif=None, fetch=None, **more)


def images(n: int, **more: Any) -> Any:
    """Columns of n images."""
    numbers = np.arange(n, dtype=np.int32)
    return sized(numbers % 37 + 20, numbers % 41 + 15, **more)


def boxed(n: int) -> SimpleNamespace:
    """Columns of n images with boxes, of which every fifth has none."""
    rng = np.random.default_rng(n)
    sizes = [(int(h), int(w)) for h, w in rng.integers(40, 700, (n, 2))]
    boxes = [
        []
        if i % 5 == 4
        else [(w / 4, h / 4, w / 2, h / 2), (1.0, 2.0, 9.0, 8.0)][: 1 + i % 2]
        for i, (h, w) in enumerate(sizes)
    ]
    return columns(sizes, boxes)


def _made(
    of: Any, source: Any, policies: tuple[Any, Any], n: int, **numbers: Any
) -> Plan:
    policy = policies[0] if numbers.get("training", True) else policies[1]
    made: Plan = of(source(n), policy, **{"seed": 3, "batch_size": 1, **numbers})
    return made


def _detection(**policy: Any) -> Make:
    training = DetectionPolicy(flip=0.5, **policy)
    validation = DetectionPolicy(
        augment="flip", size=training.size, longer=training.longer
    )
    return partial(_made, DetectionPlan, boxed, (training, validation))


def clip_policy(**changes: Any) -> ClipPolicy:
    usual: dict[str, Any] = {
        "frames": 4,
        "stride": 2,
        "image_size": 16,
        "shorter": (18, 24),
        "resize": 18,
    }
    return ClipPolicy(**usual | {"flip": 0.5} | changes)


def _clips(**policy: Any) -> Make:
    return partial(_made, ClipPlan, Videos, (clip_policy(**policy),) * 2)


def _patches(patches: int = 1, **policy: Any) -> Make:
    both = (
        PatchPolicy(scale=2, patch=12, turns=True, **policy),
        PatchPolicy(scale=2, **policy),
    )
    return partial(_made, PatchPlan, partial(images, patches=patches), both)


CENTER = ImagePolicy(window="center", image_size=16, resize=18)


def _images(window: Any) -> Make:
    training = ImagePolicy(window=window, image_size=16, flip=0.5)
    return partial(_made, ImagePlan, images, (training, CENTER))


PLANS: dict[str, Make] = {
    "random-resized": _images("random-resized"),
    "stretched": _images("stretch"),
    "clips": _clips(),
    "clips-in-time": _clips(fps=20.0),
    "clips-of-views": _clips(clips=3, crops=3),
    "patches": _patches(),
    "patches-of-pairs": _patches(made=False),
    "patches-in-blocks": _patches(3),
    "boxes": _detection(augment="flip", size=800, longer=1333),
    "boxes-stretched": _detection(augment="flip", size=300),
    "boxes-multiscale": _detection(
        augment="multiscale", size=800, longer=1333, short_sides=SHORT_SIDES
    ),
    "boxes-lsj": _detection(augment="lsj", size=1024, longer=1333),
    "boxes-ssd": _detection(augment="ssd", size=300),
    "boxes-ssdlite": _detection(augment="ssdlite", size=320),
}
"""Every plan, as its task makes it; a new one is a line here."""


def by_id(rows: Rows) -> dict[int, tuple[str, ...]]:
    """Return id -> everything that travels with it, of the rows that are no padding."""
    found: dict[int, tuple[str, ...]] = {}
    for i in np.flatnonzero(rows.valid):
        sample = int(rows.ids[i])
        assert sample not in found, f"sample {sample} is twice in a batch"
        found[sample] = _numbers(rows, int(i))
    return found


def columns_of(rows: Rows) -> list[Array]:
    """Return what each sample has a row of. A key is the micro-batch's, and no sample's."""
    names = (field.name for field in fields(Rows))
    found = (getattr(rows, name) for name in names if name not in ("canvas", "keys"))
    return [column for column in found if column is not None]


def _numbers(rows: Rows, i: int) -> tuple[str, ...]:
    return tuple(repr(column[i].tolist()) for column in columns_of(rows))


def epoch_of(
    make: Make, n: int, epoch: int, first: int, world_size: int, **numbers: Any
) -> dict[int, tuple[str, ...]]:
    """Return what by_id says of an epoch of training, over all ranks."""
    found: dict[int, tuple[str, ...]] = {}
    for rank in range(world_size):
        for rows in make(n, world_size=world_size, rank=rank, **numbers).rows(
            epoch, first
        ):
            own = by_id(rows)
            assert not set(own) & set(found), "a sample is in two batches"
            found |= own
    return found


def ordered(make: Make, n: int, epoch: int, **numbers: Any) -> list[int]:
    """Return the ids of an epoch of training in their order."""
    return [
        int(rows.ids[0]) for rows in make(n, batch_size=1, **numbers).rows(epoch, 0)
    ]


def training_is_exact(
    make: Make,
    n: int,
    *,
    world_size: int,
    batch_size: int,
    accumulate: int = 1,
    first: int = 0,
    epoch: int = 0,
) -> None:
    """Each sample once over the ranks, in the one order; steps and micro-batches agree; nothing is
    padding."""
    expected = ordered(make, n, epoch)
    together = world_size * batch_size * accumulate
    assert len(set(expected)) == len(expected) == make(n).samples
    for rank in range(world_size):
        plan = make(
            n,
            world_size=world_size,
            rank=rank,
            batch_size=batch_size,
            accumulate=accumulate,
        )
        assert (plan.batches.rows, plan.global_batch_size, plan.samples) == (
            batch_size,
            together,
            len(expected),
        )
        rows = plan.rows(epoch, first)
        assert plan.steps(first) == max(len(expected) - first, 0) // together
        assert len(rows) == plan.steps(first) * accumulate
        for i in range(len(rows)):
            begin = first + (i * world_size + rank) * batch_size
            assert rows[i].ids.tolist() == expected[begin : begin + batch_size], (
                f"rank {rank}, micro-batch {i}"
            )
            assert rows[i].valid.all()


def a_small_set_is_filled_up(
    make: Make,
    n: int,
    *,
    world_size: int,
    batch_size: int,
    accumulate: int,
    first: int,
    epoch: int = 0,
) -> None:
    """Nothing is dropped, and each sample counts once. What the last step lacks are samples of other steps, which
    have the numbers of their own rows; on any number of ranks it is the same ones.
    """
    expected = ordered(make, n, epoch)
    together = world_size * batch_size * accumulate
    numbers: dict[str, Any] = {"accumulate": accumulate, "batch_size": batch_size}
    ranks = [
        list(
            make(n, world_size=world_size, rank=rank, keeps_tail=True, **numbers).rows(
                epoch, first
            )
        )
        for rank in range(world_size)
    ]
    steps = -(-max(len(expected) - first, 0) // together)
    assert {len(rows) for rows in ranks} == {steps * accumulate}
    batches = list(chain.from_iterable(zip(*ranks, strict=True)))
    drawn = [int(sample) for rows in batches for sample in rows.ids]
    fills = [bool(one) for rows in batches for one in rows.fillers]
    left = max(len(expected) - first, 0)
    assert all(rows.valid.all() for rows in batches)
    assert drawn[:left] == expected[first:] and not any(fills[:left])
    assert all(fills[left:]) and len(fills) == steps * together
    fillers = drawn[left:]
    step = set(expected[first + (steps - 1) * together :]) if steps else set()
    others = set(expected) - step
    assert len({*fillers}) == min(len(fillers), len(expected))
    assert len({*fillers} & others) == min(len(fillers), len(others))
    alone = {
        sample: one
        for rows in make(n, batch_size=1).rows(epoch, 0)
        for sample, one in by_id(rows).items()
    }
    for rows in batches:
        without = replace(rows, fillers=None)
        for i, sample in enumerate(rows.ids.tolist()):
            assert _numbers(without, i) == alone[sample]


def validation_is_exact(
    make: Make, n: int, *, world_size: int, batch_size: int
) -> None:
    """Each view once over the ranks, behind them padding with id -1 and a real row's numbers; the same in
    every epoch."""
    plans = [
        make(n, training=False, world_size=world_size, rank=rank, batch_size=batch_size)
        for rank in range(world_size)
    ]
    ranks = [list(plan.rows(0, 0)) for plan in plans]
    assert (
        {len(rows) for rows in ranks}
        == {plan.steps() for plan in plans}
        == {len(ranks[0])}
    )
    ids: list[int] = []
    for rows in chain.from_iterable(zip(*ranks, strict=True)):
        assert len(rows) == batch_size
        assert (rows.valid == (rows.ids >= 0)).all() and (rows.ids >= -1).all()
        assert (rows.regions[:, 2:] > rows.regions[:, :2]).all(), (
            "padding has the numbers of a real sample"
        )
        ids += rows.ids.tolist()
    views = plans[0].samples * plans[0].views
    assert sorted(ids[:views]) == np.repeat(np.arange(n), plans[0].views).tolist()
    assert set(ids[views:]) <= {-1}
    for one, other in zip(ranks[0], plans[0].rows(7, 0), strict=True):
        assert [_numbers(one, i) for i in range(batch_size)] == [
            _numbers(other, i) for i in range(batch_size)
        ]
    alone = [_numbers(rows, 0) for rows in make(n, training=False).rows(0, 0)]
    drawn = [
        _numbers(rows, int(i))
        for rows in chain.from_iterable(zip(*ranks, strict=True))
        for i in np.flatnonzero(rows.valid)
    ]
    assert sorted(drawn) == sorted(alone)


def a_resume_is_exact(
    make: Make, n: int, *, before: tuple[int, int], after: tuple[int, int], steps: int
) -> None:
    """Another world size and batch (`before`, `after`) go on with the tail, with the numbers of each
    sample.
    """
    epoch = 2
    whole = epoch_of(make, n, epoch, 0, 1, batch_size=1)
    assert len(whole) == make(n).samples
    consumed = min(steps, len(whole) // (before[0] * before[1])) * before[0] * before[1]
    first = epoch_of(make, n, epoch, 0, before[0], batch_size=before[1])
    rest = epoch_of(make, n, epoch, consumed, after[0], batch_size=after[1])
    tail = ordered(make, n, epoch)[consumed:]
    together = after[0] * after[1]
    assert set(rest) == set(tail[: len(tail) // together * together])
    for sample, numbers in (*first.items(), *rest.items()):
        assert numbers == whole[sample], f"sample {sample} was drawn with other numbers"


def checksum(arrays: Iterable[Any]) -> float:
    """Return one number that any change of any number of the arrays, or of their order, changes."""
    numbers = np.concatenate([np.ravel(array).astype(np.float64) for array in arrays])
    return float(numbers @ (np.arange(len(numbers)) % 97 + 1))
