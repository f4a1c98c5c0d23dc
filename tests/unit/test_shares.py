"""--val-share: which files validate depends on their names alone."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saturate.contracts import Split
from saturate.dataset.open import open_splits
from saturate.dataset.val_split import _has_images
from saturate.report.summary import rejected
from saturate.settings.data import Data
from tests.unit.folders import JPEG, fill, refused
from tests.unit.test_splits import Console


def photos(root: Path, count: int = 9) -> Path:
    names = [f"{c}/{c}{i:03}.jpg" for c in ("ant", "bee") for i in range(count)]
    return fill(root, unlike(names))


def unlike(names: list[str]) -> dict[str, bytes]:
    """Images of the same size in bytes whose bytes are each its own."""
    return {name: JPEG + b"%09d" % at for at, name in enumerate(names)}


def opened(
    root: Path, share: float | None, **more: Any
) -> tuple[dict[str, set[str]], list[str], dict[str, Split]]:
    """Names of the files of each split, what was said, and the splits."""
    cache = root.parent / "cache"
    settings = Data(data=str(root), val_share=share, manifest_dir=cache, **more)
    console = Console()
    splits = open_splits(settings, loader="torchvision", console=console)
    names = {
        split: {Path(one.source.name(i)).name for i in range(len(one.columns))}
        for split, one in splits.items()
    }
    return names, [*console.warnings, *console.said], splits


def test_a_new_file_moves_no_other(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 60)
    before, said, splits = opened(root, 0.2)
    train, val = before["train"], before["val"]
    assert train.isdisjoint(val) and 10 <= len(val) <= 40
    match = re.search(
        r"--val-share 0.2: (\d+) images to train, (\d+) to validate \(ant (\d+) \+ ",
        said[-1],
    )
    assert match and [len(train), len(val)] == [int(match[1]), int(match[2])]
    new = unlike([*"x" * 200, "ant/new.jpg", "cat/one.jpg", "a\nb/one.jpg"])
    fill(root, {name: new[name] for name in [*new][1:]})
    after, said, _ = opened(root, 0.2)
    assert train <= after["train"] and val <= after["val"]
    assert any(re.search("no image in (train|val) of class cat", line) for line in said)
    assert not any("\n" in line for line in said), "names are printed as they can be"
    assert opened(root, 0.2, val_seed=1)[0]["val"] != after["val"]
    assert val < opened(root, 0.5)[0]["val"], "a larger share keeps those of a smaller"
    columns: Any = splits["val"].columns
    evaluated = columns.numbered(np.arange(2), ("ant", "bee"))
    again = pickle.loads(pickle.dumps(replace(splits["val"], columns=evaluated)))
    for sample in (0, len(val) - 1):
        assert again.source.path(sample) == splits["val"].source.path(sample)  # type: ignore[attr-defined]
    assert np.array_equal(again.columns.label, columns.label)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_share_is_the_share(share: float, tmp_path: Path) -> None:
    """Four standard deviations of a binomial draw: half of a share, or twice as much, is beyond them."""
    count = 800
    names = [f"{c}/{i}.jpg" for c in ("ant", "bee") for i in range(count // 2)]
    # no two files have the same bytes
    root = fill(tmp_path / "photos", {name: JPEG + name.encode() for name in names})
    columns: Any = opened(root, share)[2]["val"].columns
    deviation = (count * share * (1 - share)) ** 0.5
    assert abs(len(columns) - count * share) < 4 * deviation


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"source": "lmdb"}, "leave it or --source lmdb out"),
        ({"lmdb_label": "prefix"}, "--lmdb-label is for another source"),
        ({"val_share": 1e-9}, "of 18 images none is left for val; another share"),
        ({"val_share": None}, "no train/ folder; where its folders are classes add"),
    ],
)
def test_what_the_share_is_not_for(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    root = photos(tmp_path / "photos")
    share = more.pop("val_share", 0.3)
    assert said in refused(lambda: opened(root, share, **more))
    fill(root, {"train/ant/0.jpg": JPEG, "val/ant/0.jpg": JPEG})
    assert "has train and val; leave it out" in refused(lambda: opened(root, 0.2))
    assert _has_images(root / "train/ant") and not _has_images(root / "gone")


def test_what_one_scan_left_out_is_listed_once(tmp_path: Path) -> None:
    root = fill(photos(tmp_path / "photos", 20), {"ant/bad.jpg": b"no image"})
    _, said, splits = opened(root, 0.3)
    assert "images: left out: 1 (files" in said[0] and str(tmp_path) not in said[0]
    (line,) = rejected(splits).decode().splitlines()
    assert line.startswith(f"train, val\t{root}/ant/bad.jpg\t")


def test_classes_that_look_alike_are_one_warning(tmp_path: Path) -> None:
    names = ["Gr\u00fcn", "Gru\u0308n", "Junco", "junco", "gecko", "gecko ", "ant"]
    files = [f"{name}/{name}{i}.jpg" for name in names for i in range(9)]
    root = fill(tmp_path / "photos", unlike(files))
    _, said, _ = opened(root, 0.3)
    (line,) = [line for line in said if "look alike" in line]
    for both in (
        r"'Gru\u0308n' and 'Gr\xfcn'",
        "'Junco' and 'junco'",
        "'gecko' and 'gecko '",
    ):
        assert both in line
    assert "ant" not in line


@pytest.mark.parametrize(
    ("names", "share", "said"),
    [
        ("Training VALID", None, "'Training' and 'VALID' are splits and not classes"),
        ("train test", 0.2, r"--data \S+/train parted by --val-share 0.2"),
        ("bus train", 0.5, "'train' may be a split, or classes as 'bus' may be; name"),
        ("bus freight_train", 0.5, "^$"),
    ],
)
def test_folders_named_as_splits_are_no_classes(
    names: str, share: float | None, said: str, tmp_path: Path
) -> None:
    files = [f"{name}/ant/{i}.jpg" for name in names.split() for i in range(9)]
    root = fill(tmp_path / "photos", unlike(files))
    told = "" if said == "^$" else refused(lambda: opened(root, share))
    assert re.search(said, told)
    if not told:
        opened(root, share)


def test_many_classes_without_an_image_are_one_line(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 60)
    fill(
        root, {f"class {number}/one.jpg": JPEG + b"%d" % number for number in range(30)}
    )
    _, said, _ = opened(root, 0.2)
    assert "(of a class 0.0% to 100.0%)" in " ".join(said)
    (line,) = [line for line in said if "no image in val" in line]
    assert re.search(r"of class class \d+, .* and \d+ more$", line)
