"""A drill: a new task is one file and one line, in a copy of the tree that knows nothing of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.end_to_end.runs import Runner, draw
from tests.unit.drills import add_line, copied, ran


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with tasks/toy.py, and its line in TASKS."""
    copy = copied(tmp_path_factory.mktemp("drill") / "tree")
    shutil.copy(copy / "tests/conformance/toy_task.py", copy / "tasks/toy.py")
    table = copy / "tasks/__init__.py"
    add_line(table, '    "classification": ', '    "toy": "tasks.toy",')
    return copy


def test_train_py_knows_it(runner: Runner, tree: Path, tmp_path: Path) -> None:
    data = draw(tmp_path / "data", classes=("a", "b"), train=4, val=3)
    run = tmp_path / "run"
    flags = (
        f"--task toy --data {data} --manifest-dir {tmp_path / 'cache'} --output {run}"
    )
    small = "--loader torchvision --batch-size 4 --epochs 1 --image-size 16 --workers 1"
    exact = "--ceilings false --precision fp32 --warmup-epochs 0"
    said = ran(runner, tree, "train.py", *f"{flags} {small} {exact}".split())
    summary = json.loads((run / "summary.json").read_text())
    found = [summary[name] for name in ("task", "arch", "steps")]
    assert found == ["toy", "mean", 2] and summary["rate"]["unit"] == "img/s"
    assert summary["validation"].keys() == {"rmse", "samples"}
    assert summary["validation"]["samples"] == 6 and (run / "best.pt").exists()
    assert f"RMSE              {summary['validation']['rmse']:.2f} classes" in said
    board = EventAccumulator(str(run))
    board.Reload()
    assert "val/rmse" in board.Tags()["scalars"]
    shown = board.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert b"^val/(ema_)?rmse$" in shown and b"error" in shown


def test_the_help_and_the_conformance_tests_know_it(runner: Runner, tree: Path) -> None:
    told = " ".join(
        ran(runner, tree, "train.py", "--help-all").replace("│", "").split()
    )
    assert "toy, classification" in told
    flags = ("-q", "-n0", "-p", "no:cacheprovider", "-k", "toy")
    said = ran(runner, tree, "-m", "pytest", "tests/conformance/test_tasks.py", *flags)
    assert "3 passed" in said
