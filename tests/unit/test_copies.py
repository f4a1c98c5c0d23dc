"""Copies are told, and stay on one side of --val-share: the truth is a plain loop over the files' bytes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saturate.contracts import Split
from saturate.dataset import copies
from saturate.dataset.open import open_splits
from saturate.dataset.val_split import Trained
from saturate.run import pack
from saturate.settings.config import build
from saturate.tasks import kind_of
from saturate.tasks.kind import Opening
from tests.conformance import sources
from tests.unit import superres_files
from tests.unit.coco_files import write_coco
from tests.unit.folders import JPEG, fill, refused
from tests.unit.test_splits import Console
from tests.unit.video_files import make


def opened(
    root: Path, *, content: Any = "images", trained: Trained | None = None, **how: Any
) -> tuple[dict[str, Split], Console]:
    console = Console()
    flat = {"data": root, "manifest_dir": root.parent / "cache", **how}
    splits = open_splits(
        build(flat).data,
        content=content,
        loader="torchvision",
        trained=trained,
        console=console,
    )
    return splits, console


def told(root: Path, **how: Any) -> list[str]:
    """Return the warnings of copies."""
    return [line for line in opened(root, **how)[1].warnings if "are copies of" in line]


def content(number: int, length: int = 40) -> bytes:
    """Return an image: of one `length` all have the same size and the same first kilobytes."""
    return JPEG + bytes(9_000) + (b"%d" % number).rjust(length)


def by_bytes(root: Path) -> dict[bytes, list[Path]]:
    found = defaultdict(list)
    for path in sorted(root.rglob("*.jpg")):
        found[path.read_bytes()].append(path)
    return found


def drawn(root: Path, seed: int, classes: int = 3, per_class: int = 12) -> Path:
    """Write images of few contents, with links, in class folders."""
    rng = np.random.default_rng(seed)
    for label in range(classes):
        for number in range(per_class):
            name = f"c{label}/{number:03}.jpg"
            fill(root, {name: content(int(rng.integers(40)), 40 + number % 2)})
    os.link(root / "c0/000.jpg", root / "c0/hard.jpg")
    (root / "c1/soft.jpg").symlink_to(root / "c1/001.jpg")
    return root


@pytest.mark.parametrize("seed", range(2))
def test_copies_of_two_splits_are_those_of_a_plain_loop(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "STEP", 5)
    data = tmp_path / "data"
    drawn(data / "train", seed)
    drawn(data / "val", seed + 100)
    train, val, both = (by_bytes(data / name) for name in ("train", "val", ""))
    shared = sum(len(paths) for same, paths in val.items() if same in train)
    unlike = [
        paths
        for paths in both.values()
        if len({path.parent.name for path in paths}) > 1
    ]
    first, second = told(data)
    assert first.startswith(f"{shared} of {sum(map(len, val.values()))} samples of val")
    assert second.startswith(f"{sum(map(len, unlike))} samples are copies of another ")
    for line, key in ((first, "train"), (second, "c")):
        one, other = map(Path, re.findall(r" (/\S+?\.jpg)", line))
        assert one.read_bytes() == other.read_bytes()
        if key == "train":
            assert one.is_relative_to(data / "val") and "/train/" in str(other)
        else:
            assert one.parent.name != other.parent.name
    # what was found is kept, and a file that has changed is looked at again
    assert told(data) == [first, second]
    shutil.rmtree(data / "val")
    fill(data / "val", {f"c{at}/{at}.jpg": content(900 + at) for at in range(3)})
    assert not any("of val" in line for line in told(data))


def test_files_that_differ_behind_the_header_are_no_copies(tmp_path: Path) -> None:
    """Size and first bytes are the same, as of frames of a camera: whole files are compared."""
    for split, first in (("train", 0), ("val", 10)):
        names = {f"c{at % 2}/{at}.jpg": content(first + at) for at in range(6)}
        fill(tmp_path / "data" / split, names)
    assert told(tmp_path / "data") == []
    changed = tmp_path / "data/val/c0/0.jpg"
    changed.write_bytes(content(0))
    (line,) = told(tmp_path / "data", rescan=True)
    assert line.startswith("1 of 6 samples of val are copies of train's")


def test_of_what_nobody_opens_copies_are_not_looked_for(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", {"a.jpg": JPEG})
    for split in ("train", "val"):
        (data / f"{split}.csv").write_text("a.jpg,0\na.jpg,1\n")
    console = opened(data, trust_list=True)[1]
    assert "copies of samples were not looked for: --trust-list" in console.said[-1]
    shared, unlike = told(data)
    assert shared.startswith("2 of 2") and unlike.startswith("4 samples")


@pytest.mark.parametrize("form", ["lmdb", "tar"])
def test_copies_in_packed_stores(form: str, tmp_path: Path) -> None:
    for split in ("train", "val"):
        names = {"a/0.jpg": content(0), "b/0.jpg": content(ord(split[0]))}
        fill(tmp_path / "data" / split, names)
    target = tmp_path / form
    words = [str(target), "--from", str(tmp_path / "data"), "--format", form]
    assert pack.main([*words, "--manifest-dir", str(tmp_path / "cache")]) == 0
    (line,) = told(target)
    assert line.startswith("1 of 2 samples of val are copies of train's")


def test_copies_of_videos(tmp_path: Path) -> None:
    """A list's segment is a sample: another segment of the same file is no copy."""
    data = tmp_path / "data"
    for at, name in enumerate(
        ("train/run/a", "train/walk/b", "val/run/c", "val/walk/d")
    ):
        make(data / f"{name}.mp4", frames=6 + at, size=(32, 32))
    assert told(data, content="videos") == []
    shutil.copy(data / "train/run/a.mp4", data / "train/walk/same.mp4")
    shutil.copy(data / "train/run/a.mp4", data / "val/run/same.mp4")
    shared, unlike = told(data, content="videos")
    assert shared.startswith("1 of 3") and unlike.startswith("3 samples")
    (data / "train.csv").write_text("train/run/a.mp4 0 0 0.1\n")
    (data / "val.csv").write_text("train/run/a.mp4 0 0.15 1\n")
    assert told(data, content="videos") == []


