"""What libraries raise when a machine lacks something, as one line; and Ctrl-C in the middle of an import."""

from __future__ import annotations

import builtins
import errno
import os
import signal
from typing import Any

import pytest
from torch._inductor.exc import InvalidCxxCompiler

from contracts import UserError
from engine.ends import line_of
from loaders._dali import import_dali
from processes import uninterrupted


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("a mistake"), "a mistake"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (ImportError("libx.so: failed to map segment from shared object"), "ulimit -v"),
        (OSError(errno.EIO, "Input/output error", "/data"), "/data: Input/output error"),
        (RuntimeError("x\nInvalidCxxCompiler: No working C++ compiler found"), "C++ compiler"),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), "C compiler"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_that_are_the_machines(error: Exception, said: str) -> None:
    line = line_of(error)
    assert line is not None and said in line and "\n" not in line


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("x"), OSError("no number")])
def test_what_nobody_has_thought_of_keeps_its_traceback(error: Exception) -> None:
    assert line_of(error) is None


def test_ctrl_c_while_dali_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no reason to say that DALI is not installed."""
    whole = builtins.__import__

    def interrupted(name: str, *more: Any) -> Any:
        if name.startswith("nvidia"):
            os.kill(os.getpid(), signal.SIGINT)
            raise ImportError("initialization raised unreported exception")
        return whole(name, *more)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_dali()


def test_an_import_that_nobody_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ImportError, match="missing"), uninterrupted():
        raise ImportError("missing")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_compiler_that_is_not_there() -> None:
    """In torch's own words, behind those of torch.compile's backend."""
    line = line_of(RuntimeError(f"backend='inductor' raised:\n{InvalidCxxCompiler()}"))
    assert line is not None and line.startswith("--compile: torch finds no C++ compiler, which CXX may name")
