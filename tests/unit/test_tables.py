"""What asks the tables of sources, tasks and loaders: a run, an own loop, the suites, --help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.train import require_data
from contracts import UserError
from dataset.open import Content, are_files, open_split
from dataset.stores import SOURCES
from loaders import LOADERS
from settings.config import build, parse
from tasks import TASKS, tables
from tests.conformance import toy
from tests.unit.folders import JPEG, fill


@pytest.fixture
def toy_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "toy", "tests.conformance.toy")


@pytest.mark.parametrize("content", ["images", "videos"])
def test_auto_asks_for_what_would_be_opened(
    content: Content, toy_source: None, tmp_path: Path
) -> None:
    """An archive beside the data is none of it."""
    fill(tmp_path, {"train/a/0.jpg": b""})
    settings = build({"data": tmp_path}).data
    (tmp_path / "val2017.toy").touch()
    assert are_files(settings, content)
    (tmp_path / "val.toy").touch()
    assert are_files(settings, content) is (content == "videos")


@pytest.mark.parametrize("source", ["auto", "toy"])
def test_a_split_of_an_own_loop_is_of_any_source(
    source: str, toy_source: None, tmp_path: Path
) -> None:
    data = fill(tmp_path / "data", {"train.toy": b""})
    toy.STORED[data.resolve(), "train"] = {b"b/0.jpg": JPEG, b"a/0.jpg": JPEG}
    split = open_split(data / "train", source=source, cache=tmp_path / "cache")
    assert isinstance(split.source, toy.Memory) and split.columns.classes == ("a", "b")
    with pytest.raises(UserError, match="train does not exist"):
        open_split(data / "train", source="folder", cache=tmp_path / "cache")
    with pytest.raises(UserError, match="--source got 'tow', which is unknown"):
        open_split(data / "train", source="tow", cache=tmp_path / "cache")


def test_suites_of_files_refuse_what_is_none(toy_source: None, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", {"train.toy": b"", "val.toy": b""})
    require_data(str(data), ["torchvision"], config=build({"source": "toy"}))
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