def test_copies_of_images_with_boxes(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "data", splits={"train": 4, "val": 4})
    assert told(root, content="instances") == []
    photos = sorted((root / "train").iterdir()), sorted((root / "val").iterdir())
    shutil.copy(photos[0][2], photos[1][2])
    (line,) = told(root, content="instances", rescan=True)
    assert line.startswith("1 of 4 samples of val are copies of train's")


@pytest.mark.parametrize("form", ["", "lmdb", "tar", "arrow"])
def test_copies_of_large_images(form: str, tmp_path: Path) -> None:
    """The images are the same as files and as scripts.pack writes them."""
    data = tmp_path / "data"
    superres_files.write(data / "train/all", 4, side=60)
    superres_files.write(data / "val/all", 3, side=60)
    own = superres_files.encoded(superres_files.picture(99, 70, 70), "png")
    fill(data / "val/all", {"own.png": own})
    told = data
    if form:
        sources.required(form)
        told = tmp_path / "packed"
        assert pack.main([str(told), "--from", str(data), "--format", form]) == 0
    flat = {"data": told, "manifest_dir": tmp_path / "cache"}
    config = build(
        {**flat, "task": "superres", "patch_size": 16, "patches_per_image": 4}
    )
    console = Console()
    splits = kind_of(config).splits(Opening.from_config(config, "paired", console))
    for name, split in splits.items():
        files = sorted((data / name / "all").iterdir())
        found = [split.source.read(sample) for sample in range(len(split.columns))]
        times = len(found) // len(files)
        assert times == (4 if name == "train" else 1)
        assert found == [file.read_bytes() for file in files for _ in range(times)]
        called = [split.source.name(sample * times) for sample in range(len(files))]
        assert [Path(each).name for each in called] == [file.name for file in files]
    (line,) = [line for line in console.warnings if "copies" in line]
    assert line.startswith("3 of 4 samples of val are copies of train's")


