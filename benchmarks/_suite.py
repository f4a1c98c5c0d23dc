"""A benchmark suite and the runs of its points: each in a process of its own, so that a crash is a row and
not the end.

    settings -> points -> [process: measure] -> rows of results.jsonl -> tables (_show.py)

Must not know what is measured.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import PositiveInt

from saturate.contracts import UserError
from saturate.report import record
from saturate.report.meter import spread
from saturate.run.trial import ran
from saturate.settings.cli import Settings
from saturate.settings.types import NotNegative

ROOT = Path(__file__).resolve().parents[1]
LEAST = 3
"""Repeats (windows, passes) below which a figure is not shown."""
LEAST_STEPS = 20
"""Steps, where a point has steps, below which a figure is not shown."""
DONE = ("ok", "oom")
"""A point with such a row is not measured again when a suite goes on; one that failed, timed out or was too
short is.
"""
REPEAT = "repeat"
"""In a point: which of its processes it is."""
ROW = {"suite", "point", "status", "error", "figures", "spread", "versions", "hardware"}
Point = dict[str, Any]
Row = dict[str, Any]
Columns = Mapping[str, Sequence[str]]
"""Figure -> (title, format). In a title {unit} stands for the unit of the rates; RATE is a format."""
RATE = "rate"


class Common(Settings):
    """Flags that every suite has."""

    output: Path | None = None
    """Folder of results.jsonl and table.md; the same command with it goes on. Default:
    runs/bench-SUITE-<date>."""
    limit_s: NotNegative = 600.0
    """Longest that one process may take, seconds; a longer one is a row that says so."""
    repeats: PositiveInt = 1
    """Processes a point, in turns: 1, or 3 and more. Then the spread is of these runs, and not of the
    windows of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The outcome of one point. `spread` has n, min and max of the figures that were repeated."""

    figures: dict[str, Any]
    spread: dict[str, dict[str, float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    error: str | None = None  # why the point failed although it has figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One file of benchmarks/ each. A point is what differs from row to row; `points` may raise UserError."""

    name: str
    about: str
    settings: type[Common]
    points: Callable[[Any], list[Point]]
    # the program that measures a point and writes into its folder
    command: Callable[[Any, Point, Path], list[str]]
    read: Callable[[Point, Path], Measured]  # what it left there
    columns: Columns
    details: Columns = field(default_factory=dict)  # in Markdown only
    rate: str = "rate"  # the figure that is shown first
    # with figures that compare a row to others, for what is shown
    derive: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows
    searches: bool = False
    """Whether a point is a search: many processes, one answer."""


def crossed(**axes: Sequence[Any]) -> list[Point]:
    """Return a point for every combination of the axes' values; an axis without values is left out."""
    asked = {name: values for name, values in axes.items() if values}
    return [
        dict(zip(asked, values, strict=True))
        for values in itertools.product(*asked.values())
    ]


def ratio(rows: Sequence[Row], row: Row, figure: str, **changed: Any) -> float | None:
    """Return a row's figure over that of the row whose point differs from it in these values alone."""
    wanted = row["point"] | changed
    for base in rows:
        if base["point"] == wanted and base["status"] == row["status"] == "ok":
            own, other = value(row, figure), value(base, figure)
            return own / other if own and other else None
    return None


# --- the process of a point -----------------------------------------------------------------------------------


def in_own_process(module: str) -> Callable[[Any, Point, Path], list[str]]:
    """Return the command of a suite whose module ends in `measuring(Settings, measure)`."""
    # not model_dump_json: a path may be no UTF-8
    return lambda settings, point, folder: [
        *(sys.executable, "-m", module),
        *(json.dumps(record.plain(part)) for part in (settings.model_dump(), point)),
        str(folder),
    ]


def ranks(count: int) -> list[str]:
    """Return the arguments that stand between Python and a program of `count` processes."""
    launcher = "-m torch.distributed.run --standalone --nproc-per-node"
    return [*launcher.split(), str(count)] if count > 1 else []


