"""The plan of images: what a row holds, and the edges."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from saturate.contracts import Rows, UserError
from saturate.dataset.synthetic import NoBytes
from saturate.loaders import open_loader
from saturate.models import Native
from saturate.models.classification import MEAN, STD
from saturate.plan.augment import Augment, Jitter
from saturate.plan.balance import Balance
from saturate.plan.images import Growth, ImagePlan, ImagePolicy
from saturate.plan.order import order
from saturate.settings.augmentation import AugmentationSettings
from saturate.settings.clips import Clips
from saturate.tasks._plans import clip_policy, image_policies
from tests.conformance.plans import images

RANDOM = ImagePolicy(window="random-resized", image_size=16, flip=0.5)


def plan(
    n: int,
    *,
    policy: ImagePolicy = RANDOM,
    seed: int = 3,
    batch_size: int = 4,
    **numbers: Any,
) -> ImagePlan:
    return ImagePlan(images(n), policy, seed=seed, batch_size=batch_size, **numbers)


@pytest.mark.parametrize(
    ("settings", "training", "validation"),
    [
        (
            {"val_image_size": 224, "val_resize": 232},
            (176, 182),
            (224, 232),
        ),  # torchvision's V2
        (
            {"val_image_size": 224, "val_crop_share": 0.95},
            (176, 185),
            (224, 235),
        ),  # timm rounds down
    ],
)
def test_validation_has_a_size_of_its_own(
    settings: dict[str, Any], training: tuple[int, int], validation: tuple[int, int]
) -> None:
    """(image size, length before the crop). Growing images end at the training's."""
    settings |= {"image_size_start": 96, "image_size_ramp": (1, 3)}
    train, val = image_policies(
        AugmentationSettings(**settings), Native(176, MEAN, STD)
    )
    assert ((train.image_size, train.resize), (val.image_size, val.resize)) == (
        training,
        validation,
    )
    assert [train.size(epoch) for epoch in (0, 2, 9)] == [96, 128, 176]
    assert [val.size(epoch) for epoch in (0, 9)] == [validation[0]] * 2


@pytest.mark.parametrize(("start", "ramp"), [(176, (1, 3)), (96, (3, 3))])
def test_images_that_do_not_grow_are_a_mistake(
    start: int, ramp: tuple[int, int]
) -> None:
    settings = AugmentationSettings(image_size_start=start, image_size_ramp=ramp)
    with pytest.raises(UserError, match=f"{start} must be smaller .* in their order"):
        image_policies(settings, Native(176, MEAN, STD))


def test_clips_have_the_sides_of_slowfast() -> None:
    """Feichtenhofer et al. 2019: 256 to 320 for crops of 224 in training, and 256 in validation."""
    policy = clip_policy(AugmentationSettings(), Clips(), Native(224, MEAN, STD))
    assert (policy.shorter, policy.resize) == ((256, 320), 256)


def test_a_crop_larger_than_the_resize_is_a_mistake() -> None:
    with pytest.raises(
        UserError, match="--val-resize 200 is smaller than the image size, 224"
    ) as caught:
        ImagePolicy(window="center", image_size=224, resize=200)
    assert "\n" not in str(caught.value)
    ImagePolicy(window="stretch", image_size=224, resize=200)  # does not read it
    ImagePolicy(window="center", image_size=224, resize=224)


def test_opening_refuses_a_plan_without_a_batch() -> None:
    """Else a loop of one's own would pass over nothing, and end well."""
    none = plan(30, batch_size=31)
    feed: Any = SimpleNamespace(plan=none, source=NoBytes(30), transforms=None)
    with pytest.raises(UserError, match="no batch: a step takes 31 samples"):
        open_loader("synthetic", feed)


JITTERED = ImagePolicy(
    window="random-resized", image_size=16, augment=Augment((Jitter(color_jitter=0.4),))
)


def joined(batches: Iterable[Rows], name: str) -> Any:
    return np.concatenate([getattr(rows, name) for rows in batches])


