"""What asks the tables of sources, tasks and loaders: a run, an own loop, the suites, --help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks._loaders import medium_of
from benchmarks.train import require_data
from contracts import UserError
from dataset.open import Content, are_files, open_split
from dataset.stores import SOURCES
from loaders import LOADERS
from settings.config import build, parse
from tasks import TASKS, tables
from tests.conformance import toy
from tests.end_to_end.runs import Runner, draw
from tests.unit.folders import JPEG, fill

PROGRAM = """
import sys
from pathlib import Path
from dataset.stores import SOURCES
from tasks import TASKS, tables
from tests.conformance import toy
SOURCES["toy"] = "tests.conformance.toy"
data = Path(sys.argv[sys.argv.index("--data") + 1]).resolve()
below = data / "unpacked"
names = {path.relative_to(below).as_posix().encode(): path.read_bytes() for path in below.rglob("*.jpg")}
toy.STORED[data, "val"] = names
import train
if __name__ == "__main__":
    train.leave(train.main())
"""


def test_a_loader_that_opens_files_asks_validation_too(
    tmp_path: Path, runner: Runner
) -> None:
    data = draw(tmp_path / "data", classes=("a", "b"), train=2, val=1)
    (data / "val").rename(data / "unpacked")
    (data / "val.toy").touch()
    flags = f"--data {data} --manifest-dir {tmp_path / 'cache'} --output {tmp_path / 'run'} --workers 1"
    small = "--arch resnet18 --image-size 32 --batch-size 2 --epochs 1 --ceilings false"
    said = runner.python(
        "-c", PROGRAM, *f"{flags} {small} --loader dali-cpu".split()
    ).mistake()
    assert (
        "--loader dali-cpu opens each sample's own file, and toy:a/000.jpg is none; choose"
        in said
    )
    assert not (tmp_path / "run/metrics.jsonl").exists(), "nothing was trained before"


@pytest.fixture
def toy_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "toy", "tests.conformance.toy")


@pytest.mark.parametrize(
    ("content", "stray", "real"),
    [("images", "val2017.toy", "val.toy"), ("videos", "val2017.toy", "val.toy")],
)
def test_auto_asks_for_what_would_be_opened(
    content: Content, stray: str, real: str, toy_source: None, tmp_path: Path
) -> None:
    """An archive beside the data is none of it."""
    fill(tmp_path, {"train/a/0.jpg": b""})
    settings = build({"data": tmp_path}).data
    (tmp_path / stray).touch()
    assert are_files(settings, content)
    (tmp_path / real).touch()
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


def test_suites_of_loaders_ask_the_task() -> None:
    assert [medium_of(task) for task in ("classification", "video")] == [
        "images",
        "videos",
    ]
    for task, said in (
        ("detection", "a label alone"),
        ("video2", "did you mean video"),
    ):
        with pytest.raises(UserError, match=said):
            medium_of(task)


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
