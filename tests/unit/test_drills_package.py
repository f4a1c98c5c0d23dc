"""A drill: the product without what measures it, and its commands under the package's own name."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from saturate.__main__ import COMMANDS
from scripts import demo_set
from tests.end_to_end.runs import Runner
from tests.unit.drills import copied, ran
from tests.unit.test_house import ROOT

SMALL = """--arch squeezenet1_1 --image-size 32 --batch-size 8 --precision fp32 --loader torchvision --workers 1
    --lr 0.001"""

HELP = {
    "train": "--loader",
    "predict": "--loader",
    "doctor": "--json",
    "tune": "--minutes",
    "pack": "--format",
    "export": "--format",
    "compare": "--most-loss",
    "why": "--samples",
    "archs": "PATTERN",
    "imagenet": "--from FOLDER",
    "photos": "--run",
    "try": "--port",
}
"""Command -> what its --help names."""


@pytest.mark.slow
def test_it_trains_predicts_exports_and_tunes_without_benchmarks(
    runner: Runner, tmp_path: Path
) -> None:
    tree, data, run = copied(tmp_path / "tree"), tmp_path / "data", tmp_path / "run"
    shutil.rmtree(tree / "benchmarks")
    demo_set.write(data, 3, 1, progress=False)
    where = ("--data", data, "--manifest-dir", tmp_path / "cache")
    once = "--epochs 1 --warmup-epochs 0 --ceilings false"
    here = (*where, *SMALL.split(), *once.split(), "--output", run)
    ran(runner, tree, "-m", "saturate", "train", *here)
    new = ("--resume", run / "best.pt", "--output", tmp_path / "new", "--workers", 1)
    ran(runner, tree, "predict.py", data / "val", *new)
    assert (tmp_path / "new" / "predictions.csv").exists()
    ran(runner, tree, "-m", "scripts.export", run / "best.pt", "--format", "pt2")
    assert (run / "best.pt2").exists()
    trial = ("--data", data, "--minutes", 0.001, "--seconds", 0.1)
    preset = (
        "--arch",
        "squeezenet1_1",
        "--batch-size",
        8,
        "--output",
        tmp_path / "t.yaml",
    )
    small = f"--flags=--image-size 32 --lr 0.001 --manifest-dir {tmp_path / 'cache'}"
    ran(runner, tree, "-m", "scripts.tune", *trial, *preset, small)
    assert (tmp_path / "t.yaml").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_file_and_answers_help(name: str, runner: Runner) -> None:
    """The file is what a checkout has for `saturate NAME`."""
    files = {"train": "train.py", "predict": "predict.py"}
    assert (ROOT / files.get(name, f"scripts/{name}.py")).is_file()
    # in a process of its own: a program decides there what signals do
    process = runner.python("-m", "saturate", name, "--help", cwd=ROOT).done()
    assert HELP[name] in process.out


def test_a_command_that_is_not_there_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["saturate", "trian"])
    assert import_module("saturate.__main__").main() == 2
    said = "saturate: COMMAND got 'trian' (did you mean train?)"
    assert capsys.readouterr().err.startswith(said)
