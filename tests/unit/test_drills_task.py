"""A drill: a new task is one file and one line, in a copy of the tree that knows nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.end_to_end.runs import ROOT, draw
from tests.unit.test_house import files


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with tasks/toy.py, and its line in TASKS."""
    copy = tmp_path_factory.mktemp("drill") / "tree"
    for name in files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    shutil.copy(ROOT / "tests/conformance/toy_task.py", copy / "tasks/toy.py")
    table = copy / "tasks/__init__.py"
    text = table.read_text(encoding="utf-8")
    assert text.count("TASKS = {\n") == 1
    line = '    "toy": "tasks.toy",\n'
    table.write_text(text.replace("TASKS = {\n", f"TASKS = {{\n{line}"), "utf-8")
    return copy


def ran(tree: Path, *words: str) -> str:
    """Run `python WORDS` in the tree and return its output; its exit code must be 0."""
    child = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


def test_train_py_knows_it(tree: Path, tmp_path: Path) -> None:
    data = draw(tmp_path / "data", classes=("a", "b"), train=4, val=3)
    run = tmp_path / "run"
    flags = (
        f"--task toy --data {data} --manifest-dir {tmp_path / 'cache'} --output {run}"
    )
    small = "--loader torchvision --batch-size 4 --epochs 1 --image-size 16 --workers 1"
    exact = "--ceilings false --precision fp32 --warmup-epochs 0"
    said = ran(tree, "train.py", *f"{flags} {small} {exact}".split())
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
    assert b"^val/rmse$" in shown and b"error" in shown


def test_the_help_and_the_conformance_tests_know_it(tree: Path) -> None:
    told = " ".join(ran(tree, "train.py", "--help-all").replace("│", "").split())
    assert "toy, classification" in told
    flags = ("-q", "-n0", "-p", "no:cacheprovider", "-k", "toy")
    said = ran(tree, "-m", "pytest", "tests/conformance/test_tasks.py", *flags)
    assert "7 passed" in said
