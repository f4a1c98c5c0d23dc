"""`python -m scripts.report A B`: two folders of scripts.bench side by side, for a person or for CI.

A ratio is beyond noise when the runs of the two do not overlap (bench --repeats 3 or more; one run a point
says nothing of how runs differ), and beyond the tolerance of max-batch when no batch could be the largest of
both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

# also when it is started as a file
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydantic import Field, FiniteFloat
from rich.console import Console
from rich.table import Table

from benchmarks._show import differing
from benchmarks._suite import LEAST, Row, Suite, merged, results, value, versions_of
from contracts import UserError, one_line
from scripts.bench import suite_of
from settings.cli import POSITIONAL, Settings, flags


class Report(Settings):
    """Compare two result folders: B against A."""

    folders: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """A and B."""
    fail_below: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Exit code 1 when a point of B is slower than this share of A's, beyond noise, or has no figure where A
    has one; 2 when no point has a figure in both, or nothing tells noise: it takes bench --repeats 3 or more,
    or max-batch, whose searches say how close they came."""


def read(folder: Path) -> tuple[Suite, list[Row]]:
    """Return the suite of a folder, and its rows. Raises UserError when it is none of a suite."""
    rows = results(folder)
    if not rows:
        raise UserError(f"{folder} has no results of python -m scripts.bench")
    return suite_of(rows[0]["suite"]), rows


def judged(suite: Suite, a: Row, b: Row) -> tuple[float | None, bool | None]:
    """Return how many times as good B is, None when one has no figure, and whether that is beyond noise: the
    ranges do not overlap. None when nothing tells, with fewer than LEAST repeats.
    """
    rows = (a, b)
    before, after = (
        value(row, suite.rate) if row["status"] == "ok" else None for row in rows
    )
    if not before or not after:
        return None, None
    for row in rows:
        if not suite.searches and row["figures"].get("repeats", 0) < LEAST:
            return after / before, None
    first, second = (row["spread"][suite.rate] for row in rows)
    apart = first["max"] < second["min"] or second["max"] < first["min"]
    return after / before, apart


def differences(a: Sequence[Row], b: Sequence[Row]) -> list[str]:
    """Return lines that say in which hardware and versions the rows differ: a ratio across machines says
    little.
    """
    pairs = [(a[0]["hardware"], b[0]["hardware"]), (versions_of(a), versions_of(b))]
    return [
        f"{name} differs: {first.get(name)} / {second.get(name)}"
        for first, second in pairs
        for name in first | second
        if first.get(name) != second.get(name)
    ]


def compared(settings: Report, console: Console) -> int:
    """Print the points of two folders side by side, and return the exit code. Raises UserError."""
    (suite, a), (other, b) = (read(folder) for folder in settings.folders)
    if suite != other:
        raise UserError(f"the folders are of {suite.name} and {other.name}")
    a, b = (list(suite.derive(merged(rows))) for rows in (a, b))
    axes = differing([*a, *b])
    table = Table(*axes, "A", "B", "B / A", "", title=f"{suite.name}: {suite.rate}")
    words = {None: "one run each", True: "beyond noise", False: "within noise"}
    bad, speeds, unjudged = 0, 0, 0
    for row in a:
        pair = next((each for each in b if each["point"] == row["point"]), None)
        speed, beyond = judged(suite, row, pair) if pair else (None, None)
        known = row["status"] == "ok"
        slower = beyond and speed and speed < (settings.fail_below or 0.0)
        bad += bool(slower or (known and speed is None))
        speeds += speed is not None
        unjudged += speed is not None and beyond is None
        table.add_row(
            *(str(row["point"].get(axis)) for axis in axes),
            *(str(value(each, suite.rate)) if each else "-" for each in (row, pair)),
            f"{speed:.3f}" if speed else "-",
            words[beyond] if speed else "no pair",
        )
    console.print(table)
    for line in differences(a, b):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if settings.fail_below is None:
        return 0
    if bad:
        console.print(f"{bad} of {len(a)} points fail --fail-below")
        return 1
    if not speeds or unjudged:
        raise UserError(
            "--fail-below takes a figure of each point in A and B, and noise that is known: "
            f"measure both with bench --repeats {LEAST} or more"
        )
    return 0


def main(argv: list[str]) -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        settings = flags(Report, argv, prog="report")
        if len(settings.folders) != 2:
            raise UserError("name two folders to compare")
        return compared(settings, console)
    except (UserError, OSError) as mistake:
        print(one_line(f"report: {mistake}"), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
