"""Folders as people have them: what is no class, what lies beside the classes and what lies too deep is told.

The words are the same in train and in val.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts import UserError
from tests.unit.folders import JPEG, fill
from tests.unit.test_splits import Console, names, opened
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


def reasons(
    data: Path, wanted: str, console: Console | None = None
) -> dict[str, dict[str, str]]:
    """What is left out of each split: path below the split -> why; two samples are always kept."""
    found: dict[str, dict[str, str]] = {}
    for split, one in opened(data, videos=wanted == "video", console=console).items():
        assert len(names(one)) == 2 and one.columns.classes == ("ant", "bee")
        lines = (one.columns.folder / "rejected.txt").read_text().splitlines()
        found[split] = dict(
            line[len(str(data / split)) + 1 :].split("\t") for line in lines
        )
    return found


def test_what_the_storage_puts_there_is_no_class(
    data: Path, wanted: str, ending: str, content: bytes
) -> None:
    places = ("@eaDir/0", "lost+found", "ant/@eaDir/0", "$RECYCLE.BIN/S-1-5")
    for split in SPLITS:
        fill(data / split, {f"{place}/thumb{ending}": content for place in places})
    kept = {place.removesuffix("/0").removesuffix("/S-1-5") for place in places}
    wrong = dict.fromkeys(kept, "belongs to the storage, and not to the data")
    assert reasons(data, wanted) == dict.fromkeys(SPLITS, wrong)


def test_an_empty_class_folder_is_a_note_in_training(data: Path, wanted: str) -> None:
    (data / "train" / "cat" / "deep").mkdir(parents=True)
    said = {"image": "class without an image", "video": "class without a video"}[wanted]
    assert reasons(data, wanted) == {"train": {"cat": said}, "val": {}}
    (data / "val" / "cat").mkdir()
    with pytest.raises(
        UserError,
        match=r"class folder 'cat' \(1 such\), which is none of the 2 classes",
    ):
        reasons(data, wanted)
