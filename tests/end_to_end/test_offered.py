"""The commands that a run's last lines offer, of every task: each runs as it stands there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import demo_superres
from tests.end_to_end import test_video
from tests.end_to_end.conftest import CLASSES
from tests.end_to_end.runs import Runner, draw, rows
from tests.unit.coco_files import write_coco

HERE = ("--epochs 1 --precision fp32 --warmup-epochs 0 --ceilings false --workers 1",)
PIXELS = "--arch squeezenet1_1 --image-size 32 --batch-size 8 --loader torchvision"
TASKS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "classification": (
        lambda folder: draw(folder, classes=CLASSES, train=4, val=2),
        PIXELS,
        "val",
    ),
    "detection": (
        lambda folder: write_coco(folder, splits={"train2017": 8, "val2017": 4}),
        "--task detection --arch fcos_tiny --image-size 64 --longer-side 96 --batch-size 4 "
        "--loader torchvision",
        "val2017",
    ),
    "video": (test_video.write, test_video.SMALL[0], "val"),
    "superres": (
        lambda folder: demo_superres.write(folder, 4, 2, progress=False, processes=1),
        "--task superres --patch-size 16 --batch-size 4",
        "val",
    ),
}
"""What writes the data, flags, and the folder of images, or videos, to predict."""


@pytest.mark.parametrize("name", TASKS)
def test_each_command_runs_as_it_is_offered(name: str, train: Runner) -> None:
    write, flags, new = TASKS[name]
    write(train.cwd / "data")
    said = train("--data data", flags, *HERE, "--output a'run").done().out
    lines = re.findall(r"^(predict|export): +python (.+)$", said, re.MULTILINE)
    offered = {what: shlex.split(command) for what, command in lines}
    assert offered.keys() == {"predict", *([] if name == "superres" else ["export"])}
    words = [word.replace("FOLDER", f"data/{new}") for word in offered["predict"]]
    words[0] = str(Path(__file__).parents[2] / words[0])
    assert train.python(*words, "--workers", 1, "--output", "new").wait() == 0
    if name != "detection":
        table = rows(train.cwd / "new" / "predictions.csv")
        files = [one for one in (train.cwd / "data" / new).rglob("*") if one.is_file()]
        assert len(table) == len(files) and not any(row["error"] for row in table)
    if "export" in offered:
        assert train.python(*offered["export"]).wait() == 0, train.started[-1].err
        assert list(train.cwd.glob("a'run/*.onnx"))
