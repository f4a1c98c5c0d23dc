"""`python -m benchmarks NAME [flags]`: what measures saturate, throughput tables and the programs around them.

NAME --help lists the flags of a suite or a program; a suite with --output FOLDER again goes on.
"""

from __future__ import annotations

import shlex
import sys
import time
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks._show import show
from benchmarks._suite import Suite, run
from saturate.contracts import UserError, one_line
from saturate.run.trial import ending_on_signals, with_flags
from saturate.settings.cli import flags, one_of
from saturate.system.urls import taken

SUITES = {
    "train": "benchmarks.train",
    "max-batch": "benchmarks.max_batch",
    "soak": "benchmarks.soak",
    "loader": "benchmarks.loader",
}
"""Name -> module with a SUITE, imported when asked for."""
PROGRAMS = {
    "published": "the table of a published report, by hand here, and ours",
    "planted": "plants bottlenecks, and sees what a run says of them",
    "pairs": "what `saturate compare` says of pairs of runs, alike and slowed",
    "lists": "the memory of lists of many lines, with a DataLoader's workers",
    "losses": "the losses of many commands, to the last bit",
    "simulate": "what many ranks and samples cost, by formulas",
    "chart": "the rates of a table of `train`, a bar a loader",
    "deaths": "how soon an --unkillable training goes on once a trainer was killed",
    "beside": "loaders beside each other on one GPU, and each alone",
    "progressive": "what progressive JPEGs cost to decode, beside baseline ones",
    "link-set": "many images of few, as links",
    "patch-set": "patches as PNG files and in an LMDB, for `train --task superres`",
    "video-set": "173 videos, which loaders of clips are timed on",
}
"""Name -> what it does. It is the `main` of the module of that name."""


def suite_of(name: str) -> Suite:
    """Return the suite of that name. Raises UserError with the known names."""
    suite: Suite = import_module(SUITES[one_of("NAME", name, SUITES)]).SUITE
    return suite


def main(argv: list[str]) -> int:
    """Return 0; 1 when a point failed or none has a figure; 2 for a user's mistake; 130 on an interrupt."""
    if not argv or argv[0] in ("-h", "--help"):
        print(f"{__doc__}\n")
        about = {name: suite_of(name).about for name in SUITES} | PROGRAMS
        for name, phrase in about.items():
            print(f"  {name:14}{phrase}")
        return 0
    if argv[0] in PROGRAMS:
        program = import_module(f"benchmarks.{argv[0].replace('-', '_')}")
        code: int = program.main(argv[1:])
        return code
    argv = [*map(taken, argv)]  # the table has them
    date = time.strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / f"bench-{argv[0]}-{date}"
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        suite = suite_of(argv[0])
        settings = flags(
            suite.settings, with_flags(argv[1:]), prog=f"bench {suite.name}"
        )
        folder = settings.output or folder
        with ending_on_signals():
            rows = run(suite, settings, folder, lambda line: print(line, flush=True))
        command = shlex.join(["python", "-m", "benchmarks", *argv])
        show(suite, rows, folder, console, command)
    except (UserError, OSError) as mistake:
        print(one_line(f"bench: {mistake}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"bench: interrupted; the same command with --output {shlex.quote(str(folder))} goes on",
            file=sys.stderr,
        )
        return 130
    ends = {row["status"] for row in rows}
    if "ok" not in ends:
        print("bench: no point has a figure", file=sys.stderr)
    return int("ok" not in ends or bool(ends & {"failed", "timeout"}))
