"""--help shows what most runs need, and what others' users type is answered with our flag."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import yaml

from saturate.__main__ import COMMANDS, main, usage
from saturate.contracts import UserError
from saturate.settings import help
from saturate.settings.config import GROUP_OF, parse
from tests.unit.test_house import ROOT

FLAG = re.compile(r"--([a-z][a-z-]*)")
OF_TORCHRUN = {"nproc-per-node", "standalone", "help-all"}
PAGE = ROOT / "docs" / "recipes.md"
TIMMS = ROOT / "tests" / "unit" / "timm_args.yaml"
DETAILS = re.compile(
    "kd_|naflex_|train_size_random|train_size_schedule_|lr_noise_|lr_cycle_decay|(distill|task)_loss_weight"
)
"""Keys of timm that do nothing without another one, which is answered."""


def test_help_shows_twenty_flags_before_anything_is_imported() -> None:
    shown = re.findall(r"^  --([a-z-]+) ", help.HELP, re.MULTILINE)
    assert len(shown) == len(set(shown)) == 20
    begin = "sys.argv = ['train.py', '--help']; sys.path.insert(0, '.'); from saturate.settings import preflight"
    begin += "; preflight.begin('x')"
    words = [sys.executable, "-X", "importtime", "-c", f"import sys; {begin}"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0 and told.stdout == help.HELP
    assert max(map(len, help.HELP.splitlines())) <= 80
    imported = {line.split("|")[-1].strip() for line in told.stderr.splitlines()}
    assert (
        "saturate.settings.help" in imported
        and not {"torch", "numpy", "pydantic"} & imported
    )


def test_a_python_without_the_packages_is_told_of_the_one_that_has_them() -> None:
    words = [sys.executable, "-S", "train.py", "--data", "x"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    (line,) = told.stderr.splitlines()
    assert told.returncode == 2 and ".venv/bin/activate" in line


def test_every_setting_is_explained_before_torch_is_imported() -> None:
    words = [sys.executable, "-X", "importtime", "train.py", "--help-all"]
    narrow = os.environ | {"COLUMNS": "80"}
    told = subprocess.run(words, cwd=ROOT, env=narrow, capture_output=True, text=True)
    assert told.returncode == 0 and "classification, detection" in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80
    imported = {line.split("|")[-1].strip() for line in told.stderr.splitlines()}
    assert "saturate.settings.config" in imported and "torch" not in imported


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"train", "predict"}))
def test_the_help_of_a_program_fits_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["saturate", name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().out
    assert ended.value.code == 0 and "--help" in said
    assert max(map(len, [*said.splitlines(), *usage().splitlines()])) <= 80


def test_flags_that_are_named_are_there() -> None:
    texts = [
        help.HELP,
        *help.OURS.values(),
        *help.DIFFERENT.values(),
        *help.NEEDLESS.values(),
        *help.ABSENT.values(),
        help.answer("photos"),
    ]
    named = {flag for text in texts for flag in FLAG.findall(text)} - OF_TORCHRUN
    assert {flag.replace("-", "_") for flag in named} <= GROUP_OF.keys()
    assert (
        not {
            name.replace("-", "_")
            for name in (*help.OURS, *help.NEEDLESS, *help.ABSENT)
        }
        & GROUP_OF.keys()
    )


def rows() -> list[list[str]]:
    """Return the cells of the tables of recipes.md that have their flags first and ours last."""
    lines = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    cells = [line.strip("|").split("|") for line in lines]
    return [row for row in cells if len(row) == 3 and "`--" in row[-1]]


def test_the_dictionary_has_our_flags_and_knows_theirs() -> None:
    found = rows()
    assert len(found) > 40
    ours = {flag for row in found for flag in FLAG.findall(row[-1])}
    assert not {flag for flag in ours if flag.replace("-", "_") not in GROUP_OF}
    theirs = {flag for row in found for cell in row[:2] for flag in FLAG.findall(cell)}
    known = {
        flag
        for flag in theirs
        if flag.replace("-", "_") in GROUP_OF or help.answer(f"--{flag}")
    }
    assert not theirs - known


def refused(words: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        parse(words)
    return str(caught.value)


def test_the_arguments_of_a_run_of_timms_are_answered() -> None:
    first, same, *others = refused(["--config", f"{TIMMS}"]).splitlines()
    assert "is of another program; write a preset" in first
    listed = set(same.removeprefix("the same here: ").split(", "))
    assert {"batch_size", "epochs", "lr"} < listed
    said = {line.split(" ")[0]: line for line in others}
    assert "timm turns it off" in said["color_jitter"]
    absent = {name for name, line in said.items() if " has no counterpart" in line}
    assert absent == {"cooldown_epochs", "drop", "opt_betas"}
    idle = {"clip_mode", "decay_epochs", "lr_base", "remode", "scale", "train_split"}
    assert not idle & (listed | said.keys())
    keys = yaml.safe_load(TIMMS.read_text())
    for key in keys.keys() - GROUP_OF.keys():
        assert DETAILS.match(key) or help.answer(f"--{key}"), key


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--scale 0.08 1.0", "--scale is --crop-scale LOW HIGH here"),
        ("--tta 0", "another program's is --tta flip"),
        ("--lr 0.1 0.2", "0.2: a path needs a flag"),
    ],
)
def test_a_flag_that_means_something_else_there(words: str, said: str) -> None:
    assert said in refused(words.split())


def test_several_flags_of_timms_are_answered_a_line_each() -> None:
    """Whole, also short ones, and no words that are their values."""
    words = "--model a -b 128 --opt-betas 0.9 -0.5 --in-chans 3 --lr-base 0.1 --drop 0.2 --aa ''"
    first, *said = refused(words.split()).splitlines()
    assert "7 are unknown; --help-all" in first
    assert [line.split(" ")[0] for line in said] == re.findall("-+[a-z-]+", words)
    assert "leave 3 out" in said[3] and "root with AdamW" in said[4]
    assert not any("characters) ..." in line for line in said)
