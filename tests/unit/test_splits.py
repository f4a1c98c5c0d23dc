"""The two splits of a data set, and mistakes in one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from saturate.contracts import Split, UserError
from saturate.dataset.coco.synthetic import SyntheticInstances
from saturate.dataset.images.columns import Images
from saturate.dataset.images.synthetic import SyntheticImages
from saturate.dataset.model_classes import ModelClasses
from saturate.dataset.open import Content, require_splits
from saturate.settings.config import build
from saturate.tasks.kind import Opening
from tests.unit.coco_files import document, write, write_coco
from tests.unit.folders import JPEG, fill
from tests.unit.video_files import make


class Console:
    """What report.console.Console is to a scan."""

    def __init__(self) -> None:
        self.counted: list[str] = []
        self.warnings: list[str] = []
        self.said: list[str] = []

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[..., None]]:
        self.counted.append(what)
        yield lambda *_: None

    def warn(self, line: str) -> None:
        self.warnings.append(line)

    def info(self, *lines: str) -> None:
        self.said += lines


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("video") / "video.mp4", frames=6, size=(32, 32))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def opened(
    data: Path | None,
    *,
    videos: bool = False,
    content: Content | None = None,
    loader: str = "pyav",
    console: Console | None = None,
    model: ModelClasses | None = None,
    **settings: Any,
) -> dict[str, Split]:
    cache = (data.parent if data else Path()) / "cache"
    config = build(
        {"data": data, "manifest_dir": cache, "read_delay_ms": 500.0, **settings}
    )
    said: Any = console or Console()
    return Opening.from_config(config, loader, said, model).splits(
        content or ("videos" if videos else "images")
    )


def mistake(data: Path | None, *, videos: bool = False, **how: Any) -> str:
    with pytest.raises(UserError) as caught:
        opened(data, videos=videos, **how)
    said = str(caught.value)
    assert "\n" not in said and "--data" in said
    return said


def put(video: Path, *paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(video, path)


def names(split: Split) -> list[str]:
    return [
        os.path.basename(split.source.name(sample))
        for sample in range(len(split.columns))
    ]


THREE = ("ant/0.jpg", "ant/1.jpg", "bee/0.jpg")


def test_folders_of_images(data: Path) -> None:
    for split in ("train", "val"):
        own = {name: JPEG + (split + name).encode() for name in THREE}
        fill(data / split, own)
    fill(data, {"val/bee/text.jpg": b"no image"})
    console = Console()
    splits = opened(data, videos=False, console=console)
    assert list(splits) == ["train", "val"]
    for found in splits.values():
        assert isinstance(found.columns, Images)
        assert (found.columns.classes, found.columns.label.tolist()) == (
            ("ant", "bee"),
            [0, 0, 1],
        )
        assert (
            names(found) == ["0.jpg", "1.jpg", "0.jpg"]
            and found.source.read_delay_s == 0.5
        )
    assert console.counted == ["train", "val"]
    (warning,) = console.warnings
    said = "left out: 1 (files, lines, empty classes), named in the run's rejected.txt"
    assert warning == f"val: {said}"


def test_a_split_is_evaluated_by_its_name(data: Path, video: Path) -> None:
    """Folders and lists (test_coco_layouts.py has Roboflow's) validate on test/; what lies beside it may be missing."""
    evaluated: dict[str, Any] = {"evaluate": True, "split": "test"}
    told = r"has no test/ folder; it must be a folder with train/"
    fill(data, {f"train/{name}": JPEG + b"a" for name in THREE})
    with pytest.raises(UserError, match=told):
        opened(data, **evaluated)
    fill(data, {f"test/{name}": JPEG + b"b" for name in THREE[1:]})
    console = Console()
    splits = opened(data, console=console, **evaluated)
    assert console.counted == ["train", "test"] and names(splits["val"]) == [
        "1.jpg",
        "0.jpg",
    ]
    assert names(opened(data, evaluate=True, split="train")["val"]) == [
        os.path.basename(name) for name in THREE
    ]
    model = ModelClasses(names=("bee", "ant"), origin="a checkpoint")
    alone = opened(data, model=model, **evaluated)["val"]
    assert alone.columns.label.tolist() == [1, 0], "the checkpoint's numbers"
    shutil.rmtree(data / "train")
    assert len(opened(data, **evaluated)["train"].columns) == 2
    with pytest.raises(UserError, match="--split test: --val-share makes train and"):
        opened(data, val_share=0.2, **evaluated)
    clips = data / "clips"
    put(video, clips / "train" / "run" / "a.mp4", clips / "test" / "run" / "b.mp4")
    assert names(opened(clips, videos=True, **evaluated)["val"]) == ["b.mp4"]


@pytest.mark.parametrize("labels", [("0", "1"), ("run", "walk")])
def test_lists_of_videos(data: Path, video: Path, labels: tuple[str, str]) -> None:
    """Beside a folder, whose classes are the list's."""
    put(video, data / "clips" / "a.mp4", data / "clips" / "b.mp4")
    a, b = labels
    (data / "train.csv").write_text(f"clips/a.mp4 {a}\nclips/b.mp4 {b}\n")
    (data / "val.txt").write_text(f"clips/b.mp4,{b}\nclips/a.mp4,{a},0.0,0.1\n")
    splits = opened(data, videos=True)
    train, val = (splits[name].columns for name in ("train", "val"))
    assert train.classes == val.classes == labels
    assert val.label.tolist() == [1, 0] and names(splits["val"]) == ["b.mp4", "a.mp4"]
    assert (train.frames.tolist(), val.frames.tolist()) == ([6, 6], [6, 3])
    (data / "val.txt").unlink()
    put(video, data / "val" / b / "c.mp4")
    assert opened(data, videos=True)["val"].columns.label.tolist() == [1]


@pytest.mark.parametrize("content", ["images", "instances"])
def test_a_training_that_never_validates_needs_no_val(
    data: Path, content: Content
) -> None:
    if content == "instances":
        write_coco(data, splits={"train2017": 4})
    else:
        fill(data, {"train/ant/0.jpg": JPEG, "train/bee/0.jpg": JPEG})
    console = Console()
    splits = opened(data, content=content, val_every=0, console=console)
    assert splits["val"] is splits["train"] and console.counted == ["train"]
    assert "val" in mistake(data, content=content)
    for validates in (False, True):
        with pytest.raises(UserError) if validates else nullcontext():
            require_splits(build({"data": data}).data, content, validates=validates)


@pytest.mark.parametrize("content", ["images", "videos", "instances"])
def test_an_evaluation_needs_no_training_data(
    data: Path, video: Path, content: Content
) -> None:
    if content == "instances":
        write_coco(data, splits={"val2017": 4})
    else:
        fill(data, {"val/ant/0.jpg": JPEG, "val/bee/0.jpg": JPEG})
        put(video, data / "val" / "ant" / "a.mp4", data / "val" / "bee" / "b.mp4")
    console = Console()
    splits = opened(data, content=content, evaluate=True, console=console)
    assert splits["train"] is splits["val"]
    assert len(splits["val"].columns) == (4 if content == "instances" else 2)
    assert any(
        line.startswith("train: not read, the classes are those of val;")
        for line in console.warnings
    )
    assert console.counted == ["val"]
    mistake(data, content=content)
    shutil.rmtree(data / ("val2017" if content == "instances" else "val"))
    mistake(data, content=content, evaluate=True)


@pytest.mark.parametrize(
    ("content", "columns", "samples"),
    [
        ("images", SyntheticImages, 1_281_167),
        ("keypoints", SyntheticInstances, 118_287),
    ],
)
def test_no_data(content: Content, columns: Any, samples: int) -> None:
    splits = opened(None, content=content, loader="synthetic")
    assert len(splits["train"].columns) == samples > len(splits["val"].columns)
    for split in splits.values():
        assert type(split.columns) is columns
        assert len(split.source) == len(split.columns)
        assert split.source.name(7) == "synthetic-7"
    line = mistake(None, content=content)
    assert "--data is missing" in line and "or --loader synthetic" in line


def test_mistakes_with_annotated_images(data: Path) -> None:
    write_coco(data)
    written = document(data, "val2017")
    written["categories"][-1]["name"] = "people"
    write(data, "val2017", written)
    said = mistake(data, content="instances")
    assert "class 'people' of 3 is none of the 3 classes of the training set" in said
    (data / "annotations" / "instances_val2017.json").unlink()
    console = Console()
    assert "has no annotations of val" in mistake(
        data, content="instances", console=console
    )
    assert console.counted == [], "nothing is scanned before both are there"


def test_a_validation_of_fewer_categories(data: Path) -> None:
    """It has training's class numbers, and its own category ids."""
    write_coco(data)
    written = document(data, "val2017")
    written["categories"] = [
        one for one in written["categories"] if one["name"] != "box"
    ]
    write(data, "val2017", written)
    splits = opened(data, content="instances")
    train, val = (splits[name].columns for name in ("train", "val"))
    assert (
        train.classes == val.classes == ("__background__", "person", "box", "triangle")
    )
    assert val.category_ids.tolist() == [1, 5] and val.class_of.tolist() == [1, 3]
    assert val.category_of.tolist() == [-1, 0, -1, 1], (
        "who finds a box there finds no category"
    )


def test_classes_that_were_not_meant(data: Path, video: Path) -> None:
    put(video, data / "a.mp4")
    for train, said in (
        (
            "a.mp4 run\n",
            "train: one class alone, 'run', so there is nothing to learn; "
            "is --data a folder too low or too high, or do all files lie in one folder?",
        ),
        (
            "a.mp4 4\na.mp4 3\na.mp4 1\n",
            "train: no video for 2 of 5 classes, first '0'; "
            "do the labels of the list begin at 0, without gaps?",
        ),
        ("a.mp4 0\na.mp4 1\n", None),
    ):
        for split in ("train", "val"):
            (data / f"{split}.csv").write_text(train)
        console = Console()
        opened(data, videos=True, console=console)
        told = [line for line in console.warnings if "are copies of" not in line]
        assert told == ([said] if said else [])
    console = Console()
    opened(data, videos=True, order="sequential", console=console)
    assert "the 2 samples are sorted by label" in " ".join(console.warnings)
