"""`python -m benchmarks SUITE [flags]`: throughput tables.

SUITE --help lists a suite's flags; --output FOLDER again goes on.
"""

from __future__ import annotations

import shlex
import sys
import time
from importlib import import_module
from pathlib import Path

# also when it is started as a file
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from benchmarks._show import show
from benchmarks._suite import Suite, run
from saturate.contracts import UserError, one_line
from saturate.run.trial import ending_on_signals
from saturate.settings.cli import flags, one_of
from saturate.system.urls import taken

SUITES = {
    "train": "benchmarks.train",
    "max-batch": "benchmarks.max_batch",
    "soak": "benchmarks.soak",
    "loader": "benchmarks.loader",
}
"""name -> module with a SUITE, imported when asked for."""


def suite_of(name: str) -> Suite:
    """Return the suite of that name. Raises UserError with the known names."""
    suite: Suite = import_module(SUITES[one_of("SUITE", name, SUITES)]).SUITE
    return suite


def with_flags(argv: list[str]) -> list[str]:
    """Return the arguments with all that follows a bare '--', flags of train.py, as the one value of
    --flags.
    """
    at = argv.index("--") if "--" in argv else len(argv)
    behind = argv[at + 1 :]
    return argv[:at] + ([f"--flags={shlex.join(behind)}"] if behind else [])


def main(argv: list[str]) -> int:
    """Return 0; 1 when a point failed or none has a figure; 2 for a user's mistake; 130 on an interrupt."""
    if not argv or argv[0] in ("-h", "--help"):
        print(f"{__doc__}\n")
        for name in SUITES:
            print(f"  {name:14}{suite_of(name).about}")
        return 0
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
        command = shlex.join(["python", "-m", "benchmarks.bench", *argv])
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
