"""Files that cannot be decoded are masked and named; changed or gone, they are one line for the user."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saturate.contracts import UserError
from saturate.loaders import open_loader
from saturate.loaders.images import _dali_rows, _pipeline, dali_fed
from saturate.loaders.images._pipeline import DEPTH
from tests.conformance import pictures, scenes
from tests.conformance.looking import joined, seen
from tests.conformance.placed import epoch_is_the_plans
from tests.conformance.scenes import Backend, Scene, scene

BATCH = 4
EPOCHS = ((0, 0), (1, 0))


def mixed(folder: Path, pattern: str) -> Scene:
    """A scene whose files are good (.) or broken (x), in validation's order."""
    files = {}
    for place, kind in enumerate(pattern):
        content = pictures.jpeg(pictures.photograph(900 + place, 60, 70), quality=92)
        if kind == "x":
            content = (
                content[: len(content) // 2],
                b"".join((content[:700], b"\xff\xd9")),
                content[: len(content) * 9 // 10],
            )[place % 3]
            while (
                pictures.pil(content) is not None
            ):  # whatever is decodable with an end marker is so without
                content = content[: len(content) - 100]
        files[f"{place:03d}-{kind}"] = content
    return scene(folder, files, classes=1)  # so that the ids follow the names


def test_every_kind_of_damage(backend: Backend, tmp_path: Path) -> None:
    damaged = pictures.damaged_files()
    files = {**scenes.small(14), **damaged}
    made = scene(tmp_path, files)
    unsure = tuple(damaged) if backend.decodes_on_gpu else ()
    feed = made.feed(backend.device, batch_size=5, image_size=40)
    allowed = backend.pixel_difference
    epoch_is_the_plans(backend.open, feed, made, allowed, EPOCHS, unsure)
    feed = made.feed(backend.device, batch_size=5, image_size=40, training=False)
    bad = epoch_is_the_plans(backend.open, feed, made, allowed, EPOCHS, unsure)
    assert {made.names[sample] for sample in bad} == {
        name for name, content in damaged.items() if pictures.pil(content) is None
    }
    assert 5 <= len(bad) < len(damaged)


@pytest.mark.parametrize(
    "pattern",
    [
        "..x..x....x....x",  # in consecutive batches, more than are under way at once
        "....xxxx........x.",  # a batch of nothing else, and in a padded one
        "xxxxxxxx",  # nothing else at all
    ],
)
def test_wherever_damage_is(backend: Backend, tmp_path: Path, pattern: str) -> None:
    assert len(pattern) / BATCH > DEPTH or pattern == "xxxxxxxx"
    made = mixed(tmp_path, pattern)
    feed = made.feed(backend.device, batch_size=BATCH, image_size=32, training=False)
    epochs = ((0, 0), *EPOCHS)
    bad = epoch_is_the_plans(backend.open, feed, made, backend.pixel_difference, epochs)
    assert bad == {place for place, kind in enumerate(pattern) if kind == "x"}


def test_files_that_pil_decodes_and_dali_does_not(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though their headers promise nothing odd: they are handed over as PIL's pixels, from then on."""
    for module in (_dali_rows, dali_fed):
        monkeypatch.setattr(
            module, "plain", lambda columns, ids: np.ones(len(ids), bool)
        )
    monkeypatch.setattr(dali_fed, "intact", lambda data: True)
    files = scenes.small(18)
    for at in (3, 4, 9):
        files[f"{at:03d}-odd"] = pictures.png(pictures.photograph(800 + at, 60, 70))[
            :-12
        ]
    made = scene(tmp_path, files)
    feed = made.feed(backend.device, batch_size=BATCH, image_size=32, training=False)
    tried: list[Any] = []
    refused = _pipeline.Runner._refused

    def noting(runner: Any, batch: Any) -> set[int]:
        tried.append(batch)
        return refused(runner, batch)

    monkeypatch.setattr(_pipeline.Runner, "_refused", noting)
    epochs = ((0, 0), *EPOCHS)
    bad = epoch_is_the_plans(backend.open, feed, made, backend.pixel_difference, epochs)
    assert bad == set()
    assert bool(tried) == (backend.name in ("dali-cpu", "dali-gpu", "dali-fed"))


def spoiled(small: Scene, folder: Path) -> Scene:
    shutil.copytree(small.folder, folder / "data")
    return scenes.scanned(folder / "data", folder / "manifests")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("shrunk", "changed size"),
        ("grown", "changed size"),
        ("gone", "is gone"),
    ],
)
def test_a_file_that_changed_after_the_scan_is_the_users_mistake(
    backend: Backend, small: Scene, tmp_path: Path, what: str, said: str
) -> None:
    made = spoiled(small, tmp_path)
    path, content = made.path(20), made.bytes_of[20]
    feed = made.feed(backend.device, image_size=32, training=False)
    with backend.open(feed) as loader:
        if what == "gone":
            path.unlink()
        else:
            path.write_bytes(content[:-9] if what == "shrunk" else content + b"more")
        with pytest.raises(UserError, match=re.escape(path.name)) as caught:
            for _ in loader.batches(0, 0):
                pass
        told = str(caught.value)
        assert said in told
        assert "--rescan" in told
        assert "\n" not in told
        path.write_bytes(content)
        again = joined(seen(batch, feed) for batch in loader.batches(0, 0))
        assert again.ids[again.real].tolist() == list(range(small.samples))
        assert not again.failed


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_what_stands_for_files_goes_with_a_batch_that_nobody_takes(
    tmp_path: Path, taken: int
) -> None:
    """dali-cpu writes PNGs of what only PIL decodes."""
    pytest.importorskip("nvidia.dali")
    webp = pictures.odd_files()["webp"]
    files = {f"{at:02d}-odd": webp + bytes(at) for at in range(16)}
    made = scene(tmp_path, files, classes=1)
    feed = made.feed(batch_size=BATCH, image_size=32, training=False, workers=1)
    with open_loader("dali-cpu", feed) as loader:
        folder = Path(loader._prepare._folder.name)  # type: ignore[attr-defined]
        for _ in range(2):
            with closing(loader.batches(0, 0)) as batches:  # type: ignore[type-var]
                assert sum(1 for _ in islice(batches, taken)) == taken
        assert len(list(loader.batches(0, 0))) == 4
        assert [path.name for path in folder.iterdir()] == ["placeholder"]
