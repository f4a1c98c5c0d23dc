"""mixup and cutmix: numbers of a micro-batch's key, soft targets, and images as the network is given them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

from saturate.contracts import Batch, Rows
from saturate.plan.augment import Augment
from saturate.plan.draws import bits
from saturate.plan.images import ImagePlan, ImagePolicy
from saturate.plan.mixing import MOST_ALPHA, Mixing, beta
from saturate.tasks.classification import Classification
from tests.conformance.plans import sized
from tests.unit.test_classification import rows

SIDE = 16
KEYS = bits(3, np.arange(20_000))
LABELS = np.arange(10) % 5
EITHER = Mixing(mixup=0.8, cutmix=1.0)


def drawn(
    key: int, ids: Any = range(6), mixing: Mixing = EITHER
) -> tuple[Rows, dict[str, Any]]:
    made = rows(list(ids))
    size = np.full((len(made), 2), SIDE)
    made = replace(made, sizes=size, keys=np.full(len(made), key, np.uint64))
    return made, mixing.targets(made)


def batch_of(made: Rows, task: Any, seed: int = 0) -> Batch:
    noise = torch.randn(
        len(made), SIDE, SIDE, 3, generator=torch.Generator().manual_seed(seed)
    )
    targets = {
        name: torch.from_numpy(value) for name, value in task.targets(made).items()
    }
    valid = torch.from_numpy(made.valid)
    images = noise.movedim(-1, 1)
    return Batch(
        images=images,
        sizes=torch.from_numpy(made.sizes),
        targets=targets,
        valid=valid,
        ids=made.ids,
    )


def test_golden_shares() -> None:
    """Numbers of Beta(alpha, alpha)."""
    drawn = [beta(*given) for given in ((7, 0.1), (7, 0.8), (8, 1.0), (9, MOST_ALPHA))]
    assert drawn == pytest.approx([0.934029611, 0.11962258, 0.7401851, 0.277279378])


def test_a_cut_has_the_area_of_the_others_share() -> None:
    """Half of the other on average, since Beta(1, 1) is uniform; what the edges cut off counts for the own.

    A box of sides r * 400 and r * 200, r = (1 - share) ** 0.5, whose centre is anywhere: the own share is one less
    the part of the area that is inside. With r = s**0.5, s uniform, its mean is E[(r - r**2 / 4)**2] = E[s - s**1.5 / 2
    + s**2 / 16] = 1/2 - 1/5 + 1/48.
    """
    policy = Mixing(cutmix=1.0)
    inside = 0
    others = []
    for key in KEYS[:4000].tolist():
        own, _, (x0, y0, x1, y1) = policy._drawn(key, (400, 200))
        assert 0 <= x0 <= x1 <= 200 and 0 <= y0 <= y1 <= 400
        others.append(1 - own)
        assert own == pytest.approx(1 - (x1 - x0) * (y1 - y0) / (200 * 400))
        if x0 > 0 and x1 < 200 and y0 > 0 and y1 < 400:
            inside += 1
            side = (1 - beta(key, 1.0)) ** 0.5
            assert abs(x1 - x0 - side * 200) < 2.5 and abs(y1 - y0 - side * 400) < 2.5
    assert inside > 100
    assert float(np.mean(others)) == pytest.approx(1 / 2 - 1 / 5 + 1 / 48, abs=0.01)


def test_partners_are_cyclic_and_what_is_not_valid_mixes_with_nobody() -> None:
    shifts = set()
    for key in KEYS[:200]:
        _, targets = drawn(int(key))
        shift = {
            (partner - i) % 6 for i, partner in enumerate(targets["partners"].tolist())
        }
        assert len(shift) == 1
        shifts |= shift
    assert shifts == {1, 2, 3, 4, 5}
    for key in KEYS[:200]:
        _, targets = drawn(int(key), ids=[0, 1, -1, 3, -1, 5], mixing=Mixing(mixup=1.0))
        for i, partner in enumerate(targets["partners"].tolist()):
            alone = partner == i
            assert partner not in (2, 4) or alone
            assert alone == (targets["shares"][i] == 1) == (targets["blends"][i] == 1)
    _, one = drawn(5, ids=[3])
    assert one["partners"].tolist() == [0]


@pytest.mark.parametrize(
    "mixing", [Mixing(mixup=0.8), Mixing(cutmix=1.0)], ids=["mixup", "cutmix"]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_images_and_targets_are_mixed_alike(mixing: Mixing, smoothing: float) -> None:
    task = Classification(LABELS, label_smoothing=smoothing, mixing=mixing)
    for key in (7, 8, 9):
        made, numbers = drawn(key, ids=[0, 1, -1, 3, 4, 5], mixing=mixing)
        batch = batch_of(made, task)
        (images,) = task.inputs(batch)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images, task.shown(batch))
        logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(key))
        losses = task.losses(logits, batch)
        for i, partner in enumerate(numbers["partners"].tolist()):
            x0, y0, x1, y1 = numbers["cuts"][i].tolist()
            own = torch.full((SIDE, SIDE), float(numbers["blends"][i]))
            own[y0:y1, x0:x1] = 0
            expected = own * batch.images[i] + (1 - own) * batch.images[partner]
            torch.testing.assert_close(images[i], expected)
            if not made.valid[i]:
                assert losses[i] == 0 and torch.equal(images[i], batch.images[i])
                continue
            share = own.mean()
            own_label, other_label = functional.one_hot(torch.tensor(LABELS), 5)[
                [i, partner]
            ]
            soft = share * own_label + (1 - share) * other_label
            wanted = functional.cross_entropy(
                logits[i], soft, label_smoothing=smoothing
            )
            torch.testing.assert_close(losses[i], wanted)


def plan(**numbers: Any) -> ImagePlan:
    sizes = np.full(64, 20)
    policy = ImagePolicy(window="random-resized", image_size=SIDE, augment=Augment())
    given: dict[str, Any] = {"seed": 2, "batch_size": 4, **numbers}
    return ImagePlan(sized(sizes, sizes), policy, **given)


def test_a_key_is_of_seed_epoch_place_and_rank() -> None:
    keys = [plan().rows(epoch, 0)[i].keys for epoch in (0, 1) for i in range(16)]
    keys += [
        plan(seed=3).rows(0, 0)[0].keys,
        plan(world_size=2, rank=1).rows(0, 0)[0].keys,
    ]
    assert all(
        key is not None and key.dtype == np.uint64 and len(set(key.tolist())) == 1
        for key in keys
    )
    assert len({int(key[0]) for key in keys if key is not None}) == len(keys)
    resumed, whole = plan().rows(0, 12), plan().rows(0, 0)
    np.testing.assert_array_equal(resumed[2].keys, whole[5].keys)
    assert plan(training=False).rows(0, 0)[0].keys is None
