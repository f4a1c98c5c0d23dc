"""Images by a list: where paths begin, what is left out, what is told, and which list it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import Split, UserError
from dataset.images.columns import Images
from dataset.stores import list as image_list
from tests.unit.folders import JPEG, PNG, fill, scanned

WRITTEN = {"train/ant/0.jpg": JPEG, "train/bee/1.jpg": PNG, "other/2.jpg": JPEG}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return fill(tmp_path / "data", WRITTEN)


def opened(data: Path, text: str, *, at: str = "train.csv", **how: Any) -> Split:
    (data / at).write_text(text)
    return image_list.open(data, "train", cache=data.parent / "cache", **how)


def paths(split: Split) -> list[str]:
    return [split.source.name(sample) for sample in range(len(split.source))]


def left_out(columns: Images) -> list[str]:
    lines = (columns.folder / "rejected.txt").read_text().splitlines()
    assert len(lines) == columns.rejected
    return [os.path.basename(line) for line in lines]


@pytest.mark.parametrize("ending", ["csv", "tsv", "txt"])
def test_samples_are_the_lines_in_their_order(ending: str, data: Path) -> None:
    text = (
        f"train/bee/1.jpg 3\n{data}/train/ant/0.jpg 0\n./other/2.jpg 3\nother/2.jpg 3\n"
    )
    split = opened(data, text, at=f"train.{ending}")
    wanted = ["train/bee/1.jpg", "train/ant/0.jpg", "other/2.jpg", "other/2.jpg"]
    assert paths(split) == [f"{data}/{name}" for name in wanted]
    assert [split.columns.entry(i).decode() for i in range(4)] == wanted, (
        "as those of a folder, wherever it lies"
    )
    assert (split.columns.label.tolist(), split.columns.classes) == (
        [3, 0, 3, 3],
        ("0", "1", "2", "3"),
    )
    assert split.columns.rejected == 0, "classes between numbers are not told"
    assert [split.source.read(sample) for sample in range(4)] == [PNG, JPEG, JPEG, JPEG]


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
    split = opened(data, f"{begin}ant/0.jpg cat\n{begin}bee/1.jpg dog\n", at=at)
    assert [os.path.realpath(path) for path in paths(split)] == [
        f"{data}/train/ant/0.jpg",
        f"{data}/train/bee/1.jpg",
    ]


def test_one_stray_file_does_not_say_where_paths_begin(data: Path) -> None:
    fill(data, {"ant/0.jpg": PNG, "train/classes.txt": b"cat\ndog\n"})
    split = opened(data, "ant/0.jpg 0\nbee/1.jpg 1\n")
    assert paths(split) == [f"{data}/train/ant/0.jpg", f"{data}/train/bee/1.jpg"]
    assert split.columns.classes == ("cat", "dog"), (
        "classes.txt may lie in train/ alone"
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("cat,other/2.jpg", "has its labels before its paths; a line is 'path label'"),
        (
            "other\\2.jpg,cat",
            "No such file or directory; folders are separated by '/' here",
        ),
        ("C:\\set\\other\\2.jpg,cat", "it is a path of Windows"),
        ("cafe\u0301/2.jpg,cat", "its accents are in another form of Unicode"),
        ("caf\udce9/2.jpg,cat", "the list is not in UTF-8, and names there are"),
        ("b\u00e9e/2.jpg,cat", "names there are not in UTF-8, and the list is"),
    ],
)
def test_the_likely_cause_is_said(line: str, why: str, data: Path) -> None:
    fill(data, {"caf\u00e9/2.jpg": JPEG, "b\udce9e/2.jpg": JPEG})
    (data / "train.csv").write_bytes(f"{line}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as caught:
        image_list.open(data, "train", cache=data.parent / "cache")
    assert why in str(caught.value)


def test_files_elsewhere_keep_their_absolute_path(data: Path, tmp_path: Path) -> None:
    far = fill(tmp_path / "a much longer name", {"x.jpg": JPEG}) / "x.jpg"
    split = opened(data, f"train/ant/0.jpg 0\n{far} 1\n")
    assert paths(split) == [f"{data}/train/ant/0.jpg", str(far)]
    rows = image_list.Listed(split.columns).paths(np.array([1, 0, 1]))
    assert [bytes(row).rstrip(b"\0").decode() for row in rows] == [
        str(far),
        f"{data}/train/ant/0.jpg",
        str(far),
    ]
    assert split.source.read(1) == JPEG


def test_what_is_left_out_is_told_and_classes_stay(data: Path) -> None:
    fill(data, {"other/x.jpg": b"no image"})
    split = opened(data, "file,class\nother/2.jpg,cat\nother/x.jpg,dog\ngone.jpg,eel\n")
    assert split.columns.classes == ("cat", "dog", "eel") and paths(split) == [
        f"{data}/other/2.jpg"
    ]
    assert left_out(split.columns) == [
        "train.csv\tline 1 is a heading: file,class",
        "x.jpg\tno known image format (starts with 6e 6f 20 69 6d 61 67 65)",
        "gone.jpg\tcannot be read: No such file or directory",
        *("dog\tclass without an image", "eel\tclass without an image"),
    ]


@pytest.mark.parametrize("heading", ["other,species", "train,label"])
def test_a_heading_may_have_the_name_of_a_folder(heading: str, data: Path) -> None:
    fill(data, {"other/x.jpg": JPEG, "train/y.jpg": JPEG})
    split = opened(data, f"{heading}\nother/x.jpg,cat\ntrain/y.jpg,dog\n")
    assert split.columns.classes == ("cat", "dog")
    assert left_out(split.columns) == [f"train.csv\tline 1 is a heading: {heading}"]


def test_it_is_found_again_and_a_change_is_seen(data: Path) -> None:
    def again(text: str | None = None) -> tuple[int, bool]:
        if text is not None:
            (data / "train.csv").write_text(text)
        cache = data.parent / "cache"
        found, new = scanned(
            lambda say: (
                image_list.open(data, "train", cache=cache, progress=say).columns
            ),
        )
        return len(found), new

    assert again("other/2.jpg 0\nnew/3.jpg 1\n") == (1, True) and again() == (1, False)
    fill(data, {"new/3.jpg": JPEG})
    assert again() == (2, True), "a missing file has come"
    assert again("other/2.jpg 0\n") == (1, True)
    (data / "classes.txt").write_text("ant\n")
    assert again() == (1, True) and again() == (1, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "train.csv is empty; a line is 'path label'"),
        (
            "path,label",
            "train.csv has no row behind its heading; a line is 'path label'",
        ),
        (
            "a.jpg,0\nb.jpg\nc.jpg,1",
            "train.csv line 2 is 'b.jpg'; a line is 'path label'",
        ),
        (
            "a.jpg 0",
            "no image in .*train.csv; left out: 1, first .*a.jpg: cannot be read",
        ),
        ("a.jpg 0\nb.jpg x", "line 1 has the label '0' and line 2 'x'"),
    ],
)
def test_mistakes(text: str, said: str, data: Path) -> None:
    with pytest.raises(UserError, match=said) as caught:
        opened(data, text)
    assert "\n" not in str(caught.value)


def test_two_lists_of_a_split(data: Path) -> None:
    (data / "train.tsv").write_text("other/2.jpg\t0")
    with pytest.raises(
        UserError,
        match=r"train\.csv and train\.tsv are both lists of train; remove one",
    ):
        opened(data, "other/2.jpg 0")


def test_classes_of_validation_are_those_of_training(data: Path) -> None:
    split = opened(data, "other/2.jpg dog\n", classes=("cat", "dog"))
    assert (split.columns.label.tolist(), split.columns.classes) == (
        [1],
        ("cat", "dog"),
    )
    with pytest.raises(
        UserError,
        match="line 1 has the label 'eel', which is none of the 2 classes of the train",
    ):
        opened(data, "other/2.jpg eel\n", classes=("cat", "dog"))
