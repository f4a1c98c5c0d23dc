"""Sources of entries, LMDB and shards, behind the loaders that take bytes: batches are those of files."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from contracts import Feed, UserError
from dataset.coco.scan import open_coco
from dataset.open import are_files, open_splits, require_splits
from dataset.stores.folder import Folder
from loaders import open_loader
from plan.boxes import DetectionPlan, DetectionPolicy
from settings.config import build
from tests.conformance import pictures, placed, scenes, sources
from tests.conformance.scenes import CPU, Scene
from tests.conformance.test_sources import same_batches, stored
from tests.unit.coco_files import write_coco
from tests.unit.test_splits import Console


@pytest.fixture(params=["lmdb", "tar", "arrow"])
def kind(request: pytest.FixtureRequest) -> str:
    return sources.required(request.param)


def files_of(scene: Scene) -> dict[str, bytes]:
    """class/name -> bytes of the files of a scene."""
    entries = map(scene.manifest.entry, range(scene.samples))
    return dict(zip(map(os.fsdecode, entries), scene.bytes_of, strict=True))


LOADERS = pytest.mark.parametrize("name", ["torchvision", "dali-fed"])


@LOADERS
def test_batches_are_those_of_files(
    kind: str, name: str, small: Scene, tmp_path: Path
) -> None:
    feed = small.feed(batch_size=5, training=False)
    split = stored(kind, tmp_path / "data", files_of(small))()
    assert split.columns.fingerprint == feed.columns.fingerprint, (
        "a run goes on over it"
    )
    same_batches(
        partial(open_loader, name),
        feed,
        replace(feed, source=split.source, columns=split.columns),
    )


@LOADERS
def test_images_of_detection(name: str, tmp_path: Path) -> None:
    """Images of detection lie in an LMDB, or are files; other stores have images with a label."""
    pytest.importorskip("lmdb")
    data = write_coco(
        tmp_path / "coco", splits={"train2017": 8, "val2017": 4}, size=(64, 80)
    ).resolve()
    folder = open_coco(data, "train", keypoints=False, cache=tmp_path / "cache")
    for place in ("train2017", "val2017"):
        images = {path.name: path.read_bytes() for path in (data / place).iterdir()}
        (data / place).rename(tmp_path / place)
        sources.write_lmdb(data, place, images)
    settings = build({"data": data, "manifest_dir": tmp_path / "cache"}).data
    assert not are_files(settings, "instances")
    split = open_splits(settings, content="instances", loader=name, console=Console())[
        "train"
    ]
    assert split.columns.fingerprint == folder.fingerprint
    policy = DetectionPolicy(augment="flip", size=60, longer=100, flip=0.5)
    feed = Feed(
        plan=DetectionPlan.of(folder, policy, seed=3, batch_size=4),
        source=split.source,
        columns=split.columns,
        targets=placed.packed,
        device=CPU,
        workers=1,
    )
    columns = replace(folder, root=tmp_path)
    files = replace(feed, source=Folder(columns), columns=columns)
    same_batches(partial(open_loader, name), feed, files)
    again = build({"data": data, "source": "tar"}).data
    with pytest.raises(UserError, match="are files, or lie in an LMDB"):
        require_splits(again, "instances")


def test_a_damaged_entry_keeps_its_place_and_is_named(
    kind: str, tmp_path: Path
) -> None:
    files = {f"a/{name}.jpg": content for name, content in scenes.small(3).items()}
    damaged = pictures.damaged_files().values()
    files["a/small-001.jpg"] = next(
        content for content in damaged if pictures.pil(content) is None
    )
    split = stored(kind, tmp_path / "data", files)()
    scene = Scene(folder=tmp_path, manifest=split.columns, bytes_of=(), names=())
    with open_loader(
        "torchvision", scene.feed(source=split.source, training=False)
    ) as loader:
        (batch,) = loader.batches(0, 0)
    assert batch.failed == (1,) and split.source.name(1).endswith("a/small-001.jpg")
