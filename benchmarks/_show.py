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
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import _curves
from benchmarks._suite import Column, Point, Rates, Row, Suite, merged, name_of, said_of, value, versions_of
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


def columns(suite: Suite, rows: Sequence[Row], *, detail: bool) -> list[Column]:
    """Return the columns that say something: not what is the same for all points, nor what no row has."""

    def tells(column: Column) -> bool:
        if column.detail and not detail:
            return False
        if all(column.key in row["point"] for row in rows):
            return len({json.dumps(row["point"][column.key]) for row in rows}) > 1
        return column.key == suite.rate or any(value(row, column.key) is not None for row in rows)

    return [column for column in suite.columns if tells(column)]


def same(suite: Suite, rows: Sequence[Row]) -> str:
    """Return the values that all points have in common, as text."""
    names = [column for column in suite.columns if all(column.key in row["point"] for row in rows)]
    left_out = [column for column in names if column not in columns(suite, rows, detail=True)]
    return ", ".join(f"{column.title} {_cell(rows[0], column.key, column.form)}" for column in left_out)


def cells(suite: Suite, rows: Sequence[Row], *, detail: bool) -> list[list[str]]:
    """Return the titles, and a line for each row. A row without figures says why, in the place of the
    rate."""
    shown = columns(suite, rows, detail=detail)
    found = [[column.title.format(unit=unit_of(rows)) for column in shown]]
    for row in rows:
        line = [
            _cell(row, column.key, column.form, spread=detail or column.key == suite.rate) for column in shown
        ]
        at = [column.key for column in shown].index(suite.rate)
        if row["status"] != "ok" and value(row, suite.rate) is None:
            line[at] = _why(row)
        elif row["figures"].get("lost"):
            line[at] += f"; {_short(row['error'])}"
        found.append(line)
    return found


def unit_of(rows: Sequence[Row]) -> str:
    """Return the unit of the rates: the one that any row names, also a failed one; else img/s."""
    said = (
        row["figures"].get("unit") or ("clip/s" if "clip_frames" in row["point"] else None) for row in rows
    )
    return next((str(unit) for unit in said if unit), "img/s")


def _cell(row: Row, key: str, form: str | Rates, *, spread: bool = True) -> str:
    found = value(row, key)
    if found is None:
        return "-"
    text = " ".join(map(str, found)) if isinstance(found, list) else form.format(found)
    its = row["spread"].get(key) if spread else None
    return f"{text} ({form.format(its['min'])} to {form.format(its['max'])}, {its['n']})" if its else text


def _why(row: Row) -> str:
    if row["status"] == "short":
        return "too short: no figure" + (f"; {_short(row['error'])}" if row["error"] else "")
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
    head = [f"# {suite.name}", "", suite.about, "", f"{fence}bash", about["command"], fence, ""]
    head += [f"- commit {about['commit']}"] if about.get("commit") else []
    head += [f"- {line}" for line in conditions(suite, rows, _escaped(about.get("note", "")))]
    head += ["- A figure with a spread is the median of its repeats (smallest to largest, number).", ""]
    titles, *lines_ = cells(suite, rows, detail=True)
    table = [
        _line(titles),
        _line(["---"] * len(titles)),
        *(_line(cell.replace("|", "/") for cell in line) for line in lines_),
    ]
    told = [f"- {one}" for one in concluded(suite, rows)]
    return "\n".join([*head, *table, *([""] if told else []), *told]) + "\n"


def _escaped(note: str) -> str:
    """Return a note in which nothing begins a block of code."""
    return FENCE.sub(lambda found: "".join(f"\\{mark}" for mark in found[0]), note)


