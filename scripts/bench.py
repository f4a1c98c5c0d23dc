"""`python -m scripts.bench SUITE [flags]`: throughput tables.

SUITE --help lists a suite's flags; --output FOLDER again goes on.
"""

from __future__ import annotations

import shlex
import sys
import time
from importlib import import_module
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # also when it is started as a file

from benchmarks import _show
from benchmarks._flags import asked
from benchmarks._process import ending_on_signals
from benchmarks._suite import Suite, merged, run, value
from contracts import UserError, one_line
from settings.cli import one_of

SUITES = {
    "train": "benchmarks.train",
    "max-batch": "benchmarks.max_batch",
    "soak": "benchmarks.soak",
    "loader": "benchmarks.loader",
}
"""name -> module with a SUITE, imported when asked for."""


def suite_of(name: str) -> Suite:
    """Return the suite of that name. Raises UserError with the known names."""
    found: Suite = import_module(SUITES[one_of("SUITE", name, SUITES)]).SUITE
    return found


def _own(argv: list[str]) -> list[str]:
    """Return the arguments with all that follows a bare '--', flags of train.py, as the one value of
    --flags."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at] + [f"--flags={shlex.join(argv[at + 1 :])}"] * (at + 1 < len(argv))


def main(argv: list[str]) -> int:
    """Return 0; 1 when a point failed or none has a figure; 2 for a user's mistake; 130 on an interrupt."""
    folder: Path | None = None
    try:
        from rich.console import Console

        if not argv or argv[0] in ("-h", "--help"):
            print(f"{__doc__}\n")
            for name in SUITES:
                print(f"  {name:14}{suite_of(name).about}")
            return 0
        console = Console(width=None if sys.stdout.isatty() else 200)
        suite = suite_of(argv[0])
        settings = asked(suite.settings, _own(argv[1:]), prog=f"bench {suite.name}")
        folder = (
            settings.output
            or Path("runs") / f"bench-{suite.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        )
        with ending_on_signals(), _show.progress(console, suite.name) as progress:
            rows = run(suite, settings, folder, progress)
        _show.show(suite, rows, folder, console)
        shown = suite.derive(merged(rows))
        if not any(
            row["status"] == "ok" and value(row, suite.rate) is not None
            for row in shown
        ):
            print(
                f"bench: no point has a figure ({', '.join(dict.fromkeys(row['status'] for row in shown))})",
                file=sys.stderr,
            )
            return 1
        return int(any(row["status"] in ("failed", "timeout") for row in rows))
    except (UserError, OSError) as mistake:
        print(one_line(f"bench: {mistake}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if folder is None:
            print("bench: interrupted before anything was measured", file=sys.stderr)
            return 130
        name = shlex.quote(str(folder))
        file = folder / "results.jsonl"
        some = file.exists() and file.stat().st_size
        table = (
            f"; python -m scripts.report {name} makes the table of what is there"
            if some
            else ""
        )
        print(
            f"bench: interrupted; the same command with --output {name} goes on{table}",
            file=sys.stderr,
        )
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
