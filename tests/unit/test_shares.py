"""--val-share: which files validate depends on their names alone."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import UserError
from dataset.open import open_splits
from settings.data import Data
from tests.unit.folders import JPEG, fill


class Heard:
    """A console that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, *lines: str) -> None:
        self.lines += lines

    def warn(self, line: str) -> None:
        self.lines.append(f"warning: {line}")

    def counting(self, what: str) -> Any:
        from contextlib import nullcontext

        return nullcontext(lambda *_: None)


def opened(
    root: Path, share: float, **more: Any
) -> tuple[dict[str, set[str]], list[str], Any]:
    settings = Data(
        data=str(root), val_share=share, manifest_dir=root.parent / "cache", **more
    )
    heard = Heard()
    splits = open_splits(settings, loader="torchvision", console=heard)
    names = {
        split: {Path(one.source.name(i)).name for i in range(len(one.columns))}
        for split, one in splits.items()
    }
    return names, heard.lines, splits


def test_a_new_file_moves_no_other(tmp_path: Path) -> None:
    root = fill(
        tmp_path / "photos",
        {f"{c}/{c}{i:03}.jpg": JPEG for c in ("ant", "bee") for i in range(60)},
    )
    before, said, splits = opened(root, 0.2)
    assert before["train"].isdisjoint(before["val"]) and 10 <= len(before["val"]) <= 40
    match = re.search(
        r"--val-share 0.2: (\d+) images train, (\d+) validate \(ant (\d+) \+ (\d+), bee",
        said[-1],
    )
    assert match and [len(before["train"]), len(before["val"])] == [
        int(match[1]),
        int(match[2]),
    ]
    fill(root, {"ant/new.jpg": JPEG, "cat/one.jpg": JPEG})
    after, said, _ = opened(root, 0.2)
    for split in ("train", "val"):
        assert before[split] <= after[split]
    assert any("class 'cat' has no image in" in line for line in said)
    fill(root, {"a\nb/one.jpg": JPEG})
    assert not any("\n" in line for line in opened(root, 0.2)[1]), (
        "names are printed as they can be"
    )
    (root / "a\nb" / "one.jpg").unlink()
    (root / "a\nb").rmdir()
    assert opened(root, 0.2, val_seed=1)[0]["val"] != after["val"]
    assert before["val"] < opened(root, 0.5)[0]["val"], (
        "a larger share keeps those of a smaller one"
    )
    evaluated = replace(
        splits["val"],
        columns=splits["val"].columns.numbered(np.arange(2), ("ant", "bee")),
    )
    again = pickle.loads(pickle.dumps(evaluated))
    for sample in (0, len(again.columns) - 1):
        assert again.source.path(sample) == splits["val"].source.path(sample)
    assert np.array_equal(again.columns.label, splits["val"].columns.label)


def test_class_folders_without_splits_are_pointed_to_the_share(tmp_path: Path) -> None:
    root = fill(tmp_path / "photos", {"ant/0.jpg": JPEG, "bee/0.jpg": JPEG})
    with pytest.raises(
        UserError,
        match=r"no train/ folder; where its folders are classes add --val-share",
    ):
        open_splits(Data(data=str(root)), loader="torchvision", console=Heard())
    (root / "val").mkdir()
    with pytest.raises(UserError, match=r"no train/ folder; it must be"):
        open_splits(Data(data=str(root)), loader="torchvision", console=Heard())


def test_what_is_parted_already_is_refused(tmp_path: Path) -> None:
    root = fill(
        tmp_path / "data", {f"{split}/ant/0.jpg": JPEG for split in ("train", "val")}
    )
    with pytest.raises(UserError, match="has train and val; leave it out"):
        opened(root, 0.2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"source": "lmdb"},
            "--val-share parts a folder .* leave it or --source lmdb out",
        ),
        (
            {"trust_list": True},
            "--val-share parts a folder .* leave it or --trust-list out",
        ),
        (
            {"lmdb_label": "prefix"},
            "--lmdb-label is for another source, .* leave it out",
        ),
        ({"label_key": "cls"}, "--label-key is for another source, .* leave it out"),
    ],
)
def test_settings_of_another_source_are_refused(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    root = fill(
        tmp_path / "photos",
        {f"{c}/{c}{i:03}.jpg": JPEG for c in ("ant", "bee") for i in range(9)},
    )
    with pytest.raises(UserError, match=said):
        opened(root, 0.3, **more)


def test_what_may_be_a_mistake_is_told_as_of_other_folders(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for folder in (root, tmp_path / "above" / "photos"):
        fill(
            folder, {f"{c}/{i:03}.jpg": JPEG for c in ("ant", "bee") for i in range(9)}
        )
    assert len(opened(root, 0.3)[1]) == 1
    _, said, _ = opened(tmp_path / "above", 0.3)
    assert said[0].startswith("warning: images: one class alone, 'photos'"), said
    _, said, _ = opened(root, 0.3, order="sequential")
    assert any("sorted by label" in line for line in said), said
