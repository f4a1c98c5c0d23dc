"""The line and the exit code of an error that has ended a run, where it is a machine's or a user's."""

from __future__ import annotations

import errno

from saturate.contracts import NotFinite, UserError
from saturate.engine.distributed import ProcessWorld
from saturate.engine.ranks import PeerLost

SHORT = {
    "can't start new thread": "ulimit -u and docker's --pids-limit bound the number of threads",
    "can't allocate memory": "the machine has not enough memory",
    "bad_alloc": "the machine has not enough memory",
    "cannot allocate memory": "the machine has not enough memory",
    "failed to map segment": "the machine has not enough memory, or ulimit -v is too low",
    "Too many open files": "ulimit -n bounds them",
    "No space left on device": "a disk is full, that of --output or of temporary files",
}
"""Words in an error's text -> what to do about it."""
COMPILER = {
    "InvalidCxxCompiler": "C++ compiler, which CXX may name",
    "No working C++ compiler": "C++ compiler, which CXX may name",
    "Failed to find C compiler": "C compiler, which CC may name",
}
"""Words in an error of torch.compile's -> what it lacks."""


def code_of(error: Exception, world: ProcessWorld, *, said_by: type[Exception]) -> int:
    """Say what has ended the run in one line, and return its exit code.

    Raises the error again where there is no line for it; one that is `said_by` its own words has one.
    """
    line = str(error) if isinstance(error, said_by) else line_of(error)
    if line is None:
        raise error
    world.complain(f"train.py: {line}")
    if isinstance(error, PeerLost):
        return 1
    return 3 if isinstance(error, NotFinite) else 2


def line_of(error: BaseException) -> str | None:
    """Return the line for an error; None for one that nobody has thought of, which needs its traceback."""
    if isinstance(error, UserError | NotFinite):
        return str(error)
    said = str(error)
    for sign, lacking in COMPILER.items():
        if sign in said:
            return f"--compile: torch finds no {lacking}: apt install g++, or leave --compile away"
    if isinstance(error, MemoryError):
        return "the machine has not enough memory: a smaller --batch-size, or fewer --workers"
    for sign, advice in SHORT.items():
        if sign.lower() in said.lower():
            first = next(
                (
                    line.strip()
                    for line in said.splitlines()
                    if sign.lower() in line.lower()
                ),
                sign,
            )
            return f"{first[:200]}: {advice}"
    # an error of a file, in the system's words where no room has said it better
    if (
        isinstance(error, OSError)
        and error.errno in errno.errorcode
        and error.filename is not None
    ):
        return str(UserError(f"{error.filename}: {error.strerror}"))
    return None
