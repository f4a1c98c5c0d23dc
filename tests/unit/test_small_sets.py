"""What a network is shown in training is samples alone: batch norm counts what it sees, whatever the loss does.

The truth is a pass of torch's DataLoader over the same files, read by Pillow, that drops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from saturate.contracts import Batch, Pixels
from saturate.engine.failures import never_blank
from saturate.loaders import open_loader
from saturate.plan import order
from saturate.plan.images import ImagePlan, ImagePolicy
from tests.conformance import pictures, scenes
from tests.conformance.plans import sized
from tests.conformance.scenes import Scene

SIDE = 24
PIXELS = Pixels()
CASES = [
    (289, 16, 1, 1),
    (65, 8, 2, 2),
    (130, 4, 8, 2),
    (33, 32, 1, 1),
    (101, 1, 20, 1),
    (64, 16, 1, 1),
    (19, 2, 2, 2),
]
"""Images, --batch-size, --accumulate, ranks."""


def noise(count: int) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    shape = (SIDE, SIDE, 3)
    return {
        f"{i:03d}": pictures.png(rng.integers(0, 256, shape, dtype=np.uint8))
        for i in range(count)
    }


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scenes.scene(tmp_path_factory.mktemp("noisy"), noise(289), classes=1)


def trained_on(
    scene: Scene, case: tuple[int, ...], rank: int, **plan: Any
) -> Iterator[Batch]:
    """Yield what the step of a run over the first images of a scene is given in an epoch, on one rank."""
    count, batch_size, accumulate, ranks = case
    fitted, keeps_tail = order.fitted(count, batch_size, accumulate * ranks)
    manifest = scene.manifest
    columns = sized(manifest.height[:count], manifest.width[:count])
    made = ImagePlan(
        columns,
        ImagePolicy(window="stretch", image_size=SIDE),
        batch_size=fitted,
        accumulate=accumulate,
        world_size=ranks,
        rank=rank,
        keeps_tail=keeps_tail,
        **plan,
    )
    with open_loader("torchvision", scene.feed(plan=made, workers=0)) as loader:
        yield from never_blank(loader.batches(1, 0))


def by_hand(scene: Scene, which: list[int]) -> torch.Tensor:
    """Return float32 [N, 3, H, W], the images of these samples."""
    mean, std = (np.array(one, np.float32) for one in (PIXELS.mean, PIXELS.std))
    stored = np.stack([np.asarray(Image.open(scene.path(i))) for i in which])
    return torch.from_numpy((stored / np.float32(255) - mean) / std).movedim(3, 1)


def levels(images: torch.Tensor) -> list[bytes]:
    """Return the grey levels of each image, to be told from one another."""
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in (PIXELS.mean, PIXELS.std))
    found = ((images * std + mean) * 255).round().to(torch.uint8)
    return [image.numpy().tobytes() for image in found]


def counted_by(batches: Any, images: torch.Tensor) -> nn.BatchNorm2d:
    """Return a batch norm that knew the images' statistics, and was then given the batches."""
    norm = nn.BatchNorm2d(3)
    norm.running_mean = images.mean((0, 2, 3))
    norm.running_var = images.var((0, 2, 3))
    with torch.no_grad():
        for batch in batches:
            norm(batch)
    return norm


def are_alike(ours: nn.BatchNorm2d, theirs: nn.BatchNorm2d) -> None:
    (mean, var), (their_mean, their_var) = (
        (norm.running_mean, norm.running_var) for norm in (ours, theirs)
    )
    assert mean is not None and var is not None
    assert their_mean is not None and their_var is not None
    torch.testing.assert_close(var, their_var, rtol=0.05, atol=0)
    assert ((mean - their_mean).abs() < 0.05 * their_var.sqrt()).all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, case)))
def test_running_statistics_are_those_of_a_dataloader(
    noisy: Scene, case: tuple[int, ...]
) -> None:
    count, batch_size, _, ranks = case
    images = by_hand(noisy, [*range(count)])
    for seed in range(2):
        torch.manual_seed(seed)
        samples: Any = images  # a tensor is a sequence of samples
        theirs = counted_by(DataLoader(samples, batch_size, shuffle=True), images)
        counts = np.zeros(count, int)
        for rank in range(ranks):
            shown: list[torch.Tensor] = []
            for batch in trained_on(noisy, case, rank, seed=seed):
                shown.append(batch.images)
                assert len({len(one) for one in shown}) == 1, "shapes are a graph's"
                np.add.at(counts, batch.ids[batch.valid.numpy()], 1)
            are_alike(counted_by(shown, images), theirs)
        assert (counts == 1).all(), "each sample counts once"


@pytest.mark.parametrize(
    ("case", "broken"),
    [
        ((40, 4, 1, 1), (0,)),
        ((40, 1, 2, 1), (7, 11, 12, 30)),
        ((40, 1, 1, 2), range(20)),
        ((37, 2, 4, 1), (7, 11, 12, 30)),
    ],
)
def test_what_cannot_be_decoded_is_not_seen_as_zeros(
    tmp_path: Path, case: tuple[int, ...], broken: Iterable[int]
) -> None:
    """Also where it is all that a micro-batch has, in the middle, at the beginning and at the end."""
    files = noise(case[0])
    for place in broken:
        content = bytearray(files[f"{place:03d}"])
        content[60:90] = bytes(30)  # pixels, behind a header that can be read
        files[f"{place:03d}"] = bytes(content)
    made = scenes.scene(tmp_path, files, classes=1)
    good = [i for i in range(case[0]) if i not in broken]
    images = by_hand(made, good)
    known = set(levels(images))
    for seed in range(2):
        failed = set[int]()
        seen = set[int]()
        for rank in range(case[3]):
            shown = []
            for batch in trained_on(made, case, rank, seed=seed):
                shown.append(batch.images)
                failed.update(batch.failed)
                valid = batch.valid.numpy()
                seen.update(batch.ids[valid].tolist())
                labels = batch.targets["labels"].numpy()
                assert (labels[valid] == 0).all() and (labels[~valid] == -1).all()
            assert set(levels(torch.cat(shown))) <= known
            are_alike(counted_by(shown, images), counted_by(images.split(4), images))
        assert failed == {*broken} and seen == {*good}
