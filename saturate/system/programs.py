"""How a user starts another program of the project, for the commands that a program offers."""

from __future__ import annotations

import shlex
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def program(name: str) -> str:
    """Return the words that start train.py, or the program of that name in scripts/, from this folder.

    Of an installed package that is its command; a checkout's files may be started from any folder.
    """
    if not (CHECKOUT / "train.py").exists():
        return f"saturate {name}"
    file = "train.py" if name == "train" else f"scripts/{name}.py"
    if Path.cwd() != CHECKOUT:
        return shlex.join(["python", str(CHECKOUT / file)])
    return f"python {file}" if name == "train" else f"python -m scripts.{name}"
