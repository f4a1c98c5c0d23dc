"""Programs, `python -m scripts.NAME`."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from saturate.system.exit_codes import MISTAKE
from saturate.system.programs import program
from saturate.system.urls import taken
from saturate.system.user_files import local_path


class Parser(argparse.ArgumentParser):
    """The flags of a program: a mistake is one line and exit code 2, and a Path is of this machine."""

    def __init__(self, name: str, about: str | None) -> None:
        super().__init__(
            prog=name,
            description=about
            and about.replace(f"python -m scripts.{name}", program(name)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.register("type", Path, _local)

    def parse_args(
        self, args: Iterable[str] | None = None, namespace: object = None
    ) -> Any:
        """Return the options of a command line, whose URLs have no secrets."""
        words = sys.argv[1:] if args is None else args
        return super().parse_args([*map(taken, words)], namespace)

    def error(self, message: str) -> NoReturn:
        # here, since it imports NumPy, which the doctor is to look at
        from saturate.contracts import one_line

        self.exit(
            MISTAKE,
            one_line(f"{self.prog}: {message}; --help lists what it takes") + "\n",
        )


def _local(name: str) -> Path:
    try:
        return local_path(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
