"""The programs that draw a demo's set: whole folders, odd files, true annotations, fixed pictures."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter
from pycocotools import mask as masks

from scripts import (
    _sets,
    demo_coco,
    demo_superres,
)
from tests.unit.folders import contents

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[demo_superres, demo_coco], ids=["superres", "coco"])
def program(request: pytest.FixtureRequest) -> Any:
    """One program draws files alone, one describes them too: the others use the same class."""
    return request.param


# --- folders ------------------------------------------------------------------------------------------------


def test_a_finished_set_is_reused_and_another_seed_replaces_it(
    program: Any, tmp_path: Path
) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in dest.rglob("*")}

    dest = tmp_path / "set"
    dest.mkdir()  # an empty folder is welcome
    assert program.write(dest, 1, 1, progress=False)
    first, made = contents(dest), times()
    assert not program.write(dest, 1, 1, progress=False) and times() == made
    assert program.write(dest, 1, 1, seed=1, progress=False)
    assert contents(dest).keys() == first.keys() and contents(dest) != first
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("content", ["mine.txt", "{name}.json mine.txt", "train"])
def test_a_foreign_folder_is_refused_in_one_line_and_an_interrupt_leaves_nothing(
    content: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, name = demo_superres, demo_superres.SET.name
    for file in content.format(name=name).split():
        (tmp_path / file).write_text("{}")
    before = contents(tmp_path)
    assert program.main([str(tmp_path), "--train", "1", "--val", "1"]) == 2
    assert program.main([str(next(tmp_path.iterdir()))]) == 2
    assert program.main([str(tmp_path / "set"), "--val", "0"]) == 2
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 3 and all(line.startswith(f"{name}: ") for line in messages)
    assert str(tmp_path) in messages[0] and "at least one" in messages[2]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_sets, "track", interrupted)
    assert program.main([str(tmp_path / "set")]) == 130
    assert contents(tmp_path) == before


def test_one_starts_as_a_file_too(tmp_path: Path) -> None:
    few = ["--train-per-class", "1", "--val-per-class", "1"]
    command = [sys.executable, "scripts/demo_set.py", str(tmp_path / "set"), *few]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=60)
    assert len(contents(tmp_path / "set")) == 21


@pytest.mark.parametrize("name", ["set", "coco", "superres", "textures", "videos"])
def test_bytes_depend_on_neither_processes_nor_counts_and_no_two_files_are_alike(
    name: str, tmp_path: Path
) -> None:
    program = import_module(f"scripts.demo_{name}")
    found = []
    for train, processes in ((1, 2), (2, 1)):
        folder = tmp_path / str(train)
        how = {"seed": 3, "progress": False, "processes": processes}
        assert program.write(folder, train, 1, **how)
        drawn = contents(folder).items()
        found.append({k: v for k, v in drawn if not k.endswith(".json")})
    one, more = found
    assert len({*more.values()}) == len(more) == 3 * len(program.SET.classes)
    assert one.items() < more.items(), "a larger set begins with a smaller one"


# --- pictures -----------------------------------------------------------------------------------------------


def test_what_is_annotated_is_what_is_painted_and_nothing_touches() -> None:
    for index in range(20):
        rng = np.random.default_rng([5, index])
        pixels, annotations = demo_coco.drawn(rng, crowd=index % 2 == 0)
        height, width = pixels.shape[:2]
        covered = np.zeros((height, width), int)
        for one in annotations:
            parts = masks.frPyObjects(one["segmentation"], height, width)
            painted = masks.decode(parts if one["iscrowd"] else masks.merge(parts))
            covered += painted
            x, y, w, h = one["bbox"]
            ys, xs = np.nonzero(painted)
            corners = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            np.testing.assert_allclose(corners, [x, y, x + w, y + h], atol=3)
            np.testing.assert_allclose(painted.sum(), one["area"], rtol=0.15)
            # its shapes are too small for an inner part
            if one["iscrowd"]:
                continue
            mask = Image.fromarray(painted * np.uint8(255))
            inner = np.asarray(mask.filter(ImageFilter.MinFilter(5))) > 0
            colour = np.median(pixels[inner], axis=0)
            assert np.abs(pixels[inner] - colour).max() <= 8
        assert covered.max() == 1