def sides(root: Path, **how: Any) -> dict[str, set[str]]:
    splits, _ = opened(root, **{"val_share": 0.3, **how})
    return {
        name: {
            os.path.relpath(os.fsdecode(split.columns.path(i)), root)
            for i in range(len(split.columns))
        }
        for name, split in splits.items()
    }


def by_name(name: str, share: float, seed: int) -> bool:
    """Whether a file validates by its name alone, as it was before copies were looked for."""
    key = seed.to_bytes(16, "little")
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little") < int(share * 2**64)


@pytest.mark.parametrize("seed", [0, 5])
def test_copies_are_on_one_side(seed: int, tmp_path: Path) -> None:
    root = drawn(tmp_path / "photos", seed, per_class=30)
    found = sides(root, val_seed=seed)
    for paths in by_bytes(root).values():
        names = {str(path.relative_to(root)) for path in paths}
        assert names <= found["train"] or names <= found["val"]
        assert (names <= found["val"]) == by_name(min(names), 0.3, seed)
    said = opened(root, val_share=0.3, val_seed=seed)[1].said
    several = sum(len(paths) for paths in by_bytes(root).values() if len(paths) > 1)
    assert f"--val-share 0.3: {several} images have copies, which are on" in said[0]
    # a checkpoint of before keeps the share that it has trained with
    old = Trained.from_checkpoint({"config": {}, "manifest": ""})
    assert sides(root, val_seed=seed, trained=old)["val"] == {
        name for name in found["train"] | found["val"] if by_name(name, 0.3, seed)
    }


def test_without_copies_the_share_is_that_of_names(tmp_path: Path) -> None:
    names = [f"c{at % 3}/{at:03}.jpg" for at in range(90)]
    root = fill(
        tmp_path / "photos", {name: content(at) for at, name in enumerate(names)}
    )
    expected = {name for name in names if by_name(name, 0.3, 0)}
    assert sides(root)["val"] == expected and 10 < len(expected) < 45


@pytest.mark.parametrize(
    ("group", "of"),
    [
        ("folder", lambda name: name.split("/")[1]),
        (r"(patient\d+)", lambda name: name.split("/")[1]),
        (r"_(scene\d)\.", lambda name: name[-10:-4]),
    ],
)
def test_a_group_is_on_one_side(group: str, of: Any, tmp_path: Path) -> None:
    """Patients have images of both classes; a copy joins the groups that it lies in."""
    names = [
        f"{label}/patient{number}/{at}_scene{number % 9}.jpg"
        for label in ("ill", "well")
        for number in range(20)
        for at in range(3)
    ]
    files = {name: content(at) for at, name in enumerate(names)}
    files["ill/patient3/0_scene3.jpg"] = files["ill/patient11/0_scene2.jpg"]
    root = fill(tmp_path / "photos", files)
    found = sides(root, val_group=group)
    assert found["val"] and found["train"]
    groups = {side: {of(name) for name in names} for side, names in found.items()}
    assert groups["train"].isdisjoint(groups["val"])
    together = {"ill/patient3/0_scene3.jpg", "ill/patient11/0_scene2.jpg"}
    assert together <= found["train"] or together <= found["val"]
    assert sides(root)["val"] != found["val"]


def test_groups_that_are_none(tmp_path: Path) -> None:
    files = {f"{c}/{at}.jpg": content(at) for c in "ab" for at in range(9)}
    root = fill(tmp_path / "photos", files)
    said = refused(lambda: opened(root, val_share=0.3, val_group="folder"))
    assert "--val-group folder: no image is in a group, for example 'a/0.jpg'" in said
    said = refused(lambda: opened(root, val_share=0.3, val_group=r"\d"))
    assert "no image is in a group" in said
    said = refused(lambda: opened(root, val_share=0.3, val_group="(a"))
    assert "--val-group (a: no regular expression" in said
