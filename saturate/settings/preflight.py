"""The steps of train.py before its first large import: hear Ctrl-C, answer --help, and look at its limits.
What imports need of the garbage collector is done here too.

This module imports nothing large before --help-all asks for it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from functools import partial
from types import TracebackType
from typing import Any

from saturate.settings.help import HELP
from saturate.system import exit_codes, limits, programs
from saturate.system.urls import taken


def begin(program: str) -> Any:
    """Let Ctrl-C end the program at once, with its exit code; return the handler that was there before.

    Exits with code 2 and one line where a limit is too low to begin, and with 0 once --help or --help-all
    is answered.
    """
    limits.open_streams()
    # what a run keeps of its command, and what trackers do, has no secret
    sys.argv[:] = map(taken, sys.argv)
    # a quarter of the imports' time went to looking for cycles among modules; `imported` ends it
    gc.disable()
    # imports leave nothing to tidy up
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(exit_codes.INTERRUPTED))
    sys.excepthook = partial(_missing, program)
    # what Slurm sends acts as SIGTERM before the loop listens, too: its script requeues what ends so
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))
    asks = {"-h", "--help", "--help-all"} & set(sys.argv[1:])
    if asks:
        # `train.py --help-all | head` closes the pipe
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if asks - {"--help-all"}:
        text = HELP.replace("python train.py", programs.program("train"))
        print(
            text.replace("python -m scripts.archs", programs.program("archs")), end=""
        )
        sys.exit(0)
    if asks:
        # they import no torch either
        from saturate.contracts import UserError
        from saturate.settings.config import parse
        from saturate.tasks import tables

        with contextlib.suppress(UserError):  # train.py says it
            parse(sys.argv[1:], tables())
    if problem := limits.too_low():
        print(f"{program}: {problem}", file=sys.stderr, flush=True)
        sys.exit(exit_codes.MISTAKE)
    return before


def imported() -> None:
    """Let the garbage collector run again, and leave alone what imports have made."""
    # not collected: 390,000 objects that live as long as the process; engine.distributed.leave gives them back
    gc.freeze()
    gc.enable()
    sys.excepthook = sys.__excepthook__


def _missing(
    program: str,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Say in a line that the Python which runs has not the packages, with exit code 2; other errors as ever."""
    if not isinstance(error, ModuleNotFoundError):
        sys.__excepthook__(kind, error, trace)
        return
    remedy = "`. .venv/bin/activate` takes the one that scripts/setup.sh has made"
    problem = f"{program}: {sys.executable} has no package {error.name}; {remedy}"
    print(problem, file=sys.stderr, flush=True)
    os._exit(exit_codes.MISTAKE)
