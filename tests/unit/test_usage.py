"""--help shows what most runs need, and what others' users type is answered with our flag."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import usage
from config import GROUP_OF, parse
from contracts import UserError
from tests.unit.test_house import ROOT

FLAG = re.compile(r"--([a-z][a-z-]*)")
OF_TORCHRUN = {"nproc-per-node", "standalone", "help-all"}


def test_help_shows_twenty_flags_before_anything_is_imported() -> None:
    shown = re.findall(r"^  --([a-z-]+) ", usage.HELP, re.MULTILINE)
    assert len(shown) == len(set(shown)) == 20
    begin = "sys.argv = ['train.py', '--help']; sys.path.insert(0, '.'); import startup; startup.begin('x')"
    words = [sys.executable, "-X", "importtime", "-c", f"import sys; {begin}"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0 and told.stdout == usage.HELP
    imported = {line.split("|")[-1].strip() for line in told.stderr.splitlines()}
    assert "usage" in imported and not {"torch", "numpy", "pydantic"} & imported


def test_every_setting_is_explained_before_torch_is_imported() -> None:
    words = [sys.executable, "-X", "importtime", "train.py", "--help-all"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0 and "--predict-format" in told.stdout and "classification" in told.stdout
    imported = {line.split("|")[-1].strip() for line in told.stderr.splitlines()}
    assert "config" in imported and "torch" not in imported


def test_flags_that_are_named_are_there() -> None:
    texts = [usage.HELP, *usage.OURS.values(), *usage.NEEDLESS.values(), usage.answer("photos")]
    named = {flag for text in texts for flag in FLAG.findall(text)} - OF_TORCHRUN
    assert {flag.replace("-", "_") for flag in named} <= GROUP_OF.keys()
    assert not {name.replace("-", "_") for name in (*usage.OURS, *usage.NEEDLESS)} & GROUP_OF.keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "resnet18"], "flags: --model is --arch NAME here"),
        (["--aa", "ra"], "flags: --aa is --auto-augment NAME here"),
        (["-b", "32"], "flags: -b is --batch-size N here"),
        (["--num_classes=5"], "flags: --num_classes=5: the classes are counted in --data; leave it out"),
        (["photos"], "flags: photos: a path needs a flag, --data FOLDER"),
        (["--lrr", "1"], "flags: unknown flag '--lrr' (did you mean --lr"),
    ],
)
def test_what_others_type(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse(words)
    assert str(error.value).startswith(said)
