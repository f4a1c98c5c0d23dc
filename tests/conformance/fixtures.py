"""Scenes that are made once a test process, and the loaders a test is repeated for."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from saturate.dataset.coco.scan import open_coco
from tests.conformance import pictures, reels, scenes
from tests.conformance.scenes import Backend, Scene, scene
from tests.unit.coco_files import write_coco

__all__ = [
    "coco",
    "damaged",
    "odd",
    "photographs",
    "quick",
    "quick_clips",
    "ramps",
    "ruled",
    "ruled_clips",
    "samples",
    "small",
    "temporary",
]
"""What each conftest.py takes over."""

SAMPLES = "SATURATE_SAMPLES"
LOADERS: dict[str, Callable[..., list[Backend]]] = {
    "backend": partial(scenes.backends, files=True),
    "any_backend": partial(scenes.backends, files=False),
    "lone_backend": scenes.lone,
}
"""Argument of a test -> the loaders that it is repeated for. `backend`: that read files. `any_backend`: all.
"""
OF_EITHER = {"quick", "ruled"}
"""Scenes of images or of videos, whichever the loader reads; the others are of images."""
ROOT = Path(__file__).parents[2]


def parametrise(metafunc: pytest.Metafunc, device: torch.device) -> None:
    """Run a test for every loader of images; where it takes `quick` or `ruled`, for those of clips too."""
    for name, those in LOADERS.items():
        if name in metafunc.fixturenames:
            found = those(device, clips=False)
            if not OF_EITHER.isdisjoint(metafunc.fixturenames):
                found += those(device, clips=True)
            metafunc.parametrize(name, found, ids=str)


def backend_of(request: pytest.FixtureRequest) -> Backend:
    (name,) = LOADERS.keys() & set(request.fixturenames)
    found: Backend = request.getfixturevalue(name)
    return found


def sample_folder(name: str) -> Path:
    """Return a folder of real files; without it the test is skipped, unless SAMPLES says that it is there."""
    given = os.environ.get(SAMPLES)
    folder = (Path(given) if given else ROOT.parent / "shared" / "data") / name
    if not folder.is_dir():
        assert not given, f"{SAMPLES}={given} has no folder {name}"
        pytest.skip(f"no real images: {SAMPLES} is not set and there is no {folder}")
    return folder


def made_once(name: str, make: Callable[[Path], Scene]) -> Any:
    """Return the fixture of that name: a scene that is made once, in a folder of its own."""

    @pytest.fixture(scope="session", name=name)
    def made(tmp_path_factory: pytest.TempPathFactory) -> Scene:
        return make(tmp_path_factory.mktemp(name))

    return made


def of_files(name: str, files: Callable[[], dict[str, bytes]]) -> Any:
    return made_once(name, lambda folder: scene(folder, files()))


def _damaged() -> dict[str, bytes]:
    """Good files, files that cannot be decoded, and formats that only Pillow decodes."""
    odd, broken = pictures.odd_files(), pictures.damaged_files()
    files = {
        f"damaged-{name}": content
        for name, content in broken.items()
        if pictures.pil(content) is None
    }
    files |= {name: odd[name] for name in ("cmyk-jpeg", "png-rgba", "jpeg-rgb", "gif")}
    return {**scenes.small(11), **files}


ramps = of_files("ramps", scenes.ramps)
small = of_files("small", scenes.small)
photographs = of_files("photographs", scenes.photographs)
odd = of_files("odd", pictures.odd_files)
damaged = of_files("damaged", _damaged)
ruled_clips = made_once("ruled_clips", reels.ruled)
quick_clips = made_once("quick_clips", reels.quick)


@pytest.fixture
def ruled(request: pytest.FixtureRequest) -> Any:
    clips = backend_of(request).clips
    return request.getfixturevalue("ruled_clips" if clips else "ramps")


@pytest.fixture
def quick(request: pytest.FixtureRequest) -> Any:
    clips = backend_of(request).clips
    return request.getfixturevalue("quick_clips" if clips else "small")


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = sample_folder("imagenet_sample")
    return scenes.scanned(folder, tmp_path_factory.mktemp("manifests"))


@pytest.fixture(scope="session")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Images with boxes: real ones where there are some, else drawn ones."""
    try:
        folder = sample_folder("coco_sample")
    except pytest.skip.Exception:
        folder = write_coco(
            tmp_path_factory.mktemp("coco"), splits={"train2017": 40}, size=(240, 320)
        )
    cache = tmp_path_factory.mktemp("manifests")
    columns = open_coco(folder, "train", keypoints=False, cache=cache)
    return Scene.of(folder, columns)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, this test's own and empty. Its path is short: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)
