"""What asks the tables of sources, tasks and loaders: a run, an own loop, the suites, --help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.train import require_data
from saturate.contracts import UserError
from saturate.dataset.open import Content, are_files, open_split
from saturate.dataset.stores import SOURCES
from saturate.loaders import LOADERS
from saturate.settings.config import build, parse
from saturate.tasks import TASKS, tables
from tests.conformance.sources import write_lmdb
from tests.unit.folders import JPEG, fill


@pytest.mark.parametrize("content", ["images", "videos"])
def test_auto_asks_for_what_would_be_opened(content: Content, tmp_path: Path) -> None:
    """An archive beside the data is none of it."""
    fill(tmp_path, {"train/a/0.jpg": b""})
    settings = build({"data": tmp_path}).data
    (tmp_path / "val2017.lmdb").touch()
    assert are_files(settings, content)
    (tmp_path / "val.lmdb").touch()
    assert are_files(settings, content) is (content == "videos")


@pytest.mark.parametrize("source", ["auto", "lmdb"])
def test_a_split_of_an_own_loop_is_of_any_source(source: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    pytest.importorskip("lmdb")
    write_lmdb(data, "train", {"b/0.jpg": JPEG, "a/0.jpg": JPEG})
    split = open_split(data / "train", source=source, cache=tmp_path / "cache")
    assert not split.source.files and split.columns.classes == ("a", "b")
    with pytest.raises(UserError, match="train does not exist"):
        open_split(data / "train", source="folder", cache=tmp_path / "cache")
    with pytest.raises(UserError, match="--source got 'tow', which is unknown"):
        open_split(data / "train", source="tow", cache=tmp_path / "cache")


def test_a_validation_of_an_own_loop_has_the_numbers_of_training(
    tmp_path: Path,
) -> None:
    fill(
        tmp_path,
        {
            f"data/{name}/0.jpg": JPEG
            for name in ("train/a", "train/b", "train/c", "val/c")
        },
    )
    cache = tmp_path / "cache"
    training = open_split(tmp_path / "data/train", cache=cache).columns
    val = open_split(tmp_path / "data/val", cache=cache, classes=training.classes)
    assert training.label.tolist() == [0, 1, 2] and val.columns.label.tolist() == [2]


def test_suites_of_files_refuse_what_is_none(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", {"train.lmdb": b"", "val.lmdb": b""})
    require_data(str(data), ["torchvision"], config=build({"source": "lmdb"}))
    with pytest.raises(
        UserError, match="has no train/ folder; it must be a folder with train/<class>"
    ):
        require_data(str(data), ["torchvision"], config=build({"source": "folder"}))


def test_help_names_what_the_tables_have(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of a table is all that a task, a source or a loader needs to be told of."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setitem(SOURCES, "shelf", "")
    monkeypatch.setitem(TASKS, "guess", "")
    with pytest.raises(SystemExit):
        parse(["--help"], tables())
    words = set(re.findall(r"[\w+-]+", capsys.readouterr().out))
    assert {*SOURCES, *TASKS, *LOADERS} <= words