def require_gpus(asked: Sequence[int], here: int) -> None:
    """Raise UserError when there are fewer GPUs than a point has ranks; without a GPU any number of them runs
    on the CPU.
    """
    if 0 < here < max(asked, default=0):
        raise UserError(
            f"--gpus {max(asked)}: each rank needs a GPU of its own; here are {here}"
        )


S = TypeVar("S", bound=Common)


def measuring(settings: type[S], measure: Callable[[S, Point, Path], Measured]) -> None:
    """Measure one point and write figures.json: the `if __name__ == "__main__"` of such a module. Exit code 2
    for a UserError; one that is ended, as at --limit-s, leaves in its log where each thread was.
    """
    faulthandler.register(signal.SIGTERM, chain=True)
    asked, point = (json.loads(word) for word in sys.argv[1:3])
    folder = Path(sys.argv[3])
    try:
        measured = measure(settings.model_validate(asked), point, folder)
    except UserError as mistake:
        print(mistake, file=sys.stderr, flush=True)
        sys.exit(2)
    if int(os.environ.get("RANK", 0)) == 0:
        content = json.dumps(record.plain(asdict(measured)))
        record.replace(folder / "figures.json", content.encode())


def figures_of(_point: Point, folder: Path) -> Measured:
    """Return the outcome that `measuring` wrote."""
    return Measured(**json.loads((folder / "figures.json").read_text()))


# --- all points -----------------------------------------------------------------------------------------------


def name_of(point: Point) -> str:
    """Name a point by its values, in order, as its folder is called."""
    words = (
        "x".join(map(str, each)) if isinstance(each, list) else str(each)
        for each in point.values()
    )
    return "-".join(word.replace("/", "_").replace(" ", "_") for word in words)[:150]


def results(folder: Path) -> list[Row]:
    """Return the latest row of each point, in the order of the first; none where nothing was measured."""
    path = folder / "results.jsonl"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    rows: dict[str, Row] = {}
    for line in text.splitlines():
        with suppress(ValueError, AttributeError):  # half a line, left by a kill
            row = json.loads(line)
            if row.keys() >= ROW:
                rows[json.dumps(row["point"])] = row
    return list(rows.values())


def run(
    suite: Suite, settings: Common, folder: Path, progress: Callable[[str], None]
) -> list[Row]:
    """Measure what has no row yet, and return a row of each point. Raises UserError, KeyboardInterrupt."""
    points = suite.points(settings)
    data = getattr(settings, "data", None)
    if data is not None and folder.resolve().is_relative_to(Path(data).resolve()):
        raise UserError(f"--output {folder} lies inside --data, never written to")
    if not points:
        raise UserError("nothing to measure: a flag that takes several values has none")
    if 1 < settings.repeats < LEAST:
        raise UserError(f"--repeats {settings.repeats}: 1, or {LEAST} and more")
    if settings.repeats > 1:
        turns = range(settings.repeats)
        points = [{**point, REPEAT: turn} for turn in turns for point in points]
    # each once, and as it is read back from a file
    points = [
        json.loads(text) for text in dict.fromkeys(json.dumps(one) for one in points)
    ]
    asked = record.plain(settings.model_dump(exclude={"output", "limit_s"}))
    with record.claimed(folder, resuming=True):
        # what the same command has measured before
        rows = {
            json.dumps(row["point"]): row
            for row in results(folder)
            if row.get("settings") == asked
        }
        file = record.Appender(folder / "results.jsonl")
        file.append(b"\n")  # behind half a line that a kill may have left
        try:
            for number, point in enumerate(points, 1):
                name = json.dumps(point)
                if name not in rows or rows[name]["status"] not in DONE:
                    row = _measured(suite, settings, point, folder)
                    row = rows[name] = row | {"settings": asked}
                    # after every point, so that an interrupt loses the one under way alone
                    file.append(json.dumps(record.plain(row)).encode() + b"\n")
                    figure = f"{suite.rate} {value(row, suite.rate)}"
                    said = figure if row["status"] == "ok" else said_of(row)
                    progress(f"[{number}/{len(points)}] {name_of(point)}: {said}")
        finally:
            file.close()
    return [rows[json.dumps(point)] for point in points]


