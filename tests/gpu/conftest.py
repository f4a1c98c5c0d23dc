"""Tests that need a CUDA device; with one a skip is a failure, but for images that are not there."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance.fixtures import *  # noqa: F403
from tests.conformance.fixtures import SAMPLES, parametrise
from tests.end_to_end.runs import Runner, importable

HERE = Path(__file__).parent
CUDA = torch.device("cuda", 0)
LOCK = Path(tempfile.gettempdir(), f"saturate-tests-gpu-{os.getuid()}.lock")
"""Shared by the tests that use the device; one that asks how much memory is in use has it alone."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise(metafunc, CUDA)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("gpu")
            if not torch.cuda.is_available():
                item.add_marker(absent)
    # else all processes wait for them in between
    items.sort(
        key=lambda item: (
            item.path.is_relative_to(HERE)
            and item.get_closest_marker("alone") is not None
        )
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside pytest-timeout's clock
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not item.path.is_relative_to(HERE) or not torch.cuda.is_available():
        return (yield)
    with LOCK.open("w") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
        )
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and torch.cuda.is_available() and "gpu" in item.keywords:
        reason = (
            report.longrepr[2]
            if isinstance(report.longrepr, tuple)
            else str(report.longrepr)
        )
        if SAMPLES not in reason:
            report.outcome, report.longrepr = (
                "failed",
                f"skipped where there is a CUDA device: {reason}",
            )
    return report


@pytest.fixture(scope="session", autouse=True)
def prepared() -> None:
    """CUDA's variables and this process's device, as in every program."""
    if torch.cuda.is_available():
        from saturate.engine.distributed import prepare_process

        prepare_process()


@pytest.fixture
def runner(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """Starts programs that see this process's GPUs and packages, each anew."""
    environment = importable(os.environ) | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = Runner(tmp_path_factory.mktemp("programs"), environment, zygote=None)
    yield found
    found.end()


@pytest.fixture
def device() -> torch.device:
    return CUDA


@pytest.fixture
def deterministic() -> Iterator[None]:
    """cudnn.benchmark times kernels against each other, and picks another in another process."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.benchmark = before
    torch.backends.cudnn.deterministic = False


@pytest.fixture
def world(device: torch.device) -> Iterator[Any]:
    from saturate.engine.distributed import ProcessWorld

    world = ProcessWorld(device)
    with world.own_stream():
        yield world
