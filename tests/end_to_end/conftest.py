"""A small image folder, and train.py to run on it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.runs import Runner, draw

CLASSES = ("blue", "green", "red", "white")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(
        tmp_path_factory.mktemp("pictures") / "data", classes=CLASSES, train=24, val=11
    )


@pytest.fixture(scope="module")
def of_module(
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
    zygote: subprocess.Popen[str],
) -> Iterator[Runner]:
    """Return what runs train.py in a folder that the tests of a file share."""
    runner = Runner(tmp_path_factory.mktemp("shared"), environment, zygote)
    yield runner
    runner.end()


@pytest.fixture
def train(
    tmp_path: Path, environment: dict[str, str], zygote: subprocess.Popen[str]
) -> Iterator[Runner]:
    runner = Runner(tmp_path, environment, zygote)
    yield runner
    runner.end()
