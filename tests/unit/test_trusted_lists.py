"""Lists that are trusted: no file is opened before a plan comes to it, and nothing else is different."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saturate.contracts import Array, Feed, Rows, Split, UserError
from saturate.dataset.images import lazy_headers
from saturate.dataset.images.columns import Header, slow_to_decode
from saturate.dataset.open import open_splits
from saturate.dataset.stores import list as image_list
from saturate.loaders import open_loader
from saturate.plan.images import ImagePlan, ImagePolicy
from saturate.settings.config import build
from tests.conformance import scenes
from tests.conformance.scenes import CPU
from tests.unit.folders import fill, refused
from tests.unit.test_scan_storage import failing
from tests.unit.test_splits import Console

POLICY = ImagePolicy(window="random-resized", image_size=24, flip=0.5)
FILES = {f"{name}.jpg": content for name, content in scenes.small(12).items()}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes, whatever this machine has."""
    monkeypatch.setattr(lazy_headers, "cores", lambda: 0.5)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return fill(tmp_path / "data", FILES)


def opened(
    data: Path, lines: list[str] | None = None, *, trust: bool = True, **how: Any
) -> Split:
    names = (
        [f"{name},{place % 3}" for place, name in enumerate(FILES)]
        if lines is None
        else lines
    )
    text = "\n".join(names)
    if not (data / "train.csv").exists() or (data / "train.csv").read_text() != text:
        (data / "train.csv").write_text(text)
    open_ = partial(image_list.open, unread=trust)
    return open_(data, "train", cache=data.parent / "cache", **how)


def plan_of(split: Split, **numbers: Any) -> ImagePlan:
    return ImagePlan(split.columns, POLICY, **{"seed": 3, "batch_size": 2, **numbers})


def feed_of(split: Split, plan: ImagePlan) -> Feed:
    def targets(rows: Rows) -> dict[str, Array]:
        label = split.columns.label[rows.ids]
        return {"label": np.where(rows.valid, label, -1)}

    return Feed(
        plan=plan,
        source=split.source,
        columns=split.columns,
        targets=targets,
        device=CPU,
        workers=2,
    )


def known(split: Split) -> Array:
    return np.flatnonzero(split.columns.height)


@pytest.mark.parametrize(("world_size", "first"), [(1, 5), (3, 0)])
def test_rows_are_those_of_a_scan(data: Path, world_size: int, first: int) -> None:
    trusted, scanned = opened(data), opened(data, trust=False)
    assert slow_to_decode(scanned.columns, 224)
    assert not slow_to_decode(trusted.columns, 224)
    for rank in range(world_size):
        ranks = {"world_size": world_size, "rank": rank, "batch_size": 1}
        plans = [plan_of(split, **ranks).rows(1, first) for split in (trusted, scanned)]
        assert len(plans[0]) == len(plans[1]) > 1
        for one, other in zip(*plans, strict=True):
            for name in ("ids", "regions", "windows", "turns", "valid"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    drawn = known(trusted)
    for name in Header._fields:
        np.testing.assert_array_equal(
            getattr(trusted.columns, name)[drawn], getattr(scanned.columns, name)[drawn]
        )
    assert len(drawn) == (len(FILES) - first) // world_size * world_size


def test_headers_stay_and_are_no_part_of_the_fingerprint(data: Path) -> None:
    split = opened(data)
    fingerprint = split.columns.fingerprint
    list(plan_of(split).rows(0, 0))
    again = opened(data)
    assert len(known(again)) == len(FILES) and again.columns.fingerprint == fingerprint
    assert again.columns.folder == split.columns.folder
    fresh = opened(data, rescan=True)
    assert not len(known(fresh)) and fresh.columns.fingerprint == fingerprint
    assert opened(data, trust=False).columns.fingerprint != fingerprint


@pytest.mark.parametrize("name", ["torchvision", "dali-fed"])
def test_what_cannot_be_read_is_masked_and_named(name: str, data: Path) -> None:
    lines = [f"{file},0" for file in FILES]
    lines[3] = "gone.jpg,1"
    lines[5] = "text.jpg,1"
    fill(data, {"text.jpg": b"no image"})
    split = opened(data, lines)
    feed = feed_of(split, plan_of(split, batch_size=5, training=False))
    with open_loader(name, feed) as loader:
        assert not any("no plain" in note for note in loader.notes)
        batches = list(loader.batches(0, 0))
    failed = [sample for batch in batches for sample in batch.failed]
    assert failed == [3, 5]
    labels = np.concatenate([batch.targets["label"].numpy() for batch in batches])
    assert labels.tolist() == [0, 0, 0, -1, 0, -1, 0, 0, 0, 0, 0, 0, -1, -1, -1]
    assert [os.path.basename(split.source.name(sample)) for sample in failed] == [
        "gone.jpg",
        "text.jpg",
    ]


def test_storage_that_fails_ends_a_run_and_leaves_no_mark(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as sick:
        failing("open", b".jpg", errno.EIO, sick)
        with pytest.raises(
            UserError,
            match=r"I/O error: .*\.jpg cannot be read: .*; tried 4 times .*; go on",
        ):
            plan_of(opened(data)).rows(0, 0)[0]
    split = opened(data)
    assert not len(known(split))
    list(plan_of(split).rows(0, 0))
    assert len(known(split)) == len(FILES) and split.columns.components.all()


def splits(data: Path, console: Console, **settings: Any) -> dict[str, Split]:
    config = build({"data": data, "manifest_dir": data.parent / "cache", **settings})
    return open_splits(config.data, loader="torchvision", console=console)


def test_settings_of_lists(data: Path) -> None:
    opened(data)
    (data / "val.csv").write_text((data / "train.csv").read_text())
    console = Console()
    found = splits(data, console, trust_list=True, order="sequential")
    assert (
        not len(known(found["train"]))
        and found["train"].columns.fetch is not None
        and not console.warnings
    )
    shown = refused(lambda: splits(data, console, trust_list=True, exif="shown"))
    assert "--exif shown takes the headers of all images" in shown


@pytest.mark.parametrize("world_size", [1, 3])
def test_sequential_is_the_order_of_the_list(data: Path, world_size: int) -> None:
    split = opened(data, trust=False)
    of = partial(plan_of, split, shuffled=False, batch_size=2, world_size=world_size)
    for epoch in (0, 1):
        ranks = [of(rank=rank).rows(epoch, 0) for rank in range(world_size)]
        ids = [rows.ids for step in zip(*ranks, strict=True) for rows in step]
        assert np.concatenate(ids).tolist() == list(range(12))
    assert of().ordering != plan_of(split).ordering
