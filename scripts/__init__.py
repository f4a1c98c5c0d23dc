"""Programs, `python -m scripts.NAME`. While the imports of one run, Ctrl-C has nothing to tidy up and ends it
without a traceback."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from system.user_files import local_path


class Parser(argparse.ArgumentParser):
    """The flags of a program: a mistake is one line and exit code 2, and a Path is of this machine."""

    def __init__(self, name: str, about: str | None) -> None:
        super().__init__(
            prog=name,
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.register("type", Path, _local)

    def error(self, message: str) -> NoReturn:
        # here, since it imports NumPy, which the doctor is to look at
        from contracts import one_line

        self.exit(
            2, one_line(f"{self.prog}: {message}; --help lists what it takes") + "\n"
        )


def exit_code(name: str, work: Callable[[], int], *mistakes: type[Exception]) -> int:
    """Return what work() returns; 2 for a UserError, one of `mistakes` or a failing file, 130 for Ctrl-C.

    A mistake is one line on stderr.
    """
    from contracts import UserError, one_line  # late: doctor imports nothing large

    try:
        return work()
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        message = str(error)
    except OSError as error:
        message = one_line(
            f"{error.filename}: {error.strerror}" if error.filename else str(error)
        )
    except mistakes as error:
        message = one_line(str(error))
    print(f"{name}: {message}", file=sys.stderr)
    return 2


def _local(name: str) -> Path:
    try:
        return local_path(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    # main is defined behind the imports
    if not hasattr(sys.modules["__main__"], "main"):
        os._exit(130)
    signal.default_int_handler(number, frame)


# "-m" until Python knows the program's file: not in tests, nor in processes of a program. Behind a shell's &
# Ctrl-C is not for it
if (
    sys.argv[:1] == ["-m"]
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _interrupt)