def _line(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def conditions(suite: Suite, rows: Sequence[Row], note: str = "") -> list[str]:
    """Return hardware and versions (each once, whatever differs listed), the noise of the repeats, clocks and
    throttling."""
    told = [" ".join(note.split())] if note.strip() else []
    told += [f"The same for all: {shared}."] if (shared := same(suite, rows)) else []
    told += suite.remarks(rows)
    machines = {_machine(row["hardware"]) for row in rows if row["hardware"]}
    told += sorted(machines)
    versions = sorted(versions_of(rows).items())
    told += [", ".join(f"{name} {found}" for name, found in versions)] if versions else []
    noise = [
        spread["iqr"] / row["figures"][suite.rate]
        for row in rows
        if row["status"] == "ok" and (spread := row["spread"].get(suite.rate))
    ]
    if when := sorted(
        {time.strftime("%Y-%m-%d", time.gmtime(row["began"])) for row in rows if row.get("began")}
    ):
        told.append(f"Measured on {' and '.join(when)}.")
    if noise:
        runs = max((row["figures"].get("repeats") or 0) for row in rows)
        told.append(
            f"Spread over {runs} processes a point."
            if runs
            else "Spread over windows or passes of one process a point."
        )
        told.append(
            f"Noise: half of the repeats of a point lie within {np.median(noise):.1%} of its median (worst "
            f"point {max(noise):.1%})."
        )
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


def show(suite: Suite, rows: Sequence[Row], folder: Path, console: Console, *, write: bool = True) -> None:
    """Print the table; with `write`, write table.md, plots/*.png and the TensorBoard runs."""
    from rich.table import Table
    from rich.text import Text

    measured = merged(rows)
    rows = suite.derive(measured)
    table = Table(title=f"{suite.name}: {suite.about}", title_justify="left")
    titles, *found = cells(suite, rows, detail=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for its in found:
        table.add_row(*map(Text, its))  # an error may hold what looks like markup
    console.print(table)
    more = [title for title in cells(suite, rows, detail=True)[0] if title not in titles]
    elsewhere = [f"More columns in table.md: {', '.join(more)}."] if more else []
    for line in (*elsewhere, *conditions(suite, rows), *concluded(suite, rows)):
        console.print(line, highlight=False, markup=False)
    if not write:
        return
    replace(folder / "table.md", printable(markdown(suite, rows, folder)).encode())
    plots = _plotted(suite, rows, folder, console)
    if suite.follow:  # a row is of many trials; their own runs say nothing to compare
        for row in measured:
            _forget(folder / row["folder"])
    _tensorboard(suite, rows, folder, plots)
    _curves.write(suite, measured if suite.follow else rows, folder, unit=unit_of(rows))
    told = f"table: {folder / 'table.md'}   plots: {len(plots)}   TensorBoard: "
    told += f"tensorboard --logdir {shlex.quote(str(folder))}"
    console.print(printable(told), highlight=False, markup=False)


def printable(text: str) -> str:
    r"""Write the bytes of a file's name that are no UTF-8 as \udcXX, as Python spells them."""
    return text.encode(errors="backslashreplace").decode()


def _plotted(suite: Suite, rows: Sequence[Row], folder: Path, console: Console) -> list[Path]:
    good = [row for row in rows if row["figures"] and row["status"] != "short"]
    if not good:
        return []
    try:
        import matplotlib
    except ImportError:
        console.print("no plots: pip install matplotlib, then python -m scripts.report FOLDER")
        return []
    matplotlib.use("Agg")
    (folder / "plots").mkdir(exist_ok=True)
    return suite.plots(good, folder / "plots")


def _tensorboard(suite: Suite, rows: Sequence[Row], folder: Path, plots: Sequence[Path]) -> None:
    """Write plots as images, and a row of HPARAMS for each point that is no run of train.py, which has
    written its own."""
    names = {name for row in rows for name, found in row["figures"].items() if isinstance(found, int | float)}
    for row in rows:
        run = folder / row["folder"]
        # a figure that is refused is not to be found there either; a plain run is not ours
        if row["status"] == "short" and run != folder:
            _forget(run)
        if (
            not row["figures"]
            or row["status"] == "short"
            or not run.is_dir()
            or any(run.glob("events.out.tfevents.*"))
        ):
            continue
        board = Board(run)
        hparams(board, suite.name, row["point"], row["figures"], names=names)
        board.close()
    if plots:
        from PIL import Image

        _forget(folder / "plots")
        board = Board(folder / "plots")
        for path in plots:
            with Image.open(path) as image:
                board.images(f"{suite.name}/{path.stem}", np.asarray(image.convert("RGB"))[None], 0)
        board.close()


def _forget(run: Path) -> None:
    """Remove the event files of a run, so that TensorBoard shows nothing of it."""
    for events in run.glob("events.out.tfevents.*"):
        events.unlink()


def hparams(
    board: Board, suite: str, point: Point, figures: Mapping[str, Any], *, names: Iterable[str] = ()
) -> None:
    """Write the point's row of the HPARAMS page, with the figures that are numbers; `names`: those of all
    rows, which the page needs."""
    numbers = {
        f"{suite}/{name}": float(found) for name, found in figures.items() if isinstance(found, int | float)
    }
    board.hparams(
        {
            name: found if isinstance(found, int | float | str) else name_of({name: found})
            for name, found in point.items()
        },
        metrics=sorted({*numbers, *(f"{suite}/{name}" for name in names)}),
        columns={
            name: type(found) if isinstance(found, int | float | bool) else str
            for name, found in point.items()
        },
    )
    board.scalars(numbers, 0)


class Left:
    """The time left, as a text that counts down: the mean of what has ended in this run, times what is
    left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: int | None = None
        self._began = self._ended = 0.0
        self._done = self._known = 0

    def tell(self, done: int, known: int) -> None:
        """Tell that `done` of `known` points are over. Those that are over at the first call do not count for
        the time left."""
        now = self._clock()
        if self._before is None:
            self._before = done
            self._began = now
        if done > self._done:
            self._ended = now
        self._done = done
        self._known = known

    def __str__(self) -> str:
        ended = self._done - (self._before or 0)
        left = self._known - self._done
        if not ended:
            return "-:--:--"
        each_s = (self._ended - self._began) / ended
        this_s = max(each_s - (self._clock() - self._ended), 0.0)
        return str(timedelta(seconds=round(this_s + each_s * (left - 1) if left else 0)))


@contextmanager
def progress(console: Console, title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show points (or searches) done of all, the time left, and a line for each point; without a terminal the
    lines alone."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]}"),
    )
    with Progress(*shown, console=console, disable=not console.is_terminal) as bar:
        left = Left()
        task = bar.add_task(title, total=None, left=left)

        def tell(done: int, known: int, said: str) -> None:
            left.tell(done, known)
            bar.update(task, completed=done, total=known, description=said.partition(": ")[0])
            if ": " in said or not console.is_terminal:
                console.print(f"[{done}/{known}] {said}", highlight=False, markup=False)

        yield tell


def best(rows: Sequence[Row], figure: str, **where: Any) -> float | None:
    """Return the largest figure of the rows whose point has these values."""
    found = [row["figures"].get(figure) for row in rows if where.items() <= row["point"].items()]
    return max((one for one in found if one is not None), default=None)


def by(
    rows: Sequence[Row], name: str, key: Callable[[Any], Any] = lambda found: found
) -> dict[Any, list[Row]]:
    """Group rows by a value of their point."""
    return grouped(rows, lambda row: key(row["point"][name]))


def grouped(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def processes(count: int) -> str:
    """Return a number of processes in words."""
    return f"{count} process{'es' if count > 1 else ''}"
