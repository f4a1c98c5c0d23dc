"""Sets for super-resolution as people have them, and mistakes in one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from contracts import UserError
from dataset.pairs.columns import Pairs
from dataset.pairs.scan import open_pairs
from tests.conformance import sources
from tests.unit.superres_files import opened, write, write_small


def names(columns: Any, source: Any) -> list[str]:
    assert isinstance(columns, Pairs)
    return [Path(source.name(sample)).name for sample in range(len(columns))]


def listed(data: Path, split: str, **how: Any) -> list[str]:
    found = opened(data, split, **how)
    return names(found.columns, found.source)


def test_div2k_as_it_comes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for split, count in (("train", 4), ("valid", 2)):
        images = write(data / f"DIV2K_{split}_HR", count, even=True)
        write_small(data / f"DIV2K_{split}_LR_bicubic/X2", images, 2, "x2")
    assert listed(data, "train") == [f"{i:04d}.png" for i in range(4)]
    assert listed(data, "val") == ["0000.png", "0001.png"]
    source: Any = opened(data).source
    assert source.low.name(1).endswith("DIV2K_train_LR_bicubic/X2/0001x2.png")
    with pytest.raises(
        UserError, match="DIV2K_train_LR_bicubic has X2 and no X3; name another --scale"
    ):
        opened(data, scale=3)
    shutil.rmtree(data / "DIV2K_train_LR_bicubic")
    assert opened(data).columns.low is None, "then the small images are made"


DIV2K_KINDS = [
    *[
        ("unknown/X2", "x2"),
        ("mild", "x2m"),
        ("difficult", "x2d"),
        ("wild", "x2w"),
        ("x2", "x2"),
    ],
    ("own-kind/X2", ""),
]


@pytest.mark.parametrize("large", ["DIV2K_{}_HR", "{}/HR"])
@pytest.mark.parametrize(("kind", "suffix"), DIV2K_KINDS)
def test_small_images_of_any_kind_are_taken(
    kind: str, suffix: str, large: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for split in ("train", "valid" if "DIV2K" in large else "val"):
        images = write(data / large.format(split), 2, even=True)
        write_small(data / f"{large.format(split)[:-2]}LR_{kind}", images, 2, suffix)
    for split in ("train", "val"):
        source: Any = opened(data, split).source
        assert source.low.name(1).endswith(f"LR_{kind}/0001{suffix}.png")


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (
            ["DIV2K_train_LR_mild", "DIV2K_train_LR_wild"],
            "has DIV2K_train_LR_mild, DIV2K_train_LR_wild; leave the one that is meant",
        ),
        (
            ["DIV2K_train_LR_unknown/X2", "DIV2K_valid_LR_bicubic/X2"],
            "small images are unknown to train, bicubic to val; give both splits those of one kind",
        ),
        (
            ["DIV2K_train_LR_unknown/X2"],
            "small images are unknown to train, bicubic to val",
        ),  # which are made
        (
            ["DIV2K_train_LR_unknown/X3", "DIV2K_valid_LR_unknown/X3"],
            "LR_unknown has X3 and no X2",
        ),
    ],
)
def test_small_images_of_which_kind_is_asked(
    folders: list[str], said: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for split in ("train", "valid"):
        images = write(data / f"DIV2K_{split}_HR", 2, even=True)
        for folder in folders:
            if split in folder:
                write_small(data / folder, images, 2, "x2")
    with pytest.raises(UserError, match=said) as caught:
        opened(data)
    assert "\n" not in str(caught.value)


def test_several_small_images_of_one_are_refused(tmp_path: Path) -> None:
    """As DIV2K's wild ones are, four an image to train."""
    data = tmp_path / "data"
    images = write(data / "DIV2K_train_HR", 2, even=True)
    for number in range(1, 5):
        write_small(data / "DIV2K_train_LR_wild", images, 2, f"x2w{number}")
    with pytest.raises(
        UserError,
        match=r"images of .*DIV2K_train_LR_wild have no small one of their name",
    ):
        opened(data)


def test_folders_of_large_images(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / "data" / split / "any/depth", 3)
    assert listed(tmp_path / "data", "val") == ["0000.png", "0001.png", "0002.png"]
    columns = opened(tmp_path / "data").columns
    assert columns.classes == () and columns.low is None


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
    assert line.startswith(
        "2 images have a side below 30 pixels and are left out, named in "
    )
    assert "b/0000.png\t12 x 12 pixels" in Path(line.rpartition(" ")[2]).read_text()


def gone(data: Path) -> None:
    os.unlink(data / "train/LR/0001.png")


def another(data: Path) -> None:
    shutil.copy(data / "train/LR/0001.png", data / "train/LR/0009.png")


def larger(data: Path) -> None:
    shutil.copy(data / "train/HR/0001.png", data / "train/LR/0001.png")


MISTAKES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no small one": (
        gone,
        {},
        "1 of 3 images of .*HR and .*LR have no small one .*, first HR/0001",
    ),
    "no large one": (
        another,
        {},
        "1 of 4 small images of .* have no large one of their name, first LR/0009",
    ),
    "another size": (
        larger,
        {},
        r"HR/0001.png has 50 x 46 pixels and LR/0001.png 50 x 46, .* in 2 \(1 such",
    ),
    "another scale": (
        None,
        {"scale": 4},
        r"HR/0000.png has 40 x 40 pixels and LR/0000.png 20 x 20, .* in 4",
    ),
    "all too small": (
        None,
        {"least": 99},
        "has no image of 99 x 99 pixels: the largest of 3 has a side of",
    ),
    "no validation": (
        None,
        {"split": "val"},
        "has no val/ folder; it must be a folder with DIV2K_train_HR/",
    ),
    "no such source": (
        None,
        {"source": "list"},
        "--source list is for images with a label",
    ),
    "not packed": (
        None,
        {"source": "lmdb"},
        r"has no train.lmdb; it must be a folder with train.lmdb",
    ),
}


@pytest.mark.parametrize(("change", "how", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(
    change: Any, how: dict[str, Any], said: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    write_small(data / "train/LR", write(data / "train/HR", 3, even=True), 2)
    if change:
        change(data)
    with pytest.raises(UserError, match=said) as caught:
        opened(data, **{"split": "train", **how})
    assert "\n" not in str(caught.value)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder; it must be"):
        opened(tmp_path / "none")
    write(tmp_path / "one", 1)
    with pytest.raises(UserError, match="one image alone"):
        opened(tmp_path / "one")


@pytest.mark.parametrize("kind", ["lmdb", "tar"])
def test_packed_images(kind: str, tmp_path: Path) -> None:
    if not sources.here(kind):
        pytest.skip(f"without {sources.MAY_LACK[kind]}")
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
