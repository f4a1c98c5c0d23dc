"""Scenes that are made once a test process, and the loaders a test is repeated for; for the conftest of every folder that uses them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.conformance import pictures, scenes
from tests.conformance.scenes import Scene, scene

SAMPLES = "SATURATE_SAMPLES"
ROOT = Path(__file__).parents[2]


def parametrise(metafunc: pytest.Metafunc, device: torch.device) -> None:
    """`backend`: every loader that reads files. `any_backend`: every loader."""
    for name, files in (("backend", True), ("any_backend", False)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, scenes.backends(device, files=files), ids=str)


@pytest.fixture(scope="session")
def ramps(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Pixels that say where they are."""
    return scene(tmp_path_factory.mktemp("ramps"), scenes.ramps())


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """42 quick files."""
    return scene(tmp_path_factory.mktemp("small"), scenes.small())


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """18 JPEGs of ImageNet's sizes."""
    return scene(tmp_path_factory.mktemp("photographs"), scenes.photographs())


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """One file of each format, depth and colour model."""
    return scene(tmp_path_factory.mktemp("odd"), pictures.odd_files())


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Real ImageNet files, where there are some."""
    given = os.environ.get(SAMPLES)
    folder = (Path(given) if given else ROOT.parent / "shared" / "data") / "imagenet_sample"
    if not folder.is_dir():
        assert not given, f"{SAMPLES}={given} has no folder imagenet_sample"
        pytest.skip(f"no real images: {SAMPLES} is not set and there is no {folder}")
    return scenes.scanned(folder, tmp_path_factory.mktemp("manifests"))


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, this test's own and empty. Its path is short: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)
