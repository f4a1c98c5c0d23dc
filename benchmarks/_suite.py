"""A benchmark suite and the runs of its points: each in a process of its own, so that a crash is a row and
not the end.

    settings -> points -> [process: measure] -> rows of results.jsonl -> tables and plots (_show.py)

Must not know what is measured.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
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

from benchmarks._process import ROOT, ran
from benchmarks._reasons import NOT_HERE, reason
from contracts import UserError
from report import record
from report.meter import spread
from settings.cli import Settings
from settings.types import NotNegative

LEAST = 3
"""Repeats (windows, passes) below which a figure is not shown."""
LEAST_STEPS = 20
"""Steps, where a point has steps, below which a figure is not shown."""
DONE = ("ok", "oom")
"""A point with such a row is not measured again when a suite goes on; one that failed, timed out or was too
short is."""
WRONG_DATA = re.compile(r"exit code 2: (?:train\.py: )?(--data: .*)")
"""The error of a point after which no point can be measured."""

APART = " / "
REPEAT = "repeat"
"""In a point: which of its processes it is."""
MADE = ("figures", "spread", "versions", "hardware")
ROW = {"suite", "point", "began", "took_s", "status", "error", "folder", *MADE}
Point = dict[str, Any]
Row = dict[str, Any]


class Absent(UserError):
    """A package that a point needs is not installed here."""


class Common(Settings):
    """Flags that every suite has."""

    output: Path | None = None
    """Folder of results.jsonl, table.md, plots and TensorBoard runs; the same command with it goes on.
    Default: runs/bench-SUITE-<date>."""
    limit_s: NotNegative = 600.0
    """Longest that one point may take, seconds; a longer one is a row that says so."""
    repeats: PositiveInt = 1
    """Processes a point, in turns: 1, or 3 and more. Then the spread is of these runs, and python -m
    scripts.report can tell a change from noise."""
    note: str = ""
    """A line for the head of the table, such as the kind of machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The outcome of one point. `spread` has n, min, max and iqr of the figures that were repeated."""

    figures: dict[str, float | int | str | None]
    spread: dict[str, dict[str, float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    error: str | None = None  # why the point failed although it has figures


class Rates:
    """A form for Column: tenths below 1,000, where they still tell rows apart."""

    def format(self, found: float) -> str:
        """Return the rate as text."""
        return f"{found:,.1f}" if found < 999.95 else f"{found:,.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table: `key` of the point or of the figures, as `form` writes it; `detail`: in Markdown
    only.

    In the title {unit} stands for the unit of the rates: img/s, clip/s.
    """

    key: str
    title: str
    form: str | Rates = "{}"
    detail: bool = False


def axis_columns(*names: str) -> tuple[Column, ...]:
    """Return the columns of a suite's axes: values of a point, shown where they differ."""
    return tuple(Column(key=name, title=name.replace("_", " ")) for name in names)


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
    columns: tuple[Column, ...]
    rate: str  # the figure that scripts/report.py compares
    over: tuple[str, ...]
    """Axes, of which the first that differs is the x axis of the curves."""
    curves: tuple[str, ...]
    """The figures that are drawn over it, and shown in TensorBoard's CUSTOM SCALARS."""
    # plots that are not curves over an axis
    plots: Callable[[Sequence[Row], Path], list[Path]] = lambda rows, folder: []
    # with figures that compare a row to others, for what is shown
    derive: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows
    # what is true of the rows whatever their rates
    remarks: Callable[[Sequence[Row]], list[str]] = lambda rows: []
    # what to say after the table, of rates that are steady
    conclude: Callable[[Sequence[Row]], list[str]] = lambda rows: []
    follow: Callable[[Any, Sequence[Row]], list[Point]] | None = None
    """Points that depend on rows, asked for until none comes."""
    searches: Callable[[Any, Sequence[Row]], tuple[int, int]] | None = None
    """For a suite that searches: (searches that are over after these rows, all searches); nobody knows how
    many points they take."""
    bounds: Callable[[Row], tuple[float, float]] | None = None
    """Between which the rate of a row lies for certain, in a suite that is not repeated."""
    asks_what_fits: bool = False
    """Then a point that was killed, or that got no thread, is one for which there was no memory."""


def crossed(**axes: Sequence[Any]) -> list[Point]:
    """Return a point for every combination of the axes' values; an axis without values is left out."""
    asked = {name: values for name, values in axes.items() if values}
    return [
        dict(zip(asked, values, strict=True))
        for values in itertools.product(*asked.values())
    ]


