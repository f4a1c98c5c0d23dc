"""The programs that draw a demo's set."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scripts import demo_coco, demo_set, demo_textures
from tests.unit.folders import contents

ROOT = Path(__file__).parents[2]
NAMES = ("demo_set", "demo_coco", "demo_superres", "demo_textures", "demo_videos")


@pytest.fixture(params=NAMES)
def program(request: pytest.FixtureRequest) -> Any:
    return import_module(f"scripts.{request.param}")


def counts(program: Any, train: int) -> list[str]:
    of = "" if program.__name__.endswith(("coco", "superres")) else "-per-class"
    return [f"--train{of}", str(train), f"--val{of}", "1"]


def test_a_finished_set_is_reused_and_another_seed_replaces_it(program: Any, tmp_path: Path) -> None:
    dest = tmp_path / "set"
    dest.mkdir()  # an empty folder is welcome
    assert program.write(dest, 1, 1, progress=False)
    first, times = contents(dest), {path: path.stat().st_mtime_ns for path in dest.rglob("*")}
    assert not program.write(dest, 1, 1, progress=False)
    assert times == {path: path.stat().st_mtime_ns for path in dest.rglob("*")}
    assert program.write(dest, 1, 1, seed=1, progress=False)
    assert contents(dest).keys() == first.keys()
    assert contents(dest) != first
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("content", ["mine.txt", "{name}.json mine.txt", "train"])
def test_a_foreign_folder_is_refused_in_one_line(
    program: Any, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = program.__name__.removeprefix("scripts.")
    for file in content.format(name=name).split():
        (tmp_path / file).write_text("{}")
    before = contents(tmp_path)
    assert program.main([str(tmp_path), *counts(program, 1)]) == 2
    assert program.main([str(next(tmp_path.iterdir()))]) == 2
    assert program.main([str(tmp_path / "set"), *counts(program, 0)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and all(line.startswith(f"{name}: ") for line in said)
    assert str(tmp_path) in said[0] and "at least one" in said[2]
    assert contents(tmp_path) == before


def test_an_interrupted_set_leaves_nothing(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for module in (demo_set, demo_coco):  # of which the others take the first one's
        monkeypatch.setattr(module, "track", interrupted)
    assert program.main([str(tmp_path / "set")]) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", ["-m scripts.demo_set", "scripts/demo_set.py"])
def test_one_starts_as_a_module_and_as_a_file(start: str, tmp_path: Path) -> None:
    few = ["--train-per-class", "1", "--val-per-class", "1"]
    command = [sys.executable, *start.split(), str(tmp_path / "set"), *few]
    result = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert len(contents(tmp_path / "set")) == 21


def test_textures_are_fifty_classes_that_no_colour_tells(tmp_path: Path) -> None:
    demo_textures.write(tmp_path / "set", 8, 1, progress=False)
    folders = sorted((tmp_path / "set" / "train").iterdir())
    assert [folder.name for folder in folders] == list(demo_textures.CLASSES) and len(folders) == 50
    means = []
    for folder in folders:
        images = [Image.open(path) for path in sorted(folder.iterdir())]
        assert all(56 <= side <= 80 for image in images for side in image.size)
        means.append([np.asarray(image).mean(axis=(0, 1)) for image in images])
    # axes: [classes, images, channels]; classes differ as means of 8 images do by chance
    spread = np.std(means, axis=1).mean() / 8**0.5
    assert np.std(np.mean(means, axis=1), axis=0).mean() < 1.5 * spread
