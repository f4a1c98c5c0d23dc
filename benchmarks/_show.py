"""Rows of a suite -> a table, on the console and as Markdown. Must not know how a row was measured."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks._suite import (
    RATE,
    Row,
    Suite,
    merged,
    said_of,
    value,
    versions_of,
)
from saturate.report.record import replace

LONGEST = 200
"""Most characters of the reason why a row has no figure."""


def cells(suite: Suite, rows: Sequence[Row], *, detail: bool) -> list[list[str]]:
    """Return the line of titles, then a line for each row.

    Columns are the axes in which the points differ, then the figures that any row has; `detail` adds the
    suite's details. A row without a rate says why in the rate's place.
    """
    known = {**suite.columns, **(suite.details if detail else {})}
    # an axis has its own name as title; a figure of the same name is not shown a second time
    shown: dict[str, Sequence[str]] = {
        name: (name.replace("_", " "), "{}") for name in differing(rows)
    }
    shown |= {
        key: column
        for key, column in known.items()
        if key == suite.rate or any(value(row, key) is not None for row in rows)
    }
    unit = unit_of(rows)
    lines = [[title.replace("{unit}", unit) for title, _ in shown.values()]]
    for row in rows:
        line = {key: _cell(row, key, form) for key, (_, form) in shown.items()}
        if row["status"] != "ok" and value(row, suite.rate) is None:
            line[suite.rate] = _why(said_of(row))
        elif row["error"]:  # some repeats of the point failed
            line[suite.rate] += f"; {_why(row['error'])}"
        lines.append(list(line.values()))
    return lines


def differing(rows: Sequence[Row]) -> list[str]:
    """Return the axes in which the points differ."""
    names = dict.fromkeys(name for row in rows for name in row["point"])
    return [
        name
        for name in names
        if len({json.dumps(row["point"].get(name)) for row in rows}) > 1
    ]


def unit_of(rows: Sequence[Row]) -> str:
    """Return the unit of the rates: the one that a row names, else img/s."""
    return next(filter(None, (row["figures"].get("unit") for row in rows)), "img/s")


def written(form: str, figure: Any) -> str:
    """Return a figure as text; a rate below 1,000 has tenths, which tell rows apart there."""
    if form == RATE:
        form = "{:,.1f}" if figure < 999.95 else "{:,.0f}"
    return form.format(figure)


def _cell(row: Row, key: str, form: str) -> str:
    content, spread = value(row, key), row["spread"].get(key)
    if content is None:
        return "-"
    if not spread:
        return written(form, content)
    between = f"{written(form, spread['min'])} to {written(form, spread['max'])}"
    return f"{written(form, content)} ({between}, {spread['n']})"


def _why(text: str) -> str:
    return textwrap.shorten(text, LONGEST, placeholder=" ...")


def conditions(rows: Sequence[Row]) -> list[str]:
    """Return sentences about what all points have in common, and about hardware, versions and dates."""
    axes = differing(rows)
    same = [
        f"{name} {setting}"
        for name, setting in rows[0]["point"].items()
        if name not in axes
    ]
    days = {time.strftime("%Y-%m-%d", time.gmtime(row["began"])) for row in rows}
    versions = versions_of([row for row in rows if row["versions"]])
    repeats = max((row["figures"].get("repeats") or 0) for row in rows)
    measurements = f"{repeats} processes a point" if repeats else "windows or passes"
    notes = [
        f"The same for all: {', '.join(same)}.",
        *sorted({_machine(row["hardware"]) for row in rows if row["hardware"]}),
        ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        f"Median over {measurements} (smallest to largest, number); {', '.join(sorted(days))}.",
    ]
    return [each for each in notes if each]


def _machine(hardware: dict[str, Any]) -> str:
    gpu = f"{hardware['gpus']} x {hardware['gpu']}" if hardware.get("gpu") else "no GPU"
    cpu = f"{hardware['cores']:g} cores of {hardware['cpu']}"
    return f"{gpu}, {cpu}, {hardware['ram_gib']:.0f} GiB"


def show(
    suite: Suite, rows: Sequence[Row], folder: Path, console: Console, command: str
) -> None:
    """Print the table, and write it to table.md with the command that has measured it."""
    rows = suite.derive(merged(rows))
    notes = conditions(rows)
    titles, *lines = cells(suite, rows, detail=False)
    table = Table(*titles, title=f"{suite.name}: {suite.about}")
    for line in lines:
        table.add_row(
            *map(Text, line)
        )  # Text: the text of an error may look like markup
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False)
    titles, *lines = cells(suite, rows, detail=True)
    table_rows = (
        " | ".join(cell.replace("|", "/") for cell in line)
        for line in (titles, ["---"] * len(titles), *lines)
    )
    text = [
        f"# {suite.name}\n\n{suite.about}\n\n```bash\n{command}\n```\n",
        *(f"- {note}" for note in notes),
        "",
        *(f"| {row} |" for row in table_rows),
        "",
    ]
    # where a file's name is no UTF-8, Python spells its bytes \udcXX, and so they are written
    content = "\n".join(text).encode(errors="backslashreplace")
    replace(folder / "table.md", content)
    console.print(f"table: {folder / 'table.md'}", highlight=False, markup=False)
