"""Programs, `python -m scripts.NAME`."""

import argparse
import sys
import textwrap
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from saturate.system.exit_codes import MISTAKE
from saturate.system.programs import program
from saturate.system.urls import taken
from saturate.system.user_files import local_path


class _Paragraphs(argparse.HelpFormatter):
    """Fills paragraphs; a line that is indented stays one, as in a table."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for is_indented, lines in groupby(text.strip().splitlines(), _is_apart):
            for line in lines if is_indented else [" ".join(lines)]:
                behind = (len(line) - len(line.lstrip()) + 4) * " " * is_indented
                filled += textwrap.wrap(line, width, subsequent_indent=behind) or [""]
        return "\n".join(filled)


def _is_apart(line: str) -> bool:
    return not line or line.startswith(" ")


class Parser(argparse.ArgumentParser):
    """The flags of a program: a mistake is one line and exit code 2, and a Path is of this machine."""

    def __init__(self, name: str, about: str | None) -> None:
        super().__init__(
            prog=name,
            description=about
            and about.replace(f"python -m scripts.{name}", program(name)),
            formatter_class=_Paragraphs,
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
