"""--leave-out takes the files of a list out of the scan, and --val-fold parts a set into folds."""

from __future__ import annotations

import csv
import os
from functools import partial
from pathlib import Path

import pytest

from saturate.tasks import _tables
from tests.unit.folders import JPEG, fill, refused, rejected, samples
from tests.unit.test_copies import content, opened

NAMES = (
    "cat/0.jpg",
    "cat/a b.jpg",
    "cat/Ä<b>.jpg",
    'cat/comma, and "quote".jpg',
    "dog/=1+1.jpg",
    "dog/\udcff.jpg",
    "dog/deep/1.jpg",
    "dog/2.jpg",
    "=of a sheet/3.jpg",
    "=of a sheet/4.jpg",
    "dog/a\rb\r.jpg",
    "dog/two\nlines\r\n.jpg",
)


def photos(root: Path) -> Path:
    return fill(root, {name: content(at) for at, name in enumerate(NAMES)})


def write(path: Path, names: list[str]) -> Path:
    path.write_bytes(_tables.written([{"path": name, "why": "dark"} for name in names]))
    return path


@pytest.mark.parametrize("out", [NAMES[1:6], NAMES[6:7] + NAMES[8:9] + NAMES[10:]])
def test_files_of_a_list_are_left_out_and_told(
    out: tuple[str, ...], tmp_path: Path
) -> None:
    root = photos(tmp_path / "photos")
    listed = write(tmp_path / "list.csv", [*out])
    splits, console = opened(root, val_share=0.4, leave_out=listed)
    found = {**samples(splits["train"]), **samples(splits["val"])}
    assert {*found} == {*NAMES} - {*out}
    lines = rejected(splits["train"].columns)
    assert len(lines) == len(out)
    assert all(line.endswith("\tnamed in --leave-out") for line in lines)
    assert any(f"left out: {len(out)} " in line for line in console.warnings)
    # who changes the list has another scan, and without it all files are there again
    write(listed, [NAMES[7]])
    splits, _ = opened(root, val_share=0.4, leave_out=listed)
    assert len(splits["train"].columns) + len(splits["val"].columns) == len(NAMES) - 1
    splits, _ = opened(root, val_share=0.4)
    assert len(splits["train"].columns) + len(splits["val"].columns) == len(NAMES)


def test_both_splits_links_and_absolute_names(tmp_path: Path) -> None:
    """A link to a file is a file of its own, and one of a folder the same folder."""
    files = {f"{label}/{at}.jpg": JPEG for label in "ab" for at in range(3)}
    fill(tmp_path / "elsewhere", files)
    root = fill(tmp_path / "data", {f"train/{name}": JPEG for name in files})
    (root / "val").symlink_to(tmp_path / "elsewhere")
    (root / "train/a/link.jpg").symlink_to("0.jpg")
    listed = tmp_path / "list.csv"
    with listed.open("w", newline="") as file:
        rows = csv.writer(file)
        names = ["train/a/link.jpg", "val/b/1.jpg", str(tmp_path / "elsewhere/b/2.jpg")]
        rows.writerows([name] for name in names)
    splits, _ = opened(root, leave_out=listed)
    assert {*samples(splits["train"])} == {*files}
    assert {*samples(splits["val"])} == {*files} - {"b/1.jpg", "b/2.jpg"}


def test_a_list_of_images(tmp_path: Path) -> None:
    root = fill(tmp_path / "data", {f"x/{at}.jpg": JPEG for at in range(4)})
    for split in ("train", "val"):
        (root / f"{split}.csv").write_text(
            "".join(f"x/{at}.jpg,{'ab'[at % 2]}\n" for at in range(4))
        )
    listed = write(tmp_path / "list.csv", ["x/3.jpg"])
    splits, _ = opened(root, leave_out=listed)
    for found in splits.values():
        assert {*samples(found)} == {f"x/{at}.jpg" for at in range(3)}
    said = refused(lambda: opened(root, leave_out=listed, trust_list=True))
    assert "--leave-out is of a scan, and --trust-list has none" in said


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cat/O.jpg", "cat/0.jpg"),
        ("dog/deap/1.jpg", "dog/deep/1.jpg"),
    ],
)
def test_a_name_that_is_not_there(name: str, near: str, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos")
    listed = write(tmp_path / "list.csv", ["cat/0.jpg", name])
    splits, console = opened(root, val_share=0.4, leave_out=listed)
    missing = f"{root} has no file '{name}' (did you mean {near}?)"
    assert f"{missing}, which --leave-out {listed} names" in console.warnings
    assert "cat/0.jpg" not in {*samples(splits["train"]), *samples(splits["val"])}
    # a list of other photos
    listed = write(tmp_path / "others.csv", [name, "x"])
    said = refused(lambda: opened(root, val_share=0.4, leave_out=listed))
    assert said.startswith(f"{missing}, nor 1 more, which")


def test_a_list_that_is_none(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos")
    for path in (tmp_path / "none.csv", tmp_path):
        said = refused(partial(opened, root, val_share=0.4, leave_out=path))
        assert said.startswith(f"--leave-out {path}: ")


@pytest.mark.parametrize(
    ("share", "folds"), [(0.2, 5), (0.25, 4), (0.331, 3), (0.334, 3)]
)
def test_each_image_is_in_one_fold(share: float, folds: int, tmp_path: Path) -> None:
    names = [f"{label}/{at}.jpg" for label in "abc" for at in range(60)]
    root = fill(
        tmp_path / "photos", {name: content(at) for at, name in enumerate(names)}
    )
    os.link(root / "a/1.jpg", root / "b/copy.jpg")
    validated: list[str] = []
    for fold in range(folds):
        splits, _ = opened(root, val_share=share, val_fold=fold)
        validated += (own := [*samples(splits["val"])])
        assert 0.5 * share < len(own) / len(names) < 1.6 * share
        assert {*own}.isdisjoint(samples(splits["train"]))
    # once each, of 0.331 and 0.334 too
    assert sorted(validated) == sorted([*names, "b/copy.jpg"])
    said = refused(lambda: opened(root, val_share=0.15, val_fold=2))
    assert "--val-fold 2: folds of --val-share 0.15 leave images out" in said
    said = refused(lambda: opened(root, val_share=share, val_fold=folds))
    assert f"--val-share {share} has the folds 0 to {folds - 1}" in said
