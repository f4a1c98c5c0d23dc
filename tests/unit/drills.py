"""Drills: a copy of the project's tree, which something is added to, and programs that run in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.unit.test_house import ROOT, files


def copied(tree: Path) -> Path:
    """Copy every file of the project to the new folder `tree`; return it."""
    for name in files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    return tree


def add_line(path: Path, before: str, line: str) -> None:
    """Write `line` above the first place that has `before`."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) >= 1
    path.write_text(text.replace(before, f"{line}\n{before}", 1), encoding="utf-8")


def ran(tree: Path, *words: object) -> str:
    """Run `python WORDS` in the tree, without a GPU; return its output. Its exit code must be 0."""
    here = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=tree,
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout
