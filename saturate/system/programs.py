"""How a user starts another program of the project, for the commands that a program offers."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def program(name: str) -> str:
    """Return the words that start train.py, or the program of that name in scripts/, from this folder.

    In a checkout's folder they are those of its files, elsewhere the command that `pip install .` made.
    """
    if Path.cwd() != CHECKOUT or not Path("train.py").exists():
        return f"saturate {name}"
    return "python train.py" if name == "train" else f"python -m scripts.{name}"
