"""Drills: a copy of the project's tree, which something is added to, and programs that run in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.end_to_end.runs import Runner
from tests.unit.test_house import ROOT, files

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def copied(tree: Path) -> Path:
    """Copy every file of the project to the new folder `tree`; return it."""
    links = [path for path in (ROOT / "saturate").iterdir() if path.is_symlink()]
    for path in (*(ROOT / name for name in files()), *links):
        copy = tree / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy, follow_symlinks=False)
    return tree


def add_line(path: Path, before: str, line: str) -> None:
    """Write `line` above the first place that has `before`."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) >= 1
    path.write_text(text.replace(before, f"{line}\n{before}", 1), encoding="utf-8")


PROGRAM = """
import os, sys
tree, *words = sys.argv[1:]
own = {name.partition(".")[0] for name in os.listdir(tree)}
for name in [name for name in sys.modules if name.partition(".")[0] in own]:
    del sys.modules[name]
sys.path[0] = tree
sys.modules["__main__"].run(words)
"""
"""Runs a command of Python's with the modules of a tree, in a process that has imported the project's."""


def ran(runner: Runner, tree: Path, *words: object) -> str:
    """Run `python WORDS` in the tree; return its output. Its exit code must be 0."""
    process = runner.python("-c", PROGRAM, tree, *words, env=ONE_THREAD, cwd=tree)
    assert process.wait() == 0, process.out + process.err
    return process.out
