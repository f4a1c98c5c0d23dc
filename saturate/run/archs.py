"""`python -m scripts.archs [PATTERN]`: what --arch takes, as lines of task, name and side of the images, pixels.

PATTERN may have * and ?; else it is a part of the name, such as resnet26. With a dot in it, the tags of timm's
published weights are listed too: timm/resnet50.a1_in1k is --arch timm/resnet50 --weights a1_in1k.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import cast

from saturate.contracts import UserError
from saturate.models import Registry, Unusable
from saturate.run.program import Parser
from saturate.system.exit_codes import of_program
from saturate.tasks import TASKS, kind_named


def listed(pattern: str) -> int:
    """Print a line for each network whose name fits; return 0. Raises UserError where none does."""
    shape = pattern if set("*?") & set(pattern) else f"*{pattern}*"
    lines = 0
    for task in TASKS:
        kind = kind_named(task)
        others = [
            cast("Registry", import_module(each)) for each in kind.others.values()
        ]
        for registry in (kind.registry, *others):
            try:
                names = registry.names()
            except Unusable as error:
                print(f"archs: {error}", file=sys.stderr)
                continue
            for name in names:
                tagged = "." in name and "." not in pattern
                if fnmatchcase(name, shape) and not tagged:
                    print(f"{task:<15} {name:<45} {registry.native(name).size}")
                    lines += 1
    if not lines:
        raise UserError(
            f"no network is called {shape}; without a pattern all are listed"
        )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 2 where no name fits, 130 on Ctrl-C."""
    parser = Parser("archs", __doc__)
    parser.add_argument("pattern", nargs="?", default="", help="default: all networks")
    options = parser.parse_args(arguments)
    return of_program("archs", lambda: listed(options.pattern))