def grouped(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Return the rows by key, in the order of the first of each."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def of_baseline(
    rows: Sequence[Row], figure: str, baselines: Mapping[str, Point]
) -> list[Row]:
    """Return copies of the rows, with a ratio by each name of `baselines`: the row's figure over that of the
    row whose point differs from it in these values alone. A figure that is missing has no ratio."""

    def known(row: Row | None) -> float | None:
        return row["figures"].get(figure) if row and row["status"] == "ok" else None

    copies = [{**row, "figures": dict(row["figures"])} for row in rows]
    for row in copies if rows else []:
        for name, changed in baselines.items():
            wanted = row["point"] | {
                key: value for key, value in changed.items() if key in row["point"]
            }
            base = known(
                next((other for other in rows if other["point"] == wanted), None)
            )
            own = known(row)
            if base and own and changed.keys() <= row["point"].keys():
                row["figures"][name] = own / base
    return copies


def in_own_process(module: str) -> Callable[[Any, Point, Path], list[str]]:
    """Return the command of a suite whose module ends in `measuring(Settings, measure)`."""
    # not model_dump_json: a path may be no UTF-8
    return lambda settings, point, folder: [
        *(sys.executable, "-m", module),
        *(json.dumps(record.plain(told)) for told in (settings.model_dump(), point)),
        str(folder),
    ]


def ranks(count: int) -> list[str]:
    """Return the arguments that stand between Python and a program of `count` processes."""
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(count),
    ]
    return launcher if count > 1 else []


def require_gpus(asked: Sequence[int], here: int) -> None:
    """Raise UserError when there are fewer GPUs than a point has ranks; without a GPU any number of them runs
    on the CPU."""
    if 0 < here < max(asked, default=0):
        there = "is 1 GPU" if here == 1 else f"are {here} GPUs"
        raise UserError(
            f"--gpus {max(asked)}: there {there} here, and a rank needs one of its own; at most --gpus {here}"
        )


S = TypeVar("S", bound=Common)


def measuring(settings: type[S], measure: Callable[[S, Point, Path], Measured]) -> None:
    """Measure one point and write figures.json: the `if __name__ == "__main__"` of such a module. Exit code 2
    for a UserError, NOT_HERE for Absent."""
    point = json.loads(sys.argv[2])
    folder = Path(sys.argv[3])
    try:
        measured = measure(
            settings.model_validate(json.loads(sys.argv[1])), point, folder
        )
    except UserError as mistake:
        print(mistake, file=sys.stderr, flush=True)
        sys.exit(NOT_HERE if isinstance(mistake, Absent) else 2)
    if int(os.environ.get("RANK", 0)) == 0:
        record.replace(
            folder / "figures.json", json.dumps(record.plain(asdict(measured))).encode()
        )


def figures_of(_point: Point, folder: Path) -> Measured:
    """Return the outcome that `measuring` wrote."""
    return Measured(**json.loads((folder / "figures.json").read_text()))


def name_of(point: Point, sep: str = "-") -> str:
    """Name the folder of a point: its values, in order."""
    words = (
        "x".join(map(str, value)) if isinstance(value, list) else str(value)
        for value in point.values()
    )
    return sep.join(word.replace("/", "_").replace(" ", "_") for word in words if word)[
        :150
    ]


