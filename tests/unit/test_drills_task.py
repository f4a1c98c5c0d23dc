"""A drill: a new task is one file and one line, in a copy of the tree that knows nothing of it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.end_to_end.runs import Runner, draw, kept, rows
from tests.unit.drills import add_line, copied, ran


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with saturate/tasks/toy.py, and its line in TASKS."""
    copy = copied(tmp_path_factory.mktemp("drill") / "tree")
    shutil.copy(copy / "tests/conformance/toy_task.py", copy / "saturate/tasks/toy.py")
    table = copy / "saturate/tasks/__init__.py"
    # as the page has it
    line = '"toy": "saturate.tasks.toy"'
    assert line in (copy / "docs/own-task.md").read_text(encoding="utf-8")
    add_line(table, '    "classification": ', f"    {line},")
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

    # the command that the run's last lines offer, and the network applied by hand to a mean colour
    here = f"--loader torchvision --workers 1 --manifest-dir {tmp_path / 'cache'}"
    (offered,) = re.findall("^predict: +python (.+)$", said, re.MULTILINE)
    words = shlex.split(offered.replace("FOLDER", str(data / "val")))
    ran(runner, tree, *words, *f"{here} --output {tmp_path / 'new'}".split())
    weight, bias = kept(run / "best.pt")["model"].values()
    table = rows(tmp_path / "new" / "predictions.csv")
    assert [Path(row["path"]) for row in table] == sorted((data / "val").glob("*/*"))
    for row in table:
        with Image.open(row["path"]) as image:
            colour = np.asarray(image).mean((0, 1)) / 255
        guess = weight @ torch.tensor((colour - 0.5) / 0.25).float() + bias
        assert float(row["guess"]) == pytest.approx(guess.item(), abs=0.05)

    resumed = f"--evaluate true --resume {run / 'best.pt'} --data {data}"
    again = f"{here} {resumed} --output {tmp_path / 'again'}"
    ran(runner, tree, "train.py", *again.split())
    evaluated = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert evaluated["validation"] == summary["validation"]


def test_the_help_and_the_conformance_tests_know_it(runner: Runner, tree: Path) -> None:
    told = " ".join(
        ran(runner, tree, "train.py", "--help-all").replace("│", "").split()
    )
    assert "toy, classification" in told
    flags = ("-q", "-n0", "-p", "no:cacheprovider", "-k", "toy")
    said = ran(runner, tree, "-m", "pytest", "tests/conformance/test_tasks.py", *flags)
    assert "4 passed" in said
