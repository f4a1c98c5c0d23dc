"""Images by a list: where paths begin, what is left out, what is told, and which list it is."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from pyarrow import csv

from saturate.contracts import Split, UserError
from saturate.dataset.images.columns import Images
from saturate.dataset.stores import list as image_list
from tests.unit.folders import JPEG, PNG, fill, rejected

WRITTEN = {"train/ant/0.jpg": JPEG, "train/bee/1.jpg": PNG, "other/2.jpg": JPEG}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return fill(tmp_path / "data", WRITTEN)


def opened(data: Path, text: str, *, at: str = "train.csv", **how: Any) -> Split:
    (data / at).write_bytes(text.encode("utf-8", "surrogateescape"))
    return image_list.open(data, "train", cache=data.parent / "cache", **how)


def paths(split: Split) -> list[str]:
    return [split.source.name(sample) for sample in range(len(split.source))]


def left_out(split: Split) -> list[str]:
    return [os.path.basename(line) for line in rejected(split.columns)]


@pytest.mark.parametrize("ending", ["csv", "tsv", "txt"])
def test_samples_are_the_lines_in_their_order(ending: str, data: Path) -> None:
    far = fill(data.parent / "a much longer name", {"x.jpg": PNG}) / "x.jpg"
    names = ["train/bee/1.jpg", f"{data}/train/ant/0.jpg", "./other/2.jpg", far]
    lines = [f"{name},{label}" for name, label in zip(names, (3, 0, 3, 3), strict=True)]
    split = opened(data, "\n".join(lines), at=f"train.{ending}")
    below = ["train/bee/1.jpg", "train/ant/0.jpg", "other/2.jpg"]
    wanted = [*(f"{data}/{name}" for name in below), str(far)]
    assert paths(split) == wanted
    # as those of a folder, wherever it lies
    assert [split.columns.entry(i).decode() for i in range(3)] == below
    assert split.columns.label.tolist() == [3, 0, 3, 3]
    assert split.columns.classes == ("0", "1", "2", "3")
    assert split.columns.rejected == 0, "classes between numbers are not told"
    assert [split.source.read(i) for i in range(4)] == [PNG, JPEG, JPEG, PNG]


@pytest.mark.parametrize(
    ("at", "begin"),
    [
        *(("train.csv", begin) for begin in ("train/", "", "../data/train/")),
        *(("../train.csv", begin) for begin in ("train/", "", "data/train/")),
    ],
)
def test_paths_begin_at_the_list_the_data_or_the_split(
    begin: str, at: str, data: Path
) -> None:
    fill(data, {"ant/0.jpg": PNG} if not begin else {})  # one stray file
    fill(data, {"train/classes.txt": b"cat\ndog\n"})  # may lie in train/ alone
    text = "".join(
        f"{begin}{name} {i}\n" for i, name in enumerate(["ant/0.jpg", "bee/1.jpg"])
    )
    split = opened(data, text, at=at)
    wanted = [f"{data}/train/ant/0.jpg", f"{data}/train/bee/1.jpg"]
    assert [os.path.realpath(path) for path in paths(split)] == wanted
    if at == "train.csv":
        assert split.columns.classes == ("cat", "dog")


def test_what_is_left_out_is_told_and_classes_stay(data: Path) -> None:
    fill(data, {"other/x.jpg": b"no image"})
    split = opened(data, "file,class\nother/2.jpg,cat\nother/x.jpg,dog\ngone.jpg,eel\n")
    assert split.columns.classes == ("cat", "dog", "eel")
    assert paths(split) == [f"{data}/other/2.jpg"]
    assert left_out(split) == [
        "train.csv\tline 1 is a heading: file,class",
        "x.jpg\tno known image format (starts with 6e 6f 20 69 6d 61 67 65)",
        "gone.jpg\tcannot be read: No such file or directory",
        "dog\tclass without an image",
        "eel\tclass without an image",
    ]


def test_columns_in_another_order(data: Path) -> None:
    with pytest.raises(UserError, match=r"line 1 has the columns 'label,path'"):
        opened(data, "label,path\ncat,other/2.jpg\n")
    # both are words for a path and for a label
    assert len(opened(data, "name,id\nother/2.jpg,cat\n").columns) == 1


def test_it_is_found_again_and_a_change_is_seen(data: Path) -> None:
    def again() -> Images:
        cache = data.parent / "cache"
        columns: Images = image_list.open(data, "train", cache=cache).columns
        return columns

    (data / "x").write_bytes(JPEG)
    one: Any = opened(data, "x 0\n").columns
    assert bytes(one.paths(np.array([0]))[0]) == os.fsencode(data / "x") + b"\0"
    first = opened(data, "other/2.jpg 0\nnew/3.jpg 1\n").columns
    assert len(first) == 1 and again().folder == first.folder
    fill(data, {"new/3.jpg": JPEG})
    assert len(again()) == 2, "a missing file has come"
    assert len(opened(data, "other/2.jpg 0\n").columns) == 1
    (data / "classes.txt").write_text("ant\n")
    named = again()
    assert named.classes == ("ant",) and again().folder == named.folder


@pytest.mark.parametrize(
    ("text", "by_arrow"),
    [
        ("train/ant/0.jpg,3\n./other/2.jpg,0\ntrain/bee/1.jpg,3", True),
        ("\ufefftrain/ant/0.jpg\tbee, of all\nother/2.jpg\tant\n", True),
        ("path,label\ntrain/ant/0.jpg,1\nother/2\udcff.jpg,0\n", True),
        ("train/ant/0.jpg,1\nother/2.jpg,many\ntrain/bee/1.jpg,0\n", True),
        ("train/ant/0.jpg,1\ntrain/bee/1.jpg,1\nother/2.jpg\n", True),
        ("train/ant/0.jpg,1\n,2\n", True),
        ("train/ant/0.jpg,1\n\nother/2.jpg,x\n", False),
        ('train/ant/0.jpg,"a, b"\nother/2.jpg,c\n', False),
        ("train/ant/0.jpg, 1\nother/2.jpg,2\n", False),
        ("train/ant/0.jpg,1\r\nother/2.jpg,2\r\n", False),
        ("train/ant/0.jpg 1\nother/2.jpg 2\n", False),
    ],
)
def test_arrow_reads_large_lists_as_the_grammar_says(
    text: str, by_arrow: bool, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_list, "PIECE", 2)
    in_pieces = partial(csv.ReadOptions, block_size=32)
    monkeypatch.setattr(csv, "ReadOptions", in_pieces)
    asked = Mock(wraps=csv.open_csv)
    monkeypatch.setattr(csv, "open_csv", asked)

    def content(large: int) -> Any:
        monkeypatch.setattr(image_list, "LARGE", large)
        try:
            split = opened(data, text, unread=True, rescan=True)
        except UserError as error:
            return str(error)
        columns = split.columns
        return paths(split), columns.label.tolist(), columns.classes, left_out(split)

    small = content(1_000)
    assert not asked.called
    assert content(0) == small
    assert asked.called == by_arrow
