"""Every exit code of train.py and of the other programs, and who asks for it.

    0        DONE        the work is done: `of_run`, `of_program`
    1        FAILED      contracts.PeerLost: another rank has ended or does not answer (engine/distributed.py, and
                         engine/watch.py and engine/unkillable.py, which leave without an exception); an error that
                         nobody has thought of, with its traceback (Python)
    2        MISTAKE     contracts.UserError: a mistake of the user, or a limit of the machine; models.Unusable;
                         Checkpoints.finish, whose last checkpoint cannot be written or uploaded; Reporter.lost, a
                         file of the run that its storage has not taken; an OSError of a file; a command line that
                         a program's Parser refuses, or a command that there is not (saturate/__main__.py); too
                         low a limit, or a missing package (settings/preflight.py); a rank that never came
                         (engine/unkillable.py), or that nobody has started as one (engine/slurm.py); a cache
                         that is another user's (scripts/entry_point.py)
    3        NOT_FINITE  contracts.NotFinite: a loss (engine/loss_log.py), a weight or a state that was to be saved
                         (engine/checkpoint.py), or an output in an evaluation (Training.require_finite)
    128 + N  of_signal   signal N has asked the run to stop (Training.stopped_by, predict, engine/watch.py): 143 for
                         SIGTERM, SIGUSR1 and SIGUSR2, 130 for Ctrl-C, also before a run or a program has begun

What a rank ends with is handed on by scripts/entry_point.py; docs/cluster.md says what a scheduler does with it. The
doctor's 1 is its verdict, export's that the file computes something else, and compare's 1 a loss and 3 that it cannot
tell: none ends a run.

At its top this file imports nothing large, since it is asked before the first large import.
"""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable

DONE = 0
FAILED = 1
MISTAKE = 2
NOT_FINITE = 3
INTERRUPTED = 128 + signal.SIGINT

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


def of_signal(number: int) -> int:
    """Return the exit code of a process that this signal has ended."""
    return 128 + number


def of_run(*, lost_files: bool) -> int:
    """Return the exit code of a run that has come to its end; `lost_files`: its storage has not taken all of them."""
    return MISTAKE if lost_files else DONE


def of_error(
    error: Exception,
    complain: Callable[[str, int], int],
    *,
    in_its_words: type[Exception],
) -> int:
    """Say what has ended the run in one line, and return its exit code: `complain` has it from the other ranks.

    Raises the error again where there is no line for it; one that is said `in_its_words` has one.
    """
    from saturate.contracts import NotFinite, PeerLost

    line = str(error) if isinstance(error, in_its_words) else line_of(error)
    if line is None:
        raise error
    if isinstance(error, PeerLost):
        return complain(line, FAILED)
    return complain(line, NOT_FINITE if isinstance(error, NotFinite) else MISTAKE)


def of_program(name: str, work: Callable[[], int], *mistakes: type[Exception]) -> int:
    """Return what work() returns; MISTAKE for a UserError, one of `mistakes` or a failing file, INTERRUPTED for
    Ctrl-C. A mistake is one line on stderr.
    """
    from saturate.contracts import UserError, one_line

    try:
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except UserError as error:
        message = str(error)
    except OSError as error:
        message = one_line(
            f"{error.filename}: {error.strerror}" if error.filename else str(error)
        )
    except mistakes as error:
        message = one_line(str(error))
    print(f"{name}: {message}", file=sys.stderr)
    return MISTAKE


def line_of(error: BaseException) -> str | None:
    """Return the line for an error; None for one that nobody has thought of, which needs its traceback."""
    from saturate.contracts import NotFinite, UserError

    if isinstance(error, UserError | NotFinite):
        return str(error)
    message = str(error)
    for sign, lacking in COMPILER.items():
        if sign in message:
            return f"--compile: torch finds no {lacking}: apt install g++, or leave --compile away"
    if isinstance(error, MemoryError):
        return "the machine has not enough memory: a smaller --batch-size, or fewer --workers"
    for sign, advice in SHORT.items():
        if sign.lower() in message.lower():
            first = next(
                (
                    line.strip()
                    for line in message.splitlines()
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
