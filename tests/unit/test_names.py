"""What is not recognised in a data folder is refused or left out by name: it never falls to the loosest reading."""

from __future__ import annotations

import re
import shlex
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from saturate.contracts import Split
from saturate.dataset.coco import layouts
from saturate.dataset.model_classes import ModelClasses
from saturate.dataset.open import open_splits
from saturate.dataset.pairs import layouts as pairs
from saturate.dataset.scan import names
from saturate.report.summary import left_out
from saturate.settings.config import build
from tests.unit.folders import JPEG, fill, reasons, refused
from tests.unit.test_splits import Console


def images(*folders: str, count: int = 6) -> dict[str, bytes]:
    """Return files of which none is a copy of another: each has its own name as a comment."""
    names = [f"{folder}/{i}.jpg" for folder in folders for i in range(count)]
    return {name: commented(name.encode()) for name in names}


def commented(text: bytes) -> bytes:
    return JPEG[:2] + b"\xff\xfe" + (len(text) + 2).to_bytes(2) + text + JPEG[2:]


def opened(data: Path, **flags: Any) -> tuple[dict[str, Split], list[str]]:
    console = Console()
    config = build({"data": str(data), "manifest_dir": data.parent / "cache", **flags})
    splits = open_splits(
        config.data,
        loader="torchvision",
        validates=config.run.val_every > 0,
        console=console,
    )
    return splits, [*console.said, *console.warnings]


def test_words_of_splits() -> None:
    """Names as people give them -> the split that they mean."""
    for split, given in {
        "train": "train Train TRAIN training trn train2017 train_data train-images imgs_train trainset TrainSet",
        "val": "val valid validation dev val_split eval holdout Validation",
        "test": "test testing test_set testimages",
    }.items():
        for name in given.split():
            assert names.splits_among([name]) == {name: split}, name
    for name in ("freight_train", "test_tube", "trainer", "devkit", "masks_train", "0"):
        assert not names.splits_among([name, "bus"]), name
    assert [*names.splits_among(["seg_train", "seg_test", "seg_x"])] == [
        "seg_train",
        "seg_test",
    ]


SPLIT_FOLDERS = [
    ["train/a", "train/b", "test/a", "__MACOSX/train"],
    [
        "seg_train/seg_train/a",
        "seg_train/seg_train/b",
        "seg_test/seg_test/a",
        "seg_pred/seg_pred",
    ],
    ["training_set/a", "training_set/b", "test_set/a"],
    ["train_images", "test_images"],
    ["Train/a", "Train/b", "VALID/a", "samples"],
    ["images", "labels"],
    ["dataset/flowers/a", "dataset/flowers/b"],
    ["set/train/a", "set/train/b", "set/val/a", "set/val/b"],
]


@pytest.mark.parametrize("share", [0.4, None])
@pytest.mark.parametrize("folders", SPLIT_FOLDERS)
def test_a_folder_that_may_be_another_thing_is_no_class(
    folders: list[str], share: float | None, tmp_path: Path
) -> None:
    """It is refused, and every command of the message works."""
    data = fill(tmp_path / "data", images(*folders))
    line = refused(lambda: opened(data, val_share=share))
    asked = re.findall(
        r"(--data \S+(?= parted)|--data \S+ --val-share 0.2|--data \S+$|--val-every 0|--val-share 0.2 --source.*)",
        line.partition(": ")[2],
    )
    assert asked, line
    for command in asked:
        words = shlex.split(command) + ["--val-share", "0.4"] * ("--data" in command)
        flags = {
            a.lstrip("-").replace("-", "_"): b
            for a, b in zip(words[::2], words[1::2], strict=True)
        }
        where = Path(flags.pop("data", data))
        if (where / "val").exists():
            del flags["val_share"]
        splits, _ = opened(where, **flags)
        assert len(splits["train"].columns)


