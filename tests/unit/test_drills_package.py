"""A drill: the product without what measures it, and its commands under the package's own name."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from saturate.__main__ import COMMANDS
from tests.end_to_end.runs import Runner
from tests.unit.test_house import ROOT

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
