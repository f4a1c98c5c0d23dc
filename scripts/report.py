"""`python -m scripts.report A B`: two result folders side by side, for a person or for CI. With one folder:
its table and plots again.

A folder is one of scripts/bench.py, or of one run of train.py. A ratio is beyond noise when the runs of the
two do not overlap (bench --repeats 3 or more; one run a point says nothing of how runs differ), and beyond
the tolerance of max-batch when no batch could be the largest of both.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # also when it is started as a file

from pydantic import Field, FiniteFloat

from benchmarks import _show, train
from benchmarks._flags import asked
from benchmarks._suite import (
    APART,
    LEAST,
    Rates,
    Row,
    Suite,
    beyond_noise,
    merged,
    results,
    versions_of,
)
from contracts import UserError, one_line
from report import record
from scripts.bench import suite_of
from settings.cli import POSITIONAL, Settings


class Report(Settings):
    """Compare two result folders: B against A."""

    folders: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """A and B, or one folder to show."""
    fail_below: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Exit code 1 when a point of B is slower than this share of A's, beyond noise, or has no figure where A
    has one; 2 when no point has a figure in both, or nothing tells noise: it takes bench --repeats 3 or more,
    or max-batch, whose searches say how close they came."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One point in both folders. `speed`: how many times as good B is; None when one has no figure. `judged`:
    noise is known of both."""

    point: dict[str, Any]
    a: Row | None
    b: Row | None
    speed: float | None
    beyond_noise: bool
    judged: bool = False


def read(folder: Path) -> tuple[str, list[Row]]:
    """Return (name of the suite, rows). Raises UserError when the folder is neither a suite's nor a run's."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such folder; name one of python -m scripts.bench, or a run of train.py"
        )
    if (folder / "results.jsonl").exists():
        rows = results(folder)
        if not rows:
            raise UserError(f"{folder}/results.jsonl holds no row")
        return rows[0]["suite"], rows
    told = record.Record(folder, enabled=False).earlier_summary()
    if told is None:
        raise UserError(
            f"{folder} has neither results.jsonl nor summary.json; name one of python -m scripts.bench, or a "
            "finished run"
        )
    try:
        measured = train.measured(told)
        point = {
            name: told[name] for name in ("arch", "batch_size", "loader", "precision")
        }
        point |= {"gpus": told["world_size"]}
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder}/summary.json is not as train.py writes it ({error!r})"
        ) from None
    # a run of train.py is shown and compared as a suite of one point
    n = (measured.spread.get("rate") or {"n": 0})["n"]
    row: Row = {
        "suite": "train",
        "point": point,
        "status": "ok" if n >= LEAST else "short",
        "error": None,
        "took_s": 0.0,
        "folder": ".",
    }
    return "train", [
        row
        | {
            name: getattr(measured, name)
            for name in ("figures", "spread", "versions", "hardware")
        }
    ]


def pairs(suite: Suite, a: Sequence[Row], b: Sequence[Row]) -> list[Pair]:
    """Pair every point of either, in A's order."""
    if len(a) == len(b) == 1:  # two runs of train.py, whatever they differ in
        return [_pair(suite, a[0]["point"], a[0], b[0])]
    points = [row["point"] for row in a] + [
        row["point"] for row in b if row["point"] not in [one["point"] for one in a]
    ]
    return [
        _pair(
            suite,
            point,
            *(
                next((row for row in rows if row["point"] == point), None)
                for rows in (a, b)
            ),
        )
        for point in points
    ]


def _known(suite: Suite, row: Row | None) -> float | None:
    """Return the figure that is compared; None when the row has none."""
    return row["figures"].get(suite.rate) if row and row["status"] == "ok" else None


def _pair(suite: Suite, point: dict[str, Any], a: Row | None, b: Row | None) -> Pair:
    known = [_known(suite, row) for row in (a, b)]
    if not a or not b or not known[0] or not known[1]:
        return Pair(point, a, b, None, False)
    speed = known[1] / known[0]
    apart = beyond_noise(suite, a, b)
    return Pair(point, a, b, speed, bool(apart), judged=apart is not None)


def failures(suite: Suite, found: Sequence[Pair], below: float) -> list[Pair]:
    """Return the pairs for which --fail-below fails: points that B lost, and speeds below `below` that noise
    does not explain."""
    lost = [pair for pair in found if pair.speed is None and _known(suite, pair.a)]
    return lost + [
        pair
        for pair in found
        if pair.speed is not None and pair.speed < below and pair.beyond_noise
    ]


