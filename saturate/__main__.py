"""`saturate COMMAND`, `python -m saturate COMMAND` and `torchrun ... -m saturate train`."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module

from saturate.system import exit_codes

COMMANDS = {
    "why": "says why a training program, anybody's, is slow",
    "train": "trains a network, or with --evaluate validates one",
    "predict": "says what a trained network says of files",
    "doctor": "says what is installed and works here, and what to change first",
    "tune": "finds the fastest settings that keep the recipe",
    "photos": "says what is wrong with photos, on one page and in a list",
    "pack": "puts images of any source into an LMDB, tar shards, Arrow or folders",
    "try": "shows a page on which a photo is dropped, and answers come back",
    "export": "writes a trained network as one file, for other programs",
    "compare": "says whether one run is slower than another, and which stage is",
    "archs": "lists the networks",
    "imagenet": "makes class folders of ImageNet as it is published",
}
"""Command -> what it does. Its program is the module of that name in saturate/run/; `predict` is `train --predict`."""
ELSEWHERE = {"why": "saturate.why.launch", "try": "saturate.run.try_page"}
"""Command -> its program, of the others."""


def usage() -> str:
    """Return what --help prints."""
    lines = [f"  {name:10}{phrase}" for name, phrase in COMMANDS.items()]
    return "\n".join(["usage: saturate COMMAND [FLAG VALUE ...]", "", *lines])


def refuse(name: str) -> int:
    """Raise UserError, which names the commands that there are."""
    from saturate.settings.cli import one_of  # which imports pydantic

    one_of("COMMAND", name, COMMANDS)
    return exit_codes.MISTAKE


def main() -> int:
    """Run the command that the first word names; return its exit code, 2 where there is no such command."""
    name, *words = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name not in COMMANDS:
        return exit_codes.of_program("saturate", partial(refuse, name))
    if name == "predict":
        name, words = "train", ["--predict", *words]
    sys.argv[1:] = words
    program = import_module(ELSEWHERE.get(name, f"saturate.run.{name}"))
    if name == "train":
        program.program()
    code: int = program.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
