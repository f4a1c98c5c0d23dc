"""Folders as people have them: what is no class, what lies beside the classes and what lies too deep is told.

The words are the same in train and in val.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from saturate.contracts import UserError
from tests.unit.folders import JPEG, fill, reasons
from tests.unit.test_splits import names, opened
from tests.unit.video_files import make

SPLITS = ("train", "val")


@pytest.fixture(params=["image", "video"])
def wanted(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ending(wanted: str) -> str:
    """Of the name of a file that can be read."""
    return ".jpg" if wanted == "image" else ".mp4"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("clip") / "a.mp4"
    return make(path, frames=6, size=(32, 32)).read_bytes()


@pytest.fixture
def content(wanted: str, clip: bytes) -> bytes:
    """What such a file holds."""
    return JPEG if wanted == "image" else clip


@pytest.fixture
def data(tmp_path: Path, ending: str, content: bytes) -> Path:
    """Two classes of one file in each split."""
    names = [f"{split}/{name}/0{ending}" for split in SPLITS for name in ("ant", "bee")]
    return fill(tmp_path / "data", dict.fromkeys(names, content))


def left_out(data: Path, wanted: str) -> dict[str, dict[str, str]]:
    """What is left out of each split: path below the split -> why; two samples are always kept."""
    found = opened(data, videos=wanted == "video")
    for one in found.values():
        assert len(names(one)) == 2 and one.columns.classes == ("ant", "bee")
    return {split: reasons(one.columns) for split, one in found.items()}


def test_what_the_storage_puts_there_is_no_class(
    data: Path, wanted: str, ending: str, content: bytes
) -> None:
    places = ("@eaDir/0", "lost+found", "ant/@eaDir/0", "$RECYCLE.BIN/S-1-5")
    for split in SPLITS:
        fill(data / split, {f"{place}/thumb{ending}": content for place in places})
    kept = {place.removesuffix("/0").removesuffix("/S-1-5") for place in places}
    wrong = dict.fromkeys(kept, "belongs to the storage, and not to the data")
    assert left_out(data, wanted) == dict.fromkeys(SPLITS, wrong)


def test_links_to_storage_that_is_not_there(
    data: Path, wanted: str, ending: str, content: bytes
) -> None:
    """They are named, a class folder too, and --rescan finds them when it is there."""
    away = data.parent / "away"
    (data / "train" / "cat").symlink_to(away)
    (data / "val" / "bee" / f"1{ending}").symlink_to(away / f"0{ending}")
    broken = {"train": {"cat": "broken link"}, "val": {f"bee/1{ending}": "broken link"}}
    assert left_out(data, wanted) == broken
    fill(away, {f"0{ending}": content})
    found = opened(data, videos=wanted == "video", rescan=True)
    assert found["train"].columns.classes == ("ant", "bee", "cat")
    assert [len(one.columns) for one in found.values()] == [3, 3]


def test_loose_files_are_named(
    data: Path, wanted: str, ending: str, content: bytes
) -> None:
    loose = {f"{number}{ending}": content for number in range(20)}
    for split in SPLITS:
        fill(
            data / split,
            {**loose, "README.txt": b"text", "labels.csv": b"", ".DS_Store": b""},
        )
    assert left_out(data, wanted) == dict.fromkeys(
        SPLITS, dict.fromkeys(loose, "lies in no class folder")
    )


def test_an_empty_class_folder_is_a_note(
    data: Path, wanted: str, ending: str, content: bytes
) -> None:
    for split in SPLITS:
        (data / split / "cat" / "deep").mkdir(parents=True)
    said = {"image": "class without an image", "video": "class without a video"}[wanted]
    assert left_out(data, wanted) == {split: {"cat": said} for split in SPLITS}
    fill(data / "val" / "cat" / "deep", {f"0{ending}": content})
    with pytest.raises(
        UserError,
        match=r"class folder 'cat' \(1 such\), which is none of the 2 classes",
    ):
        left_out(data, wanted)