def differences(a: Sequence[Row], b: Sequence[Row]) -> list[str]:
    """Return lines that say in which point, hardware and versions the folders differ: a ratio across machines
    says little."""
    told = []
    if len(a) == len(b) == 1 and a[0]["point"] != b[0]["point"]:
        before = a[0]["point"]
        other = [
            f"{name} {value}"
            for name, value in b[0]["point"].items()
            if before.get(name) != value
        ]
        told.append(f"B is {', '.join(other)}")
    for kind in ("hardware", "versions"):
        first, second = (_told(rows, kind) for rows in (a, b))
        if not first or not second:
            continue
        apart = [
            f"{name} {first.get(name, '-')} / {second.get(name, '-')}"
            for name in {**first, **second}
            if first.get(name) != second.get(name)
        ]
        told += [f"{kind} differ: {', '.join(apart)}"] if apart else []
    return told


def _told(rows: Sequence[Row], kind: str) -> dict[str, Any]:
    if kind == "versions":
        return {
            name: version.replace(APART, " and ")
            for name, version in versions_of(rows).items()
        }
    return {
        name: value
        for row in rows
        for name, value in row[kind].items()
        if name != "shm_gib"
    }


def settings_apart(a: Path, b: Path) -> list[str]:
    """Return a line with the settings in which the two commands differ, without the axes that the points
    already show; [] for none."""
    try:
        first, second = (
            json.loads((folder / "suite.json").read_text(encoding="utf-8"))
            for folder in (a, b)
        )
    except (OSError, ValueError):
        return []
    names = [
        name
        for name in first
        if name not in ("command", "note", "commit") and first[name] != second.get(name)
    ]
    return (
        [
            f"settings differ: {', '.join(f'{name} {first[name]} / {second.get(name)}' for name in names)}"
        ]
        if names
        else []
    )


def main(argv: list[str]) -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        settings = asked(Report, argv, prog="report")
        if len(settings.folders) not in (1, 2):
            raise UserError(
                f"got {len(settings.folders)} folders; name one to show, or two to compare"
            )
        read_ = [read(folder) for folder in settings.folders]
        suite = suite_of(read_[0][0])
        if len(read_) == 1:
            folder = settings.folders[0]
            write = os.access(folder, os.W_OK)
            _show.show(suite, read_[0][1], folder, console, write=write)
            if not write:
                print(
                    f"report: {folder} cannot be written to: table.md, plots and TensorBoard runs are as "
                    "they were",
                    file=sys.stderr,
                )
            return 0
        (name_a, a), (name_b, b) = (
            (name, list(suite_of(name).derive(merged(rows)))) for name, rows in read_
        )
        if name_a != name_b:
            raise UserError(
                f"{settings.folders[0]} is of the suite {name_a}, {settings.folders[1]} of {name_b}; compare "
                "two of one suite"
            )
    except (UserError, OSError) as mistake:
        print(one_line(f"report: {mistake}"), file=sys.stderr)
        return 2
    found = pairs(suite, a, b)
    form = next(column.form for column in suite.columns if column.key == suite.rate)
    table = Table(title=f"{suite.name}: {suite.rate}, B against A")
    axes = [column for column in suite.columns if column.key in found[0].point]
    for title in (
        *(column.title for column in axes),
        "A",
        "B",
        "B / A",
        "",
    ):
        table.add_column(title)
    for pair in found:
        known = f"{'beyond' if pair.beyond_noise else 'within'} {'the tolerance' if suite.bounds else 'noise'}"
        said = "no pair" if not pair.speed else known if pair.judged else "one run each"
        shown = [_figure(row, suite.rate, form) for row in (pair.a, pair.b)]
        table.add_row(
            *(str(pair.point[column.key]) for column in axes),
            *shown,
            f"{pair.speed:.3f}" if pair.speed else "-",
            said,
        )
    console.print(table)
    for line in (*settings_apart(*settings.folders), *differences(a, b)):
        console.print(
            _show.printable(line), highlight=False, soft_wrap=True, markup=False
        )
    if settings.fail_below is None:
        return 0
    if bad := failures(suite, found, settings.fail_below):
        console.print(
            f"{len(bad)} of {len(found)} points fail --fail-below {settings.fail_below:g}",
            highlight=False,
        )
        return 1
    if not any(pair.speed for pair in found):
        print(
            f"report: --fail-below {settings.fail_below:g}: no point has a figure in A and B; measure both "
            "again",
            file=sys.stderr,
        )
        return 2
    if unjudged := [pair for pair in found if pair.speed and not pair.judged]:
        said = (
            f"--fail-below {settings.fail_below:g}: {len(unjudged)} of {len(found)} points ran fewer than "
            f"{LEAST} times in A or B"
        )
        print(
            f"report: {said}, so no change is beyond noise; "
            f"measure both with bench --repeats {LEAST} or more",
            file=sys.stderr,
        )
        return 2
    return 0


def _figure(row: Row | None, figure: str, form: str | Rates) -> str:
    if row is None:
        return "-"
    found = row["figures"].get(figure) if row["status"] == "ok" else None
    return row["status"] if found is None else form.format(found)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # what it writes is whole or not there
    sys.exit(main(sys.argv[1:]))
