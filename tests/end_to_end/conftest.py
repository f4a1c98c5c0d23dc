"""A small image folder, and train.py to run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.runs import ROOT, Runner, draw

CLASSES = ("blue", "green", "red", "white")
KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("pictures") / "data", classes=CLASSES, train=24, val=11)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a run sees of ours: a manifest cache of the session, and no CUDA device, whatever this machine
    has.
    """
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {
        **kept,
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "80",
    }


@pytest.fixture(scope="session")
def zygote(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.end_to_end.zygote"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()  # a process that a test has forked may hold stdin open: its end never comes


@pytest.fixture
def train(tmp_path: Path, environment: dict[str, str], zygote: subprocess.Popen[str]) -> Iterator[Runner]:
    runner = Runner(tmp_path, environment, zygote)
    yield runner
    runner.end()
