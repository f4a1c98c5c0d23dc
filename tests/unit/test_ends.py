"""What libraries raise when a machine lacks something, as one line; and Ctrl-C in the middle of an import."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from saturate.contracts import UserError
from saturate.system.exit_codes import line_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("a mistake"), "a mistake"),
        (UserError("of\ntwo \x1b[31m lines"), r"of\ntwo \x1b[31m lines"),
        (UserError(f"got '{900_000 * 'x'}'; leave it out"), "x'; leave it out"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENOSPC, "No space left on device"), "a disk is full"),
        (ImportError("libx.so: failed to map segment from shared object"), "ulimit -v"),
        (
            OSError(errno.EIO, "Input/output error", "/data"),
            "/data: Input/output error",
        ),
        (
            RuntimeError("x\nInvalidCxxCompiler: No working C++ compiler found"),
            "C++ compiler",
        ),
        (
            RuntimeError("Failed to find C compiler. Please specify via CC"),
            "C compiler",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_that_are_the_machines(error: Exception, said: str) -> None:
    line = line_of(error)
    assert line is not None and said in line and "\n" not in line and len(line) < 600


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes differ"), ValueError("x"), OSError("no number")]
)
def test_what_nobody_has_thought_of_keeps_its_traceback(error: Exception) -> None:
    assert line_of(error) is None


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_what_slurm_sends_before_the_loop_listens(number: signal.Signals) -> None:
    """It ends the program as SIGTERM does: the job's script requeues that."""
    begin = (
        "import os, time; from saturate.settings import preflight; preflight.begin('x')"
    )
    code = f"{begin}; os.kill(os.getpid(), {number:d})"
    ended = subprocess.run([sys.executable, "-c", f"{code}; time.sleep(9)"], cwd=ROOT)
    assert ended.returncode == -signal.SIGTERM


def test_a_program_whose_streams_are_closed(tmp_path: Path) -> None:
    """Its first file is not one of them, and what it says goes nowhere."""
    code = (
        "import sys; from saturate.settings import preflight; preflight.begin('x'); "
        "file = open(sys.argv[1], 'w'); print('said', flush=True); "
        "print('said', file=sys.stderr, flush=True); print(file.fileno() > 2, sys.stdin.read(), file=file)"
    )
    closed = f'"{sys.executable}" -c "$0" "$1" <&- >&- 2>&-'
    subprocess.run(
        ["sh", "-c", closed, code, str(tmp_path / "a")], check=True, cwd=ROOT
    )
    assert (tmp_path / "a").read_text() == "True \n"
