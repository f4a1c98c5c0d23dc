"""The benchmark of loaders beside each other: its lines, and a loader that fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import beside
from saturate.contracts import UserError


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


def test_loaders_run_alone_and_beside_each_other(data: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "beside", str(data)]
    words = ["torchvision:1", "torchvision:1+synthetic:1", "--seconds", "2"]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, check=True
    )
    alone, both = done.stdout.splitlines()
    rate = r"([\d,]+)"
    one = re.fullmatch(rf"torchvision:1 {rate}  in all {rate} img/s", alone)
    two = re.fullmatch(
        rf"synthetic:1 {rate}  torchvision:1 {rate}  in all {rate} img/s", both
    )
    assert one is not None and two is not None
    assert one[1] == one[2]
    figures = [int(text.replace(",", "")) for text in two.groups()]
    assert abs(figures[0] + figures[1] - figures[2]) <= 1 and min(figures) > 0


def test_a_loader_that_fails_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a loader has failed"):
        beside.beside([("torchvision", 1)], tmp_path, 1.0)