def results(folder: Path) -> list[Row]:
    """Return the latest row of each point, in the order of the first. Raises UserError when there is none."""
    rows: dict[str, Row] = {}
    try:
        lines = (
            (folder / "results.jsonl")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
    except OSError as error:
        raise UserError(
            f"{folder} has no results.jsonl ({error.strerror}); name a folder that python -m scripts.bench "
            "has written"
        ) from None
    for line in lines:
        try:
            row = json.loads(line)
            if row.keys() >= ROW:
                rows[json.dumps(row["point"])] = row
        except (ValueError, AttributeError):
            continue  # half a line, left by a kill
    return list(rows.values())


def run(
    suite: Suite,
    settings: Common,
    folder: Path,
    progress: Callable[[int, int, str], None],
) -> list[Row]:
    """Measure what has no row yet. `progress` gets points or searches done, of all, and what to say.

    Raises UserError, KeyboardInterrupt.
    """
    points = suite.points(settings)
    data = getattr(settings, "data", None)
    if data is not None and folder.resolve().is_relative_to(Path(data).resolve()):
        raise UserError(
            f"--output {folder} lies inside --data {data}, which is never written to; name another folder"
        )
    if not points:
        raise UserError("nothing to measure: a flag that takes several values has none")
    if settings.repeats > 1:
        if suite.follow:
            raise UserError(
                f"--repeats {settings.repeats}: {suite.name} is a search, of which there is one"
            )
        if settings.repeats < LEAST:
            raise UserError(
                f"--repeats {settings.repeats}: of fewer than {LEAST} no figure is shown; 1, or {LEAST} and "
                "more"
            )
        points = [
            {**point, REPEAT: number}
            for number in range(settings.repeats)
            for point in points
        ]
    points = [
        json.loads(one) for one in dict.fromkeys(json.dumps(point) for point in points)
    ]  # each once
    with record.claimed(folder, resuming=True, enabled=True):
        rows = results(folder) if (folder / "results.jsonl").exists() else []
        # nothing was measured: another command's failures are not its rows
        if not _same_suite(suite, settings, folder, rows) and rows:
            record.replace(folder / "results.jsonl", b"")
            rows = []
        done = [row["point"] for row in rows if row["status"] in DONE]
        file = record.Appender(folder / "results.jsonl")
        if rows and not (folder / "results.jsonl").read_bytes().endswith(b"\n"):
            file.append(b"\n")  # behind half a line, left by a kill
        try:
            while True:
                more = suite.follow(settings, rows) if suite.follow else []
                points += [point for point in more if point not in points]
                left = [point for point in points if point not in done]
                if not left:
                    return [
                        row for point in points for row in rows if row["point"] == point
                    ]
                progress(
                    *_so_far(suite, settings, points, done, rows), name_of(left[0])
                )
                row = _measured(suite, settings, left[0], folder)
                # after every point, so that an interrupt loses the one under way alone
                file.append(json.dumps(record.plain(row)).encode() + b"\n")
                rows = [other for other in rows if other["point"] != row["point"]] + [
                    row
                ]
                done.append(row["point"])
                if wrong := WRONG_DATA.fullmatch(row["error"] or ""):
                    raise UserError(wrong[1])
                said = f"{name_of(left[0])}: {_said(suite, row)}"
                progress(*_so_far(suite, settings, points, done, rows), said)
        finally:
            file.close()


def _so_far(
    suite: Suite,
    settings: Common,
    points: list[Point],
    done: list[Point],
    rows: Sequence[Row],
) -> tuple[int, int]:
    if suite.searches:
        return suite.searches(settings, [row for row in rows if row["point"] in done])
    return sum(point in done for point in points), len(points)


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return one row a point: medians over its repeats, and their spread."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        point = {name: found for name, found in row["point"].items() if name != REPEAT}
        groups.setdefault(json.dumps(point), []).append(row)
    repeated = [REPEAT in its[0]["point"] for its in groups.values()]
    return [
        _median(json.loads(point), its) if several else its[0]
        for (point, its), several in zip(groups.items(), repeated, strict=True)
    ]


def _median(point: Point, rows: Sequence[Row]) -> Row:
    """Return the medians of a point's rows. `repeats` and `lost`: processes with a figure, and without;
    `error`: why the first of these has none."""
    good = [row for row in rows if row["status"] == "ok"]
    if not good:
        return {**rows[0], "point": point}
    figures = dict(good[0]["figures"])
    spreads = dict[str, Any]()
    for name in figures:
        values = [row["figures"].get(name) for row in good]
        if all(isinstance(found, int | float) for found in values):
            figures[name] = statistics.median(values)
            spreads[name] = spread(values)
    lost = [row for row in rows if row["status"] != "ok"]
    figures |= {"repeats": len(good), "lost": len(lost)}
    why = (
        f"{len(lost)} of {len(rows)} processes without a figure: {said_of(lost[0])}"
        if lost
        else None
    )
    return {
        **good[0],
        "point": point,
        "status": "ok" if len(good) >= LEAST else "short",
        "figures": figures,
        "spread": spreads,
        "versions": versions_of(good),
        "error": why,
    }


def versions_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return each package's version once; what differs is listed: 'a / b'."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, version in row["versions"].items():
            found.setdefault(name, {}).update(dict.fromkeys(version.split(APART)))
    return {name: APART.join(its) for name, its in found.items()}


def by_chance(suite: Suite, row: Row) -> tuple[float, float] | None:
    """Return the bounds of a row's rate. None with fewer than LEAST repeats: nothing can be said to be beyond
    noise."""
    if suite.bounds:
        return suite.bounds(row)
    its = (
        row["spread"].get(suite.rate)
        if row["figures"].get("repeats", 0) >= LEAST
        else None
    )
    return (its["min"], its["max"]) if its else None


def beyond_noise(suite: Suite, one: Row, other: Row) -> bool | None:
    """Whether the rates of two rows differ by more than chance: their runs do not overlap. None when nothing
    tells."""
    first, second = (by_chance(suite, row) for row in (one, other))
    return (
        None
        if first is None or second is None
        else second[0] > first[1] or first[0] > second[1]
    )


def _same_suite(
    suite: Suite, settings: Common, folder: Path, rows: Sequence[Row]
) -> bool:
    """Whether a folder holds points of this command. One in which nothing was measured yet is given to it.
    Raises UserError for others'."""
    asked = {
        name: found.resolve() if isinstance(found, Path) else found
        for name, found in settings
    }
    asked = {
        name: found
        for name, found in asked.items()
        if name not in ("output", "limit_s", "note")
    }
    wanted = {"suite": suite.name, **record.plain(asked)}
    path = folder / "suite.json"
    if path.exists() and any(row["status"] in DONE for row in rows):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            assert isinstance(found, dict)
        except (ValueError, AssertionError):
            raise UserError(
                f"{path} is damaged; remove it, or name another --output"
            ) from None
        for name, value in wanted.items():
            if found.get(name) != value:
                flag = name if name == "suite" else f"--{name.replace('_', '-')}"
                raise UserError(
                    f"--output {folder} holds results with {flag} {found.get(name)}, this is {value}; name "
                    "another folder"
                )
        return True
    command = shlex.join(["python", "-m", "scripts.bench", *sys.argv[1:]])
    what = {**wanted, "note": settings.note, "command": command}
    record.replace(path, (json.dumps(what, indent=2) + "\n").encode())
    return False


def _commit() -> str:
    """Return this repository's commit, with a + when files differ from it; '' without git."""
    with suppress(OSError, subprocess.CalledProcessError):
        said = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"],
            capture_output=True,
            text=True,
            check=True,
        )
        return said.stdout.strip()
    return ""


