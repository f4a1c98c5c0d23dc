"""Rows -> what a person looks at: a table, the same in Markdown, plots, TensorBoard. Must not know how a row
was measured."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import _plots
from benchmarks._suite import (
    Column,
    Point,
    Rates,
    Row,
    Suite,
    grouped,
    merged,
    name_of,
    said_of,
    value,
    versions_of,
)
from report.meter import STEAL
from report.record import replace
from report.tensorboard import Board

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 200
"""Letters of why a row has no figure."""
UNSTEADY = 0.3
"""Share of the median: a rate says nothing when the middle half of its repeats is wider."""
FENCE = re.compile(r"`{3,}|~{3,}")
"""The line that opens and ends a block of code in Markdown."""


# --- the table ----------------------------------------------------------------------------------------------


def columns(suite: Suite, rows: Sequence[Row], *, detail: bool) -> list[Column]:
    """Return the columns that say something: not what is the same for all points, nor what no row has."""

    def tells(column: Column) -> bool:
        if column.detail and not detail:
            return False
        if all(column.key in row["point"] for row in rows):
            return len({json.dumps(row["point"][column.key]) for row in rows}) > 1
        return column.key == suite.rate or any(
            value(row, column.key) is not None for row in rows
        )

    return [column for column in suite.columns if tells(column)]


def cells(suite: Suite, rows: Sequence[Row], *, detail: bool) -> list[list[str]]:
    """Return the titles, and a line for each row. A row without figures says why, in place of the rate."""
    shown = columns(suite, rows, detail=detail)
    lines = [[column.title.format(unit=unit_of(rows)) for column in shown]]
    for row in rows:
        line = [
            _cell(
                row, column.key, column.form, spread=detail or column.key == suite.rate
            )
            for column in shown
        ]
        rate = [column.key for column in shown].index(suite.rate)
        if row["status"] != "ok" and value(row, suite.rate) is None:
            line[rate] = _why(row)
        elif row["figures"].get("lost"):
            line[rate] += f"; {_short(row['error'])}"
        lines.append(line)
    return lines


def unit_of(rows: Sequence[Row]) -> str:
    """Return the unit of the rates: the one that any row names, also a failed one; else img/s."""
    units = (
        row["figures"].get("unit")
        or ("clip/s" if "clip_frames" in row["point"] else None)
        for row in rows
    )
    return next((str(unit) for unit in units if unit), "img/s")


def _cell(row: Row, key: str, form: str | Rates, *, spread: bool = True) -> str:
    content = value(row, key)
    if content is None:
        return "-"
    text = (
        " ".join(map(str, content))
        if isinstance(content, list)
        else form.format(content)
    )
    its = row["spread"].get(key) if spread else None
    return (
        f"{text} ({form.format(its['min'])} to {form.format(its['max'])}, {its['n']})"
        if its
        else text
    )


def _why(row: Row) -> str:
    if row["status"] == "short":
        return "too short: no figure" + (
            f"; {_short(row['error'])}" if row["error"] else ""
        )
    return "out of memory" if row["status"] == "oom" else _short(said_of(row))


def _short(text: str) -> str:
    return textwrap.shorten(text, LONGEST, placeholder=" ...")


def markdown(suite: Suite, rows: Sequence[Row], folder: Path) -> str:
    """Return the table with what is needed to repeat it: command, hardware, versions, noise, clocks."""
    path = folder / "suite.json"  # a run of train.py has none
    about = (
        json.loads(path.read_text(encoding="utf-8"))
        if path.exists()
        else {"command": "python train.py (see config.yaml)"}
    )
    fence = "`" * max(3, *(len(run) + 1 for run in FENCE.findall(about["command"])), 0)
    # a note in which nothing begins a block of code
    note = FENCE.sub(
        lambda match: "".join(f"\\{mark}" for mark in match[0]), about.get("note", "")
    )
    head = [
        f"# {suite.name}",
        "",
        suite.about,
        "",
        f"{fence}bash",
        about["command"],
        fence,
        "",
    ]
    head += [f"- {line}" for line in conditions(suite, rows, note)]
    head += [
        "- A figure with a spread is the median of its repeats (smallest to largest, number).",
        "",
    ]
    titles, *lines = cells(suite, rows, detail=True)
    table = [
        titles,
        ["---"] * len(titles),
        *([cell.replace("|", "/") for cell in line] for line in lines),
    ]
    told = [f"- {line}" for line in concluded(suite, rows)]
    rows_ = [f"| {' | '.join(words)} |" for words in table]
    return "\n".join([*head, *rows_, *([""] if told else []), *told]) + "\n"


def conditions(suite: Suite, rows: Sequence[Row], note: str = "") -> list[str]:
    """Return hardware and versions (each once, whatever differs listed), the noise of the repeats, clocks and
    throttling."""
    told = [" ".join(note.split())] if note.strip() else []
    everywhere = [
        column
        for column in suite.columns
        if all(column.key in row["point"] for row in rows)
    ]
    differing = columns(suite, rows, detail=True)
    same = [
        f"{column.title} {_cell(rows[0], column.key, column.form)}"
        for column in everywhere
        if column not in differing
    ]
    told += [f"The same for all: {', '.join(same)}."] if same else []
    told += suite.remarks(rows)
    told += sorted({_machine(row["hardware"]) for row in rows if row["hardware"]})
    if versions := sorted(versions_of(rows).items()):
        told.append(", ".join(f"{name} {version}" for name, version in versions))
    if days := sorted(
        {
            time.strftime("%Y-%m-%d", time.gmtime(row["began"]))
            for row in rows
            if row.get("began")
        }
    ):
        told.append(f"Measured on {' and '.join(days)}.")
    noise = [
        spread["iqr"] / row["figures"][suite.rate]
        for row in rows
        if row["status"] == "ok" and (spread := row["spread"].get(suite.rate))
    ]
    if noise:
        runs = max((row["figures"].get("repeats") or 0) for row in rows)
        told += [
            f"Spread over {runs} processes a point."
            if runs
            else "Spread over windows or passes of one process a point.",
            f"Noise: half of the repeats of a point lie within {np.median(noise):.1%} of its median (worst "
            f"point {max(noise):.1%}).",
        ]
    if wild := [name_of(row["point"]) for row in rows if unsteady(suite, row)]:
        told.append(
            "Unsteady, so no conclusion is drawn from it; measure it again on a quiet machine: "
            f"{', '.join(wild)}."
        )
    clocks = [mhz for row in rows if (mhz := row["figures"].get("sm_mhz"))]
    if clocks:
        slowed = max((row["figures"].get("throttled") or 0.0) for row in rows)
        told.append(
            f"GPU clock {min(clocks):,.0f} to {max(clocks):,.0f} MHz; slowed in up to {slowed:.0%} of the "
            "readings (power, heat)."
        )
    steal = max((row["figures"].get("cpu_steal") or 0.0) for row in rows)
    if steal >= STEAL:
        told.append(
            f"Up to {steal:.0%} of the cores' time went to other virtual machines of the host (steal)."
        )
    return told


def unsteady(suite: Suite, row: Row) -> bool:
    """Whether a rate varied so much that it is not to be relied on."""
    rate = row["figures"].get(suite.rate)
    its = row["spread"].get(suite.rate)
    return bool(row["status"] == "ok" and rate and its and its["iqr"] > UNSTEADY * rate)


def concluded(suite: Suite, rows: Sequence[Row]) -> list[str]:
    """Return the lines that the suite concludes from the rows that are steady."""
    return suite.conclude([row for row in rows if not unsteady(suite, row)])


def _machine(hardware: dict[str, Any]) -> str:
    gpu = f"{hardware['gpus']} x {hardware['gpu']}, " if hardware.get("gpu") else ""
    return (
        f"{gpu}{hardware['cores']:g} cores of {hardware['cpu']}, {hardware['ram_gib']:.0f} "
        f"GiB{'' if gpu else ', no GPU used'}"
    )


def show(
    suite: Suite,
    rows: Sequence[Row],
    folder: Path,
    console: Console,
    *,
    write: bool = True,
) -> None:
    """Print the table; with `write`, write table.md, plots/*.png and the TensorBoard runs."""
    from rich.table import Table
    from rich.text import Text

    measured = merged(rows)
    rows = suite.derive(measured)
    table = Table(title=f"{suite.name}: {suite.about}", title_justify="left")
    titles, *lines = cells(suite, rows, detail=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))  # an error may hold what looks like markup
    console.print(table)
    more = [
        title for title in cells(suite, rows, detail=True)[0] if title not in titles
    ]
    elsewhere = [f"More columns in table.md: {', '.join(more)}."] if more else []
    for text in (*elsewhere, *conditions(suite, rows), *concluded(suite, rows)):
        console.print(text, highlight=False, markup=False)
    if not write:
        return
    replace(folder / "table.md", printable(markdown(suite, rows, folder)).encode())
    if suite.follow:  # a row is of many trials; their own runs say nothing to compare
        for row in measured:
            _forget(folder / row["folder"])
    plots = _tensorboard(
        suite, rows, measured if suite.follow else rows, folder, console
    )
    told = f"table: {folder / 'table.md'}   plots: {len(plots)}   TensorBoard: "
    told += f"tensorboard --logdir {shlex.quote(str(folder))}"
    console.print(printable(told), highlight=False, markup=False)


def printable(text: str) -> str:
    r"""Write the bytes of a file's name that are no UTF-8 as \udcXX, as Python spells them."""
    return text.encode(errors="backslashreplace").decode()


# --- plots and TensorBoard ----------------------------------------------------------------------------------


def _tensorboard(
    suite: Suite,
    rows: Sequence[Row],
    measured: Sequence[Row],
    folder: Path,
    console: Console,
) -> list[Path]:
    """Write plots and return them; a row of HPARAMS for each point that is no run of train.py, which has
    written its own; and the curves of what was `measured`."""
    good = [row for row in rows if row["figures"] and row["status"] != "short"]
    plots: list[Path] = []
    if good:
        try:
            import matplotlib

            matplotlib.use("Agg")
            (folder / "plots").mkdir(exist_ok=True)
            plots = [
                *_drawn(suite, good, folder / "plots"),
                *suite.plots(good, folder / "plots"),
            ]
        except ImportError:
            console.print(
                "no plots: pip install matplotlib, then python -m scripts.report FOLDER"
            )
    names = {
        name
        for row in rows
        for name, its in row["figures"].items()
        if isinstance(its, int | float)
    }
    for row in rows:
        run = folder / row["folder"]
        # a figure that is refused is not to be found there either; a plain run is not ours
        if row["status"] == "short" and run != folder:
            _forget(run)
        if row in good and run.is_dir() and not any(run.glob("events.out.tfevents.*")):
            board = Board(run)
            hparams(board, suite.name, row["point"], row["figures"], names=names)
            board.close()
    _forget(folder / "plots")
    if plots:
        from PIL import Image

        board = Board(folder / "plots")
        for path in plots:
            with Image.open(path) as image:
                board.images(
                    f"{suite.name}/{path.stem}",
                    np.asarray(image.convert("RGB"))[None],
                    0,
                )
        board.close()
    _write_curves(suite, [row for row in measured if row["status"] == "ok"], folder)
    return plots


def _forget(run: Path) -> None:
    """Remove the event files of a run, so that TensorBoard shows nothing of it."""
    for events in run.glob("events.out.tfevents.*"):
        events.unlink()


def series_of(
    suite: Suite, rows: Sequence[Row]
) -> tuple[str | None, dict[str, list[Row]]]:
    """Return the axis that the curves are over, None where no axis of `suite.over` differs, and the rows of
    each line, by what its points have in common and others have not."""
    differing = [
        name
        for name in dict.fromkeys(name for row in rows for name in row["point"])
        if len({json.dumps(row["point"].get(name)) for row in rows}) > 1
    ]
    over = next((axis for axis in suite.over if axis in differing), None)

    def name(row: Row) -> str:
        return (
            name_of(
                {key: row["point"].get(key, "") for key in differing if key != over},
                sep=", ",
            )
            or suite.name
        )

    return over, grouped(rows, name)


def _drawn(suite: Suite, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw each figure of the curves over their axis: lines over numbers, bars over names."""
    over, lines = series_of(suite, rows)
    titles = {
        column.key: column.title.format(unit=unit_of(rows)) for column in suite.columns
    }
    drawn = []
    for figure in suite.curves:
        if not any(value(row, figure) is not None for row in rows):
            continue
        path = folder / f"{figure}.png"
        title = f"{suite.name}: {titles[figure]}"
        places = list(dict.fromkeys(value(row, over) if over else "" for row in rows))
        numbers = over is not None and all(
            isinstance(place, int | float) for place in places
        )
        points: dict[str, dict[Any, float]] = {
            name: {
                (value(row, over) if over else ""): number
                for row in its
                if (number := value(row, figure)) is not None
            }
            for name, its in lines.items()
        }
        if numbers:
            curves: dict[str, Sequence[tuple[float, float]]] = {
                name: list(its.items()) for name, its in points.items() if its
            }
            drawn.append(
                _plots.lines(
                    path, curves, title=title, x=titles[str(over)], y=titles[figure]
                )
            )
        else:
            bars: _plots.Series = {
                name: [its.get(at) for at in places] for name, its in points.items()
            }
            drawn.append(
                _plots.bars(
                    path, list(map(str, places)), bars, title=title, unit=titles[figure]
                )
            )
    return drawn


def _write_curves(suite: Suite, rows: Sequence[Row], folder: Path) -> None:
    """Write TensorBoard's CUSTOM SCALARS anew: the page's axis is the step, so the axis of the curves is the
    step, and the points that differ in nothing else are a run, curves/<what they have in common>."""
    for events in (folder / "curves").glob("*/events.out.tfevents.*"):
        events.unlink()
    over, lines = series_of(suite, rows)
    shown = [
        name
        for name in suite.curves
        if any(value(row, name) is not None for row in rows)
    ]
    if (
        over is None
        or not shown
        or not all(isinstance(value(row, over), int | float) for row in rows)
    ):
        return
    # a step is a whole number
    parts = 1 if all(float(row["point"][over]).is_integer() for row in rows) else 1000
    group = f"{suite.name} over {over}" + (", thousandths" if parts > 1 else "")
    titles = {
        column.key: column.title.format(unit=unit_of(rows)) for column in suite.columns
    }
    for name, its in lines.items():
        run = (
            folder
            / "curves"
            / name.replace(", ", "-").replace("/", "_").replace(" ", "_")
        )
        run.mkdir(parents=True, exist_ok=True)
        board = Board(run)
        board.layout({group: {titles[figure]: [figure] for figure in shown}})
        for row in sorted(its, key=lambda row: float(row["point"][over])):
            board.scalars(
                {f"{group}/{figure}": value(row, figure) for figure in shown},
                round(parts * row["point"][over]),
            )
        board.close()


