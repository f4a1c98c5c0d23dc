"""The programs that draw a demo's set: whole folders, odd files, true annotations, fixed pictures."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageFilter
from pycocotools import mask as masks
from pycocotools.coco import COCO

from scripts import (
    _sets,
    demo_coco,
    demo_set,
    demo_superres,
    demo_textures,
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


def moments(pixels: np.ndarray) -> list[float]:
    """Mean level, and means weighted by x and by y: they tell colours and places, and no encoder."""
    levels = pixels.mean(axis=2)
    down, across = (np.linspace(-1, 1, side) for side in levels.shape)
    return [levels.mean(), (levels * across).mean(), (levels * down[:, None]).mean()]


@cache
def pictures() -> dict[str, np.ndarray]:
    def rng(number: int) -> np.random.Generator:
        return np.random.default_rng([7, number])

    return {
        "set": np.array([moments(demo_set.image(rng(n), n)) for n in range(10)]),
        "textures": np.array(
            [moments(demo_textures.image(rng(n), n)) for n in range(0, 50, 6)]
        ),
        "superres": np.array(
            [moments(demo_superres.picture(rng(n))) for n in range(3)]
        ),
        "coco": np.array(
            [moments(demo_coco.drawn(rng(n), crowd=n == 1)[0]) for n in range(3)]
        ),
    }


GOLDEN = {
    "set": (
        "200.0 -0.1 -0.4 54.6 0.4 -1.9 41.5 0.1 -0.1 65.2 -1.0 1.9 185.3 4.7 -0.1 194.8 -0.0 -1.5 51.0 "
        "0.4 -1.3 71.2 0.1 -1.5 182.8 -0.0 0.4 213.1 -0.2 -0.3"
    ),
    "textures": (
        "141.4 0.1 0.6 143.2 0.1 -0.2 134.6 0.2 0.2 102.3 -1.4 1.3 119.5 0.8 -0.1 118.4 0.1 0.3 112.2 "
        "-0.3 -0.7 97.9 -0.1 0.3 108.5 0.8 1.0"
    ),
    "superres": "146.0 3.4 -9.3 124.7 0.6 0.4 121.0 -9.4 5.1",
    "coco": "98.8 -13.2 4.5 177.8 0.1 -8.6 37.5 -1.5 0.6",
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_what_is_drawn_stays_the_same(kind: str) -> None:
    """A demo's figures, and those of the benchmarks on drawn sets, are of these very pictures."""
    expected = np.array(GOLDEN[kind].split(), float).reshape(-1, 3)
    np.testing.assert_allclose(pictures()[kind], expected, atol=0.1)


def test_every_class_has_every_oddity_of_imagenet(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "ring"
    folder.mkdir(parents=True)
    for index in range(25):
        demo_set.SET.draw(tmp_path, 3, (0, demo_set.CLASSES.index("ring"), index))
    modes, kinds, orientations, sizes = set(), set(), set(), []
    for path in folder.iterdir():
        with Image.open(path) as picture:
            picture.load()
            modes.add(picture.mode)
            kinds.add(picture.format)
            orientations.add(picture.getexif().get(0x0112))
            sizes.append(picture.size)
    assert modes == {"RGB", "L", "CMYK"} and kinds == {"JPEG", "PNG"}
    assert None in orientations and orientations & {3, 6, 8}
    assert len({width > height for width, height in sizes}) == 2
    assert 250 <= np.median([min(size) for size in sizes]) <= 450


# --- annotations --------------------------------------------------------------------------------------------


def opened(folder: Path, split: str) -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(folder / f"annotations/instances_{split}.json")


def test_it_has_what_coco_has(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    assert demo_coco.write(folder, 60, 30, seed=3, progress=False)
    coco, val = opened(folder, "train2017"), opened(folder, "val2017")
    whole = [one for one in coco.anns.values() if not one["iscrowd"]]
    crowds = [one for one in coco.anns.values() if one["iscrowd"]]
    counts = np.array([len(coco.imgToAnns[image]) for image in coco.imgs])
    assert len(counts) == 60 and (counts == 0).sum() == 5 and counts.max() >= 5
    assert len(crowds) >= 6
    assert all(isinstance(one["segmentation"]["counts"], list) for one in crowds)
    assert {one["category_id"] for one in whole} == set(demo_coco.CATEGORIES)
    assert max(one["area"] for one in val.anns.values()) > 96**2
    modes = set()
    for image in coco.imgs.values():
        with Image.open(folder / "train2017" / image["file_name"]) as picture:
            assert picture.size == (image["width"], image["height"])
            assert 160 <= max(picture.size) <= 200
            modes.add((picture.format, picture.mode))
    assert modes == {("JPEG", "RGB"), ("JPEG", "L")}
    assert np.diff(sorted(coco.imgs)).min() > 1 and np.diff(sorted(coco.anns)).max() > 1
    assert not set(coco.imgs) & set(val.imgs)
    # boxes and areas are those of the masks; a polygon's tip may cover no pixel's middle
    for one in coco.anns.values():
        x, y, width, height = one["bbox"]
        mask = coco.annToMask(one)
        ys, xs = np.nonzero(mask)
        corners = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
        slack, share = (0, 0) if one["iscrowd"] else (3, 0.1)
        np.testing.assert_allclose(corners, [x, y, x + width, y + height], atol=slack)
        np.testing.assert_allclose(mask.sum(), one["area"], rtol=share)


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
            # its shapes are too small for an inner and an outer part
            if one["iscrowd"]:
                continue
            mask = Image.fromarray(painted * np.uint8(255))
            inner = np.asarray(mask.filter(ImageFilter.MinFilter(5))) > 0
            outer = np.asarray(mask.filter(ImageFilter.MaxFilter(5))) == 0
            near = np.zeros_like(inner)
            x0, y0, w, h = (int(value) for value in one["bbox"])
            near[max(y0 - 4, 0) : y0 + h + 5, max(x0 - 4, 0) : x0 + w + 5] = True
            colour = np.median(pixels[inner], axis=0)
            assert np.abs(pixels[inner] - colour).max() <= 8
            assert (np.abs(pixels[outer & near] - colour).max(axis=1) > 8).mean() > 0.9
        assert covered.max() == 1


@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_run_lengths_are_cocos(mask: np.ndarray) -> None:
    counts = demo_coco.run_lengths(mask)
    assert sum(counts) == mask.size
    parts = masks.frPyObjects({"counts": counts, "size": list(mask.shape)}, *mask.shape)
    np.testing.assert_array_equal(masks.decode(parts), mask)