def commit() -> str:
    """Return this repository's commit, with a + when files differ from it; '' without git."""
    with suppress(OSError, subprocess.CalledProcessError):
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"]
        said = subprocess.run(words, capture_output=True, text=True, check=True)
        return said.stdout.strip()
    return ""


def _measured(suite: Suite, settings: Common, point: Point, output: Path) -> Row:
    folder = output / "runs" / name_of(point)
    # what a point that was cut short has left
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.time()
    # the processes of a search are limited one by one
    limit_s = 86_400.0 if suite.searches else settings.limit_s
    command = suite.command(settings, point, folder)
    status, why = ran(command, folder / "log.txt", limit_s)
    row: Row = {
        "suite": suite.name,
        "point": point,
        "began": began,
        "took_s": time.time() - began,
        "folder": str(folder.relative_to(output)),
        **asdict(Measured(figures={})),
    }
    if status == "timeout":
        why = f"took longer than --limit-s {settings.limit_s:g}"
    if status != "ok":
        return row | {"status": status, "error": why}
    try:
        measured = suite.read(point, folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return row | {"status": "failed", "error": f"left no figures: {error!r}"}
    row |= asdict(measured)
    row["versions"] = {"commit": commit(), **measured.versions}
    few = measured.figures.get("steps") or LEAST_STEPS
    repeats = measured.spread.get(suite.rate, {"n": LEAST})["n"]
    if measured.error:
        return row | {"status": "failed"}
    if few < LEAST_STEPS or repeats < LEAST:
        why = f"{few} steps, {repeats} windows or passes; more --seconds, or data"
        return row | {"status": "short", "error": why}
    return row | {"status": "ok"}


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return one row a point: medians over its repeats, and their spread."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        point = {name: each for name, each in row["point"].items() if name != REPEAT}
        groups.setdefault(json.dumps(point), []).append(row)
    return [
        _median(json.loads(point), its) if REPEAT in its[0]["point"] else its[0]
        for point, its in groups.items()
    ]


def _median(point: Point, rows: Sequence[Row]) -> Row:
    """Return the medians of a point's rows; `repeats` is the number of those with a figure, and `error` says
    why one has none.
    """
    good = [row for row in rows if row["status"] == "ok"]
    lost = [row for row in rows if row["status"] != "ok"]
    if not good:
        return {**rows[0], "point": point}
    figures = {**good[0]["figures"], "repeats": len(good)}
    spreads = {}
    for name in good[0]["figures"]:
        values = [row["figures"].get(name) for row in good]
        if all(isinstance(each, int | float) for each in values):
            figures[name] = statistics.median(values)
            spreads[name] = spread(values)
    return {
        **good[0],
        "point": point,
        "status": "ok" if len(good) >= LEAST else "short",
        "figures": figures,
        "spread": spreads,
        "versions": versions_of(good),
        "error": f"{len(lost)} of {len(rows)} lost: {said_of(lost[0])}"
        if lost
        else None,
    }


def versions_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return each package's version once; what differs is listed: 'a / b'."""
    pairs = dict.fromkeys(pair for row in rows for pair in row["versions"].items())
    found: dict[str, str] = {}
    for name, version in pairs:
        found[name] = f"{found[name]} / {version}" if name in found else version
    return found


def said_of(row: Row) -> str:
    """Say why a row has no figure."""
    return f"{row['status']}: {row['error']}" if row["error"] else row["status"]


def value(row: Mapping[str, Any], key: str) -> Any:
    """Return a value of the point or of the figures; None for a figure that may not be shown."""
    if key in row["point"]:
        return row["point"][key]
    return row["figures"].get(key) if row["status"] != "short" else None