@pytest.mark.parametrize(
    ("chosen", "classes", "left"),
    [
        ("all", ("bus", "test", "train"), {}),
        ("bus,train", ("bus", "train"), {"test": "is none of --classes"}),
    ],
)
def test_classes_are_what_the_flag_names(
    chosen: str, classes: tuple[str, ...], left: dict[str, str], tmp_path: Path
) -> None:
    data = fill(tmp_path / "data", images("bus", "train", "test"))
    splits, _ = opened(data, val_share=0.4, classes=chosen)
    found: Any = splits["train"].columns
    assert (found.classes, reasons(found.scan)) == (classes, left)
    both = fill(
        tmp_path / "both", images("train/bus", "train/train", "train/x", "val/bus")
    )
    splits, _ = opened(both, classes="bus,train")
    assert splits["val"].columns.classes == ("bus", "train")
    said = refused(lambda: opened(both, classes="bus,tram"))
    assert said.startswith("--classes has 'tram', and ")


@pytest.mark.parametrize("top", ["cells", "cells/train"])
def test_a_copy_of_the_set_within_itself_is_no_class(top: str, tmp_path: Path) -> None:
    """As cell_images/cell_images/ of a well-known archive, which would be a class of all images."""
    classes = ("bad", "cells", "good")
    folders = [f"{top}/{one}" for one in ("bad", "good", "cells/bad", "cells/good")]
    fill(
        tmp_path,
        images(*folders, "cells/val/bad") if "train" in top else images(*folders),
    )
    flags: dict[str, Any] = {} if "train" in top else {"val_share": 0.4}
    data = tmp_path / "cells"
    assert "/cells/cells has a folder" in refused(
        lambda: opened(data, **flags)
    ).replace("/train", "")
    splits, _ = opened(data, classes="all", **flags)
    assert splits["train"].columns.classes == classes
    assert "--classes" in refused(lambda: opened(data, **flags)), "all is not kept"
    splits, _ = opened(data, classes="bad,good", **flags)
    assert splits["train"].columns.classes == ("bad", "good")
    # digits by ten writers: no folder is a copy where several may be
    digits = [f"{digit}/{writer}" for digit in range(3) for writer in range(3)]
    splits, _ = opened(fill(tmp_path / "digits", images(*digits)), val_share=0.4)
    assert splits["train"].columns.classes == ("0", "1", "2")


def test_what_lies_beside_is_told_by_name(tmp_path: Path) -> None:
    files = images(
        "train/a", "train/b", "val/a", "test/a", "old_train/a", "models", ".git"
    )
    data = fill(tmp_path / "data", {**files, "x.zip": b"", "README.txt": b""})
    splits, said = opened(data)
    told = ["models/", "old_train/", "test/ (test)", "x.zip"]
    assert said[0] == f"--data: beside what is read, left out: {', '.join(told)}"
    assert left_out(splits) == {"beside": told, "train": 0, "val": 0}
    photos = fill(tmp_path / "photos", images("a", "b", "samples"))
    splits, said = opened(photos, val_share=0.4)
    assert (
        splits["train"].columns.classes == ("a", "b")
        and "left out: samples/" in said[0]
    )