def _measured(suite: Suite, settings: Common, point: Point, output: Path) -> Row:
    folder = output / "runs" / name_of(point)
    shutil.rmtree(
        folder, ignore_errors=True
    )  # what a point that was cut short has left
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise record.unwritable(output, error) from None
    commit = {"commit": found} if (found := _commit()) else {}
    began = time.time()
    with (folder / "log.txt").open("wb") as log:
        code = ran(suite.command(settings, point, folder), log, settings.limit_s)
    row: Row = {
        "suite": suite.name,
        "point": point,
        "began": began,
        "took_s": time.time() - began,
        "status": "failed",
        "error": None,
        **{name: {} for name in MADE},
        "folder": str(folder.relative_to(output)),
    }
    if code == 0:
        try:
            measured = suite.read(point, folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return row | {"error": f"left no figures: {error!r}"}
        repeated = measured.spread.get(suite.rate)
        steps = measured.figures.get("steps")
        few_steps = isinstance(steps, int) and steps < LEAST_STEPS
        short = few_steps or (repeated is not None and repeated["n"] < LEAST)
        row |= asdict(measured) | {"versions": {**commit, **measured.versions}}
        if short and not measured.error:
            got = [f"{repeated['n']} of {LEAST} windows or passes"] if repeated else []
            got += [f"{steps} of {LEAST_STEPS} steps"] if isinstance(steps, int) else []
            return row | {
                "status": "short",
                "error": f"{', '.join(got)}; more --seconds, or data",
            }
        return row | {"status": "failed" if measured.error else "ok"}
    if code is None:
        return row | {
            "status": "timeout",
            "error": f"took longer than --limit-s {settings.limit_s:g}",
        }
    log_text = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    status, why = reason(
        code, log_text.splitlines(), asks_what_fits=suite.asks_what_fits
    )
    return row | {"status": status, "error": why}


def _said(suite: Suite, row: Row) -> str:
    if row["status"] == "ok":
        value = row["figures"].get(suite.rate)
        return (
            f"{suite.rate} {value:,.4g}"
            if isinstance(value, int | float)
            else f"{suite.rate} {value}"
        )
    return said_of(row)


def said_of(row: Row) -> str:
    """Say why a row has no figure."""
    return f"{row['status']}: {row['error']}" if row["error"] else row["status"]


def value(row: Mapping[str, Any], key: str) -> Any:
    """Return a value of the point, the figures or the row itself; None for a figure that may not be shown."""
    if key in row["point"]:
        return row["point"][key]
    if key in ("status", "error", "took_s"):
        return row[key]
    return row["figures"].get(key) if row["status"] != "short" else None
