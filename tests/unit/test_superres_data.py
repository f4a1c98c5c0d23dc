"""Sets for super-resolution as people have them, and mistakes in one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saturate.dataset.pairs.columns import Pairs
from saturate.dataset.pairs.scan import open_pairs
from saturate.plan.patches import PatchPolicy
from tests.conformance import sources
from tests.unit.folders import refused
from tests.unit.superres_files import opened, write, write_small


def names(columns: Any, source: Any) -> list[str]:
    assert isinstance(columns, Pairs)
    return [Path(source.name(sample)).name for sample in range(len(columns))]


def listed(data: Path, split: str, **how: Any) -> list[str]:
    found = opened(data, split, **how)
    return names(found.columns, found.source)


def test_patches_lie_anywhere_where_whole_small_pixels_do() -> None:
    """The last of 13 columns is of no small pixel at scale 2: patches of 8 x 8 begin at x = 0, 2 and 4."""
    policy = PatchPolicy(scale=2, patch=8)
    count = 300
    wide, tall = np.full(count, 13), np.full(count, 8)
    found = policy.frame(3, 0, np.arange(count), tall, wide)
    corners = found["regions"][:, :2] + found["windows"][:, :2]
    assert {tuple(one) for one in corners.tolist()} == {(0, 0), (2, 0), (4, 0)}
    each = np.bincount(corners[:, 0].astype(int) // 2) / count
    assert each == pytest.approx([1 / 3] * 3, abs=0.1)
    assert found["sizes"].tolist() == [[4, 4]] * count
    extents = found["windows"][:, 2:] - found["windows"][:, :2]
    assert extents.tolist() == [[8, 8]] * count
    # two small pixels to either side, where there are so many
    assert found["regions"].min(0).tolist() == [0, 0, 12, 8]


KINDS = [
    ("bicubic/X2", "x2"),
    ("unknown/X2", "x2"),
    ("own-kind/X2", ""),
]


@pytest.mark.parametrize("large", ["DIV2K_{}_HR", "{}/HR"])
@pytest.mark.parametrize(("kind", "suffix"), KINDS)
def test_small_images_of_any_kind_are_taken(
    kind: str, suffix: str, large: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for split in ("train", "valid" if "DIV2K" in large else "val"):
        images = write(data / large.format(split), 2, even=True)
        small = data / f"{large.format(split)[:-2]}LR_{kind}"
        write_small(small, images, 2, suffix)
    for split in ("train", "val"):
        found: Any = opened(data, split)
        assert names(found.columns, found.source) == ["0000.png", "0001.png"]
        assert found.source.low.name(1).endswith(f"LR_{kind}/0001{suffix}.png")
    for folder in data.glob("**/*LR_*"):
        shutil.rmtree(folder, ignore_errors=True)
    assert opened(data).columns.low is None, "then the small images are made"


SMALL = "small images are unknown to train, bicubic to val"


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["train_LR_unknown/X2", "valid_LR_bicubic/X2"], f"{SMALL}; give both"),
        (["train_LR_unknown/X3", "valid_LR_unknown/X3"], "LR_unknown has X3 and no X2"),
    ],
)
def test_small_images_of_which_kind_is_asked(
    folders: list[str], said: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for split in ("train", "valid"):
        images = write(data / f"DIV2K_{split}_HR", 2, even=True)
        for folder in folders:
            if folder.startswith(split):
                write_small(data / f"DIV2K_{folder}", images, 2, "x2")
    assert said in refused(lambda: opened(data))


def test_one_folder_validates_on_its_last_tenth(tmp_path: Path) -> None:
    write(tmp_path / "data", 21)
    train, val = (listed(tmp_path / "data", split) for split in ("train", "val"))
    assert (
        val == ["0019.png", "0020.png"]
        and len(train) == 19
        and not set(train) & set(val)
    )


def test_samples_are_patches(tmp_path: Path) -> None:
    write(tmp_path / "data/train", 2)
    once, thrice = opened(tmp_path / "data"), opened(tmp_path / "data", patches=3)
    assert names(thrice.columns, thrice.source) == ["0000.png"] * 3 + ["0001.png"] * 3
    assert thrice.columns.size.sum() == pytest.approx(once.columns.size.sum(), abs=6)
    assert len({once.columns.fingerprint, thrice.columns.fingerprint}) == 2


def test_images_smaller_than_a_patch_are_left_out_by_name(tmp_path: Path) -> None:
    write(tmp_path / "data/train", 3)
    write(tmp_path / "data/train/b", 2, side=12)
    split, said = open_pairs(
        tmp_path / "data", "train", scale=2, least=30, cache=tmp_path / "cache"
    )
    assert len(split.columns) == 3
    (line,) = said
    assert line.startswith("2 images left out, with a side below 30 pixels, named in ")
    assert "b/0000.png\t12 x 12 pixels" in Path(line.rpartition(" ")[2]).read_text()


def narrower(data: Path) -> None:
    path = data / "train/LR/0001.png"
    with Image.open(path) as image:
        image.crop((0, 0, image.width - 1, image.height)).save(path)


@pytest.mark.parametrize(
    ("change", "how", "said"),
    [
        (
            lambda data: os.unlink(data / "train/LR/0001.png"),
            {},
            "no small image of its name, or of namex2, for 1 of 3 images of {train}, first HR/0001",
        ),
        (narrower, {}, "LR/0001.png 24 x 23, which is not one in 2 (1 such"),
        (None, {"least": 99}, "has no image of 99 x 99 pixels: the largest of 3 has a"),
        (
            None,
            {"split": "val"},
            "has no val/HR folder; it must be a folder with DIV2K_",
        ),
    ],
)
def test_a_mistake_is_one_line(
    change: Any, how: dict[str, Any], said: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    write_small(data / "train/LR", write(data / "train/HR", 3, even=True), 2)
    if change:
        change(data)
    line = refused(lambda: opened(data, **how))
    assert said.format(train=data / "train") in line


def test_a_tenth_of_pairs_without_splits_validates(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_small(data / "LR", write(data / "HR", 12, even=True), 2, "x2")
    train, val = (opened(data, split) for split in ("train", "val"))
    assert [len(split.columns) for split in (train, val)] == [11, 1]
    found: Any = val
    assert found.source.low.name(0).endswith("LR/0011x2.png")


@pytest.mark.parametrize(
    "suffixes", [("_HR", "_LR"), ("", "x2"), ("_SRF_2_HR", "_SRF_2_LR")]
)
def test_small_images_among_the_large_ones(
    suffixes: tuple[str, str], tmp_path: Path
) -> None:
    large, small = suffixes
    images = write(tmp_path / "data/train", 3, even=True)
    write_small(tmp_path / "data/train", images, 2, small)
    for name in images:
        path = tmp_path / "data/train" / name
        path.rename(path.with_name(f"{path.stem}{large}.png"))
    said = refused(lambda: opened(tmp_path / "data"))
    assert "3 of 6 images" in said and f"first train/0000{small}.png" in said


@pytest.mark.parametrize("scale", [2, 4])
def test_a_folder_of_small_images_among_the_large_ones(
    scale: int, tmp_path: Path
) -> None:
    """Nothing but their sizes says which of two folders has the small ones."""
    images = write(tmp_path / "data/Raw Data", 4, even=True, side=80)
    write_small(tmp_path / "data/Raw Data_2", images, 2)
    said = refused(lambda: opened(tmp_path / "data", scale=scale))
    assert "4 of 8 images" in said and "first data/Raw Data_2/0000.png" in said
    # one of four may be another photo of the same number
    shutil.rmtree(tmp_path / "data/Raw Data_2")
    others = {f"{i}.png": pixels for i, pixels in enumerate(images.values())}
    others["0000.png"] = others.pop("0.png")
    write_small(tmp_path / "data/album", others, 2)
    assert len(listed(tmp_path / "data", "train", scale=scale)) == 7


@pytest.mark.parametrize("kind", ["lmdb", "tar"])
def test_packed_images(kind: str, tmp_path: Path) -> None:
    sources.required(kind)
    images = write(tmp_path / "plain/train/a", 3)
    files = {
        f"a/{name}": (tmp_path / "plain/train/a" / name).read_bytes() for name in images
    }
    (tmp_path / "data").mkdir()
    sources.LAYOUTS[kind].write(tmp_path / "data", "train", files)
    for source in (kind, "auto"):
        split: Any = opened(tmp_path / "data", source=source)
        assert not split.source.files and len(split.columns) == 3
        assert [split.source.read(i) for i in range(3)] == [
            files[name] for name in sorted(files)
        ]
