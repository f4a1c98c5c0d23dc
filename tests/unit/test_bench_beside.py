"""The benchmark of loaders beside each other: its lines, and a loader that fails."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import beside
from tests.end_to_end.runs import Runner


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A set of 1,024 links to one small image."""
    folder = tmp_path / "train" / "a"
    folder.mkdir(parents=True)
    first = folder / "0.jpg"
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(first)
    for number in range(1, 2 * beside.BATCH):
        (folder / f"{number}.jpg").symlink_to(first)
    return tmp_path


FORKED = """
import multiprocessing, sys
forks = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda _: forks
from benchmarks import beside
beside.WARM_UP_S = beside.QUEUED_S = 0.1
beside.BATCH = 8
sys.exit(beside.main(sys.argv[1:]))
"""
"""The program, without 15 s of imports in each of its processes."""


def test_loaders_run_beside_each_other_and_one_that_fails_is_a_line(
    data: Path, runner: Runner
) -> None:
    words = (data, "torchvision:1+synthetic:1", "none:1", "--seconds", 0.5)
    done = runner.python("-c", FORKED, *words)
    assert done.wait() == 2
    rate = r"([\d,]+)"
    line = rf"synthetic:1 {rate}  torchvision:1 {rate}  in all {rate} img/s\n"
    found = re.fullmatch(line, done.out)
    assert found is not None, done.out
    figures = [int(text.replace(",", "")) for text in found.groups()]
    assert abs(figures[0] + figures[1] - figures[2]) <= 1 and min(figures) > 0
    assert done.err.splitlines()[-1].startswith("beside: a loader has failed")