def hparams(
    board: Board,
    suite: str,
    point: Point,
    figures: Mapping[str, Any],
    *,
    names: Iterable[str] = (),
) -> None:
    """Write the point's row of the HPARAMS page, with the figures that are numbers; `names`: those of all
    rows, which the page needs."""
    numbers = {
        f"{suite}/{name}": float(number)
        for name, number in figures.items()
        if isinstance(number, int | float)
    }
    plain = {
        name: its if isinstance(its, int | float | str) else name_of({name: its})
        for name, its in point.items()
    }
    board.hparams(
        plain,
        metrics=sorted({*numbers, *(f"{suite}/{name}" for name in names)}),
        columns={name: type(its) for name, its in plain.items()},
    )
    board.scalars(numbers, 0)


@contextmanager
def progress(console: Console, title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show points (or searches) done of all, the time left, and a line for each point; without a terminal the
    lines alone."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    shown = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *shown,
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=86_400,
    ) as bar:
        task = bar.add_task(title, total=None)
        before: list[int] = []

        def tell(done: int, known: int, text: str) -> None:
            nonlocal task
            if (
                not before
            ):  # what an earlier command has measured says nothing of the time left
                before.append(done)
                bar.remove_task(task)
                task = bar.add_task(title, completed=done)
            bar.update(
                task, completed=done, total=known, description=text.partition(": ")[0]
            )
            if ": " in text or not console.is_terminal:
                console.print(f"[{done}/{known}] {text}", highlight=False, markup=False)

        yield tell


def processes(count: int) -> str:
    """Return a number of processes in words."""
    return f"{count} process{'es' if count > 1 else ''}"
