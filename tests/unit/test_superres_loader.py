"""The loader of pairs: the patches that Pillow gives, each image decoded once, what is damaged left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch, Feed, Pixels
from saturate.loaders import open_loader
from saturate.plan.patches import HIGH
from tests.unit.superres_files import (
    expected,
    feed_of,
    halved,
    levels,
    opened,
    write,
    write_small,
)

PLAIN = Pixels(mean=(0.0,) * 3, std=(1.0,) * 3)


def passed(feed: Feed, epoch: int = 0, first: int = 0) -> list[Batch]:
    with open_loader("paired", replace(feed, pixels=PLAIN)) as loader:
        return list(loader.batches(epoch, first))


def check(
    batches: list[Batch], large: list[Any], small: list[Any], patches: int = 1
) -> int:
    """Compare every row with whole images; return how many there were."""
    count = 0
    for batch in batches:
        rows: Any = batch.rows
        assert (
            batch.valid.all()
            and not batch.failed
            and batch.targets["ids"].tolist() == rows.ids.tolist()
        )
        for i, sample in enumerate(rows.ids.tolist()):
            image = sample // patches
            low, high = expected(rows, i, large[image], small[image])
            np.testing.assert_array_equal(levels(batch.images, i), low)
            np.testing.assert_array_equal(levels(batch.targets[HIGH], i), high)
            count += 1
    return count


@pytest.mark.parametrize("ending", ["png", "jpg", "ppm"])
@pytest.mark.parametrize("patches", [1, 3])
@pytest.mark.parametrize("stored", [False, True])
def test_patches_are_cut_out_of_pillows_images(
    ending: str, patches: int, stored: bool, tmp_path: Path
) -> None:
    """Made small and cut is cut and made small; stored small images are read, one level darker here."""
    images = write(
        tmp_path / "data/train" / ("HR" if stored else ""),
        8,
        ending=ending,
        even=stored,
    )
    large = list(images.values())
    small = [halved(pixels, 2) for pixels in large]
    if stored:
        write_small(tmp_path / "data/train/LR/X2", images, 2, "x2")
        small = [np.maximum(pixels, 1) - 1 for pixels in small]
    split = opened(tmp_path / "data", patches=patches)
    batches = passed(feed_of(split))
    assert check(batches, large, small, patches) == 8 * patches
    turns = {
        int(turn)
        for batch in batches
        if batch.rows is not None
        for turn in batch.rows.turns
    }
    assert turns - {0, 1, 2, 3}, "none is transposed"


def test_several_patches_of_an_image_are_decoded_once_and_spread(
    tmp_path: Path,
) -> None:
    write(tmp_path / "data/train", 12)
    split = opened(tmp_path / "data", patches=6)
    feed = feed_of(split)
    source: Any = feed.source
    reads: Counter[int] = Counter()
    read = source.source.read

    def counted(image: int) -> bytes:
        reads[image] += 1
        data: bytes = read(image)
        return data

    source.source.read = counted
    batches = passed(feed, epoch=1)
    assert reads == Counter(range(12))
    images = [batch.ids // 6 for batch in batches]
    assert len(images) == 18 and all(len(set(its.tolist())) == 4 for its in images), (
        "twice in a batch"
    )
    tail = passed(feed, epoch=1, first=20)
    assert [batch.ids.tolist() for batch in tail] == [
        batch.ids.tolist() for batch in batches[5:]
    ]
    assert all(
        torch.equal(a.images, b.images) for a, b in zip(tail, batches[5:], strict=True)
    )


@pytest.mark.parametrize("which", ["HR", "LR"])
def test_a_sample_is_valid_when_both_files_are(which: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    images = write(data / "train/HR", 4, even=True)
    write_small(data / "train/LR", images, 2)
    broken = data / "train" / which / "0002.png"
    content = bytearray(broken.read_bytes())
    content[60:90] = bytes(30)  # pixels, behind a header that can be read
    broken.write_bytes(content)
    (batch,) = passed(feed_of(opened(data)))
    assert batch.failed == (2,) and sorted(
        batch.ids[~batch.valid.numpy()].tolist()
    ) == [2]
    lost = batch.ids.tolist().index(2)
    # in its place is the row behind it, which does not count
    other = (lost + 1) % len(batch.ids)
    for shown in (batch.images, batch.targets[HIGH]):
        assert shown[other].any() and torch.equal(shown[lost], shown[other])
