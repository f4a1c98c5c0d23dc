"""The entry point of the Docker image: caches of a user's own in a shared folder, and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import entry_point
from tests.end_to_end.runs import Process, Runner, free_port, until


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder as the image has it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def started(runner: Runner, shared: Path, *arguments: str, **variables: str) -> Process:
    """Start the entry point with PyTorch imported already; its ranks are programs of their own."""
    environment = {**os.environ, "SATURATE_CACHES": str(shared), **variables}
    for name in {*entry_point.CACHES} - {*variables}:
        environment.pop(name, None)
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return replace(runner, env=environment).python(entry_point.__file__, *arguments)


def others(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid() + 1
    own.with_name(str(uid)).mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: uid)


def linked(own: Path, _: pytest.MonkeyPatch) -> None:
    own.with_name("elsewhere").mkdir(mode=0o700)
    own.symlink_to("elsewhere")


def not_sticky(own: Path, _: pytest.MonkeyPatch) -> None:
    own.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (others, "made by uid"),
        (linked, "with mode 12"),
        (not_sticky, "chmod +t"),
    ],
)
def test_a_folder_that_others_may_write_is_refused(
    prepare: Callable[[Path, pytest.MonkeyPatch], None],
    told: str,
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(shared / str(os.getuid()), monkeypatch)
    monkeypatch.setenv("SATURATE_CACHES", str(shared))
    monkeypatch.setattr(os, "execvp", lambda *_: pytest.fail("it was started"))
    assert entry_point.main(["true"]) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1


def test_a_command_of_the_image_has_the_caches(runner: Runner, shared: Path) -> None:
    show = "import os; print(*(os.environ[name] for name in ('XDG_CACHE_HOME', 'TRITON_CACHE_DIR', 'USER')))"
    python = Path(sys.executable).name
    own = shared / str(os.getuid())
    for _ in range(2):
        words = python, "-c", show
        process = started(runner, shared, *words, TRITON_CACHE_DIR="elsewhere").done()
        assert process.out.split() == [str(own), "elsewhere", f"uid-{os.getuid()}"]
        assert own.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("code", [143, 2])
def test_a_signal_is_the_exit_code(
    runner: Runner, shared: Path, tmp_path: Path, code: int
) -> None:
    """That of SIGTERM, but where a rank cannot save (2); the ranks hear the signal itself."""
    number = signal.SIGUSR1
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, signal, time\n"
        f"def end(number, _): pathlib.Path({str(ended)!r}).write_text(str(number)); exit({code})\n"
        f"signal.signal({int(number)}, end); pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    )
    process = started(runner, shared, "--nproc-per-node", "1", str(program))
    until(begun.exists, 60, "a rank")
    process.send(number)
    assert process.wait() == code and "Traceback" not in process.err
    assert ended.read_text() == str(int(number))


def test_the_first_ranks_exit_code_is_handed_on(
    runner: Runner, shared: Path, tmp_path: Path
) -> None:
    """Rank 0 would take longer, and end with another one."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\ntime.sleep(60) if os.environ['RANK'] == '0' else None\n"
        "os.kill(os.getpid(), 9)"
    )
    process = started(runner, shared, "--nproc-per-node", "2", str(program))
    assert process.wait() == 137 and "Traceback" not in process.err
    assert "entry point: rank 1 failed first, exit code 137" in process.err


@pytest.mark.parametrize(("code", "starts"), [(1, 2), (2, 1)])
def test_a_mistake_is_started_once(
    runner: Runner, shared: Path, tmp_path: Path, code: int, starts: int
) -> None:
    """--max-restarts is for what may pass: a mistake, and a loss that is not finite, would come again."""
    program = tmp_path / "program.py"
    program.write_text(f"print('started', flush=True); exit({code})")
    words = "--nproc-per-node", "1", "--max-restarts", "1", str(program)
    process = started(runner, shared, *words)
    assert process.wait() == code
    assert process.out.split() == ["started"] * starts


def test_hosts_meet_as_torchruns_variables_say(
    runner: Runner, shared: Path, tmp_path: Path
) -> None:
    """Kubeflow's trainer gives these to its pods, and no flag."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], flush=True)"
    )
    meet = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
    }
    meet["PET_MASTER_PORT"] = str(free_port())
    pods = [
        started(runner, shared, str(program), **meet, PET_NODE_RANK=str(rank))
        for rank in range(2)
    ]
    assert {pod.wait() for pod in pods} == {0}
    assert [pod.out.split() for pod in pods] == [["0", "2"], ["1", "2"]]