@pytest.mark.parametrize("repeats", [2, 3])
def test_repeats_are_drawn_apart_and_an_epoch_keeps_its_length(repeats: int) -> None:
    """The samples at the end of the order are left out, and the first repeat is as if it were alone."""
    plain, repeated = (
        plan(50, policy=JITTERED, batch_size=5, repeats=count) for count in (1, repeats)
    )
    assert plain.steps() == repeated.steps() == 10
    assert plain.ordering != repeated.ordering
    batches, alone = repeated.rows(2, 0), plain.rows(2, 0)
    ids, ops = joined(batches, "ids"), joined(batches, "ops")
    assert ids.tolist() == np.repeat(order(3, 2, 50), repeats)[:50].tolist()
    firsts = joined(alone, "ops")[: len(ops[::repeats])]
    np.testing.assert_array_equal(ops[::repeats], firsts)
    assert len(np.unique(ops.reshape(50, -1), axis=0)) == 50
    assert joined(repeated.rows(2, 20), "ids").tolist() == ids[20:].tolist()
    valid = plan(50, training=False, repeats=repeats).rows(0, 0)[0]
    assert valid.ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("growth", "full", "sizes", "begins"),
    [
        # ffcv-imagenet's get_resolution for its presets of 16 and 88 epochs
        (
            Growth(start=160, begin=11, end=13),
            192,
            {0: 160, 11: 160, 12: 192, 13: 192, 99: 192},
            (0, 12),
        ),
        (
            Growth(start=128, begin=0, end=4),
            300,
            {0: 128, 1: 160, 2: 224, 3: 256, 4: 300},
            (0, 1, 2, 3, 4),
        ),
        # to begin with it is what was asked for, and no multiple of 32
        (
            Growth(start=150, begin=1, end=3),
            300,
            {0: 150, 1: 150, 2: 224, 3: 300},
            (0, 2, 3),
        ),
    ],
    ids=["16", "stages", "odd"],
)
def test_sizes_of_images_that_grow(
    growth: Growth, full: int, sizes: dict[int, int], begins: tuple[int, ...]
) -> None:
    policy = ImagePolicy(window="random-resized", image_size=full, growth=growth)
    growing = plan(8, policy=policy)
    assert {epoch: growing.policy.size(epoch) for epoch in sizes} == sizes
    assert growing.first_epochs == begins
    for epoch, size in sizes.items():
        assert (growing.rows(epoch, 0)[0].sizes == size).all()
    assert growing.batches.canvas == (full, full)


def test_classes_come_alike_on_any_number_of_ranks() -> None:
    """Each of three classes of 30, 7 and 2 samples has 13 items; a fourth has no sample."""
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 3], [30, 7, 2]))
    how: dict[str, Any] = {"policy": JITTERED, "batch_size": 3}
    how["balance"] = Balance.from_labels(labels)
    alone = plan(39, **how)
    seen: list[set[int]] = []
    for epoch in range(4):
        ids = joined(alone.rows(epoch, 0), "ids")
        assert np.bincount(labels[ids]).tolist() == [13, 13, 0, 13]
        times = np.bincount(ids, minlength=39)
        for label, expected in {0: {0, 1}, 1: {1, 2}, 3: {6, 7}}.items():
            assert set(times[labels == label]) == expected
        ops = joined(alone.rows(epoch, 0), "ops").reshape(39, -1)
        assert len(np.unique(ops, axis=0)) == 39, "repeats are drawn apart"
        ranks = [plan(39, **how, world_size=3, rank=rank) for rank in range(3)]
        steps = zip(*(own.rows(epoch, 0) for own in ranks), strict=True)
        assert joined(chain.from_iterable(steps), "ids").tolist() == ids[:36].tolist()
        seen.append(set(ids[labels[ids] == 0].tolist()))
    # another part of a large class each epoch
    assert seen[0] != seen[1] and len(set.union(*seen)) > 20
    assert alone.ordering != plan(39).ordering
    valid = plan(39, **how, training=False).rows(0, 0)[0]
    assert valid.ids.tolist() == [0, 1, 2]
