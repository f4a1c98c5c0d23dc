"""For all tests: each process of pytest-xdist, with the programs that its tests start, has cores of its own.

Where they share them, threads of a training run on the CPU burn the time in which they wait for one that has
no core, by their stacks in oneDNN's convolutions backwards (two processes on two cores: 255 s of CPU time
instead of 47).
"""

import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.disk import unsynced
from tests.left import left_after
from tests.own import own_schedule, own_signals
from tests.sweeps import is_sweep

os.fsync = unsynced

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch
    NUMBER, COUNT, CORES = (
        int(os.environ["PYTEST_XDIST_WORKER"][2:]),
        int(os.environ["PYTEST_XDIST_WORKER_COUNT"]),
        os.sched_getaffinity(0),
    )
    os.sched_setaffinity(0, sorted(CORES)[NUMBER % len(CORES) :: COUNT])

# behind a shell's &; programs that tests start would inherit it and not hear Ctrl-C
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# of a machine, not of a test
settings.register_profile(
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")

KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "VIRTUAL_ENV",
    "PYTHONPATH",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="also run the sweeps of tests/sweeps.py"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    for item in items:
        if is_sweep(item.nodeid):
            item.add_marker("sweep")
    asked_for = (
        config.getoption("--all")
        or config.getoption("-m")
        or any("::" in argument for argument in config.args)
    )
    if not asked_for:
        config.hook.pytest_deselected(
            items=[item for item in items if item.get_closest_marker("sweep")]
        )
        items[:] = [item for item in items if not item.get_closest_marker("sweep")]


LEFT_S = 20.0
"""In which what a test has started must have ended, on a machine that does other things too."""


def started() -> set[Any]:
    """The processes that were forked here, and the threads that the end of this process would wait for."""
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    return {*multiprocessing.active_children(), *threads}


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """What a test leaves running holds the files of this process open, and takes the cores of later tests."""
    before = started()
    with own_schedule(), own_signals():
        yield
    left = left_after(LEFT_S, lambda: started() - before)
    for process in {*left} & {*multiprocessing.active_children()}:
        process.kill()
    assert not left, f"the test has left {left}"


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
    from tests.end_to_end.runs import zygote_of

    with zygote_of(environment) as process:
        yield process


@pytest.fixture
def runner(
    tmp_path_factory: pytest.TempPathFactory,
    zygote: subprocess.Popen[str],
    environment: dict[str, str],
) -> Iterator[Any]:
    """tests.end_to_end.runs.Runner, for `runner.python(...)`, with this process's variables."""
    from tests.end_to_end.runs import (
        Runner,
        importable,
    )  # with numpy, which few of the tests need

    found = Runner(tmp_path_factory.mktemp("programs"), importable(environment), zygote)
    yield found
    found.end()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks lose time to threads of one operator that wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