def test_a_list_beside_class_folders_is_not_passed_over(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", images("images/a", "images/b"))
    (data / "train.csv").write_text("path,label\nimages/a/0.jpg,a\n")
    assert "train.csv is a list" in refused(lambda: opened(data, val_share=0.4))
    assert "train.csv is a list" in refused(lambda: opened(data))


@pytest.mark.parametrize(
    ("others", "folder"),
    [
        (["masks_train", "depth_train", "old_train", "train"], "train"),
        (["labels_train", "images/train", "images/masks_train"], "images/train"),
        (["train_images", "masks_train"], "train_images"),
        (["train", "images/train"], "either may be the images of train.json"),
        (["crops_train", "images"], "either may be the images of train.json"),
    ],
)
def test_images_of_an_annotation_file(
    others: list[str], folder: str, tmp_path: Path
) -> None:
    fill(tmp_path, {"annotations/train.json": b"{}", **images(*others, count=1)})

    def found() -> str:
        return layouts.find(tmp_path, "train", keypoints=False).folder

    assert folder in (refused(found) if " " in folder else found())


def test_annotations_of_a_test_split_are_not_trained_on(tmp_path: Path) -> None:
    fill(tmp_path, {"annotations/instances_test.json": b"{}", "images/0.jpg": JPEG})
    said = refused(lambda: layouts.find(tmp_path, "train", keypoints=False))
    assert "has no annotations of train" in said


@pytest.mark.parametrize(
    ("folders", "train"),
    [
        ("HR LR", "HR LR"),
        (
            "Flickr2K_HR Flickr2K_LR_bicubic/X2 Flickr2K_LR_bicubic/X3",
            "Flickr2K_HR Flickr2K_LR_bicubic/X2",
        ),
        ("gt LQ", "gt LQ"),
        ("HR/train LR/train HR/val LR/val", "HR/train LR/train"),
        ("train/GT train/LQ valid/GT valid/LQ", "train/GT train/LQ"),
        ("GTmod12 LRbicx2 LRbicx3 LRbicx4 original", "GTmod12 LRbicx2"),
        ("Train Valid", "Train None"),
        ("LR", "small images alone, LR"),
        ("image_SRF_2 image_SRF_3", "small images alone, image_SRF_2"),
        (
            "DIV2K_train_HR DIV2K_valid_HR Flickr2K_HR",
            "has DIV2K_train_HR, Flickr2K_HR; leave",
        ),
        ("HR LR/X3", "has X3 and no X2"),
        ("HR train_LR", "train_LR has small images, and none large"),
        ("set/train set/val", "the splits lie in set/"),
        ("train train_images val", "train and train_images may be the images of train"),
    ],
)
def test_large_and_small_images_by_their_folders(
    folders: str, train: str, tmp_path: Path
) -> None:
    for folder in folders.split():
        (tmp_path / folder).mkdir(parents=True)
    if ", " in train or len(train.split()) > 2:
        assert train in refused(lambda: pairs.find(tmp_path, "train", 2))
        return
    found = pairs.find(tmp_path, "train", 2)
    low = found.low and found.low.relative_to(tmp_path)
    assert f"{found.high.relative_to(tmp_path)} {low}" == train


def tar(path: Path) -> None:
    fill(path.parent, {"0.jpg": JPEG, "0.cls": b"0"})
    with tarfile.open(path, "w") as file:
        for member in ("0.jpg", "0.cls"):
            file.add(path.parent / member, f"{path.stem}{member}")
            (path.parent / member).unlink()


@pytest.mark.parametrize("behind_url", [False, True])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("1.TAR", ""),
        ("1.tar.gz", "1.tar.gz is compressed"),
        ("1.TGZ", "1.TGZ is compressed"),
        ("1.tar.zst", "1.tar.zst is compressed"),
        ("more/1.tar", "more/1.tar lies in a folder of its own"),
    ],
)
def test_no_shard_is_passed_over(
    name: str, said: str, behind_url: bool, tmp_path: Path
) -> None:
    from tests.unit.ranges import serving

    data = tmp_path / "data"
    for path in (data / "train/0.tar", data / "val/0.tar", data / "train" / name):
        path.parent.mkdir(parents=True, exist_ok=True)
        tar(path)
    with serving(data) as server:
        where: Any = server.url if behind_url else str(data)

        def train() -> int:
            flags = {"data": where, "source": "tar", "manifest_dir": tmp_path / "cache"}
            config = build(flags).data
            found = open_splits(config, loader="torchvision", console=Console())
            return len(found["train"].columns)

        if said:
            assert said in refused(train)
        else:
            assert train() == 2


def test_a_mac_writes_the_letters_of_a_name_otherwise(tmp_path: Path) -> None:
    composed, apart = (
        unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD")
    )
    data = fill(
        tmp_path / "data",
        images(f"train/{composed}", "train/rose", f"val/{apart}", "val/rose"),
    )
    splits, _ = opened(data)
    val = splits["val"].columns
    assert val.classes == splits["train"].columns.classes == (composed, "rose")
    assert val.label.tolist() == [0] * 6 + [1] * 6
    for split, form in (("train", composed), ("val", apart)):
        (tmp_path / f"{split}.csv").write_text(
            f"train/{form}/0.jpg,{form}\ntrain/rose/0.jpg,rose\n"
        )
    for split in ("train", "val"):
        (data / f"{split}.csv").write_bytes((tmp_path / f"{split}.csv").read_bytes())
    splits, _ = opened(data, source="list")
    assert [len(split.columns) for split in splits.values()] == [2, 2]
    assert splits["val"].columns.label.tolist() == [0, 1]
    numbers, _, _ = ModelClasses(names=(composed, "rose"), origin="a").numbers(
        ["rose", apart]
    )
    assert numbers.tolist() == [1, 0]
