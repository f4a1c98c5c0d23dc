"""Sources of entries, LMDB and shards, behind the loaders that take bytes: batches are those of files."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from loaders import open_loader
from tests.conformance import sources
from tests.conformance.scenes import Scene
from tests.conformance.test_sources import same_batches, stored


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
