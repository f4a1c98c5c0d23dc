"""`python -m scripts.published` NAME: the table of a published report, by hand here, and ours.

A report is a file of configs/published/: its figures, its hardware, and for each row the point of a suite of
`python -m scripts.bench` that is the same by hand, and the one that is ours. Nothing is timed here. Machines
differ, so rows are compared by their ratios: the report's to its own baseline, those of here to the same
baseline by hand, in the same run. What follows a bare -- are flags of the suite that replace the report's.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # also when it is started as a file

import yaml
from PIL import Image
from pydantic import Field, PositiveInt, ValidationError

from benchmarks import _show
from benchmarks._flags import asked
from benchmarks._process import ending_on_signals
from benchmarks._suite import Common, Row, merged, run, said_of, value
from contracts import UserError
from report import record
from scripts import demo_set, demo_textures, link_set, patch_set, video_set
from scripts.bench import suite_of
from settings.cli import Settings, one_of

REPORTS = Path(__file__).resolve().parents[1] / "configs" / "published"
HERE = ("by hand here", "ours")
"""Columns of what is measured."""
LEFT_OUT = "not measured: the flags of the suite leave it out here"
"""Why a point that a line names is not among the suite's."""
PATCHES = (16, 64)
"""Sides of patches that are cut, pixels."""
Point = dict[str, Any]


class Line(Settings):
    """One row of a report: what was published, and the points of the suite that are the same here."""

    name: str
    published: dict[str, float] = Field(default_factory=dict)
    """The report's figures, by the names that they have in the suite; none where it has no such row."""
    by_hand: Point | None = None
    """What the point of the loop by hand has; none where there is none to write."""
    ours: Point | None = None
    """What our point has."""
    gpus: int = 0
    """GPUs that the row needs to be of any meaning."""


class Table(Settings):
    """One table of a report, measured by one suite."""

    name: str
    """Names its folder of results."""
    about: str
    """What the figures are, for the title."""
    suite: str
    """Suite of `python -m scripts.bench` that measures it."""
    set: Literal["images", "png", "training", "videos", "patches", "textures", "none"]
    """What --data of the suite is: <class>/*, these as PNG files, train/ and val/ of these, videos, or what
    scripts.patch_set and scripts.demo_textures make."""
    count: PositiveInt
    """Files that one pass of the report has."""
    flags: dict[str, Any]
    """Flags of the suite, as the report's setting has them."""
    without_gpu: dict[str, Any] = Field(default_factory=dict)
    """Flags that are others where there is no GPU: smaller sets, fewer steps; `count` may be here too."""
    gpus: int = 0
    """GPUs without which the table means nothing."""
    figures: dict[str, str]
    """Figure of the suite that is compared -> what it is, with the report's unit."""
    units: dict[str, float] = Field(default_factory=dict)
    """Figure -> the report's unit in that of the suite, where they differ: 60 for minutes of seconds."""
    baseline: str
    """Name of the line that the ratios are to."""
    apart: bool = False
    """Whether ratios of ours are to our own figure of that line, and not to that by hand."""
    lines: tuple[Line, ...]


class Report(Settings):
    """A published report: a file of configs/published/."""

    title: str
    source: str
    """Where it was published."""
    hardware: str
    """What its figures were measured on."""
    differs: tuple[str, ...] = ()
    """Sentences on what is not as in the report, here or there."""
    tables: tuple[Table, ...]


class Published(Settings):
    """The table of a published report: theirs, by hand here, ours."""

    data: Path | None = None
    """Folder of images, <class>/* or train/<class>/*, of which links make as many as the report had. Default:
    a set is drawn."""
    videos: Path | None = None
    """Folder of videos, for `sharded`. Default: a set is coded."""
    output: Path | None = None
    """Folder of the results and of sets that are made; the same command with it goes on. Default:
    runs/published-REPORT-<date>."""
    tables: tuple[str, ...] = ()
    """Tables of the report, by name. Default: all."""
    limit_s: float = 900.0
    """Longest that one point may take, seconds."""


def read(name: str) -> Report:
    """Return a report by its name. Raises UserError for one that is not there, or that lacks something."""
    path = REPORTS / f"{one_of('REPORT', name, names())}.yaml"
    try:
        return Report.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg']}") from None


def names() -> list[str]:
    """Return the names of all reports."""
    return sorted(path.stem for path in REPORTS.glob("*.yaml"))


# --- data ---------------------------------------------------------------------------------------------------


def data_for(
    table: Table, count: int, settings: Published, folder: Path
) -> tuple[Path | None, str]:
    """Return the --data of a table's suite, made below `folder` where it is not given, and what to say of it.

    Raises UserError.
    """
    target = folder / f"{table.set}-{count}"
    try:
        if table.set == "none":
            return None, "the suite makes what it reads"
        if table.set == "textures":
            demo_textures.write(target)
            return target, f"drawn textures, version {demo_textures.SET.version}"
        if table.set == "patches":
            patch_set.write(target, PATCHES, count, images=settings.data)
            source = (
                f"the images of {settings.data}"
                if settings.data
                else "--data is not given: drawn textures"
            )
            return target, f"{source}, cut into {count:,} patches"
        if table.set == "videos":
            if settings.videos:
                return settings.videos, f"the videos of {settings.videos}"
            kind = video_set.Kind()
            video_set.write(target, count, kind, progress=False)
            return (
                target,
                f"--videos is not given: {count} coded ones of {kind.frames} frames",
            )
        root, what = settings.data, f"the images of {settings.data}"
        if root is None:
            root, what = (
                folder / "drawn",
                "--data is not given: drawn images, smaller than photographs",
            )
            demo_set.write(root, 50, 5, progress=False)
        if table.set == "png":
            return (
                target,
                f"{what}, {_as_png(root, target, count):,} of them as PNG files",
            )
        for below in ("train", "val") if table.set == "training" else ("",):
            target.mkdir(parents=True, exist_ok=True) if below else None
            if not (target / below).exists():
                number = max(count, len(link_set.sources(root)))
                link_set.link(root, target / below, number, symbolic=True)
        return target, f"{what}, linked to {count:,} names"
    except (ValueError, OSError) as error:
        raise UserError(f"--data: {error}") from None


def _as_png(root: Path, target: Path, count: int) -> int:
    """Write the first `count` images as PNG files, unless they are there; return their number."""
    files = link_set.sources(root)[:count]
    if not target.exists():
        with link_set.filled(target, root) as fresh:
            for number, file in enumerate(files):
                png = fresh / file.parent.name / f"{number:04d}.png"
                png.parent.mkdir(parents=True, exist_ok=True)
                with Image.open(file) as image:
                    image.convert("RGB").save(png)
    return len(files)


# --- a table ------------------------------------------------------------------------------------------------


def words(flags: Mapping[str, Any]) -> list[str]:
    """Return flags of a suite as a command line has them; None leaves a flag out."""
    found: list[str] = []
    for name, its in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(its, str):
            found.append(f"{flag}={its}")  # --flags has words that begin like flags
        elif its is not None:
            several = its if isinstance(its, list) else [its]
            found += [
                flag,
                *(
                    str(each).lower() if isinstance(each, bool) else str(each)
                    for each in several
                ),
            ]
    return found


def settled(table: Table, gpus: int) -> tuple[dict[str, Any], int]:
    """Return the flags of a table's suite and the count of files, as this machine has GPUs."""
    flags = dict(table.flags) if gpus else table.flags | table.without_gpu
    count = int(flags.pop("count", table.count))
    if gpus and "gpus" in flags:
        flags["gpus"] = [number for number in flags["gpus"] if number <= gpus]
    return flags, count


def row_of(rows: Sequence[Row], point: Point) -> Row | None:
    """Return the row whose point has these values."""
    return next((row for row in rows if point.items() <= row["point"].items()), None)


def named(table: Table, points: Sequence[Point], gpus: int) -> list[Point]:
    """Return the points that a line of the table shows on a machine with so many GPUs: of a suite's loaders
    times its GPUs few are."""
    lines = [line for line in table.lines if line.gpus <= gpus]
    shown = [
        point
        for line in lines
        for point in (line.by_hand, line.ours)
        if point is not None
    ]
    return [
        point for point in points if any(one.items() <= point.items() for one in shown)
    ]


@dataclass(frozen=True, slots=True)
class Found:
    """A cell: a figure and the smallest and largest of its repeats, or why there is none."""

    figure: float | None
    why: str = "-"
    between: tuple[float, float] | None = None
    exact: bool = False  # to be shown as it was published


def found_here(
    table: Table,
    line: Line,
    point: Point | None,
    rows: Sequence[Row],
    figure: str,
    gpus: int,
) -> Found:
    """Return the figure of a point in the report's unit, or why there is none here."""
    if point is None:
        return Found(None)
    if line.gpus > gpus:
        return Found(
            None, f"cannot run here: it needs {line.gpus} GPU{'s' * (line.gpus > 1)}"
        )
    row = row_of(rows, point)
    if row is None:
        return Found(None, LEFT_OUT)
    if row["status"] == "absent":
        return Found(None, f"cannot run here: {row['error']}")
    if row["status"] != "ok":
        return Found(None, f"not measured: {said_of(row)}")
    found = value(row, figure)
    if found is None:
        return Found(None, "not measured")
    unit = table.units.get(figure, 1.0)
    its = row["spread"].get(figure)
    return Found(
        found / unit, between=(its["min"] / unit, its["max"] / unit) if its else None
    )


def cells(table: Table, figure: str, rows: Sequence[Row], gpus: int) -> list[list[str]]:
    """Return a list a line: its name, theirs, by hand here, ours; each a figure with its ratio to the
    baseline, and its spread where it was repeated.

    The baseline here is the one by hand, or ours where nothing by hand is measured; of a table whose columns
    are `apart`, each has its own.
    """
    found = {
        line.name: [
            Found(line.published.get(figure), exact=True),
            *(
                found_here(table, line, point, rows, figure, gpus)
                for point in (line.by_hand, line.ours)
            ),
        ]
        for line in table.lines
    }
    theirs, by_hand, ours = (each.figure for each in found[table.baseline])
    here = by_hand if by_hand is not None else ours
    baselines = (theirs, here, ours if table.apart else here)

    def said(cell: Found, baseline: float | None) -> str:
        if cell.figure is None:
            return cell.why
        more = [f"{cell.figure / baseline:.2f} x"] if baseline else []
        more += [" to ".join(map(_digits, cell.between))] if cell.between else []
        shown = f"{cell.figure:,.6g}" if cell.exact else _digits(cell.figure)
        return shown + (f" ({'; '.join(more)})" if more else "")

    return [
        [name, *(said(*pair) for pair in zip(its, baselines, strict=True))]
        for name, its in found.items()
    ]


def _digits(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.4g}"


def markdown(
    table: Table, told: Mapping[str, Sequence[Sequence[str]]], data: str, command: str
) -> str:
    """Return the tables of a suite, one a figure, with what was run for them."""
    to = (
        "each column's to its own"
        if table.apart
        else "theirs to their own, those of here to that of here"
    )
    lines = [
        f"## {table.about}",
        "",
        f"Ratios are to *{table.baseline}*: {to}. Data: {data}.",
        "",
        f"```bash\n{command}\n```",
        "",
    ]
    for title, rows in told.items():
        whole = [[title, "theirs", *HERE], ["---"] * 4, *rows]
        lines += [*(f"| {' | '.join(row)} |" for row in whole), ""]
    return "\n".join(lines)


def measured(
    table: Table, settings: Published, more: Sequence[str], folder: Path, console: Any
) -> str:
    """Measure a table with `more` flags of its suite, print it, and return it as Markdown. Raises
    UserError."""
    import torch

    gpus = torch.cuda.device_count()
    if table.gpus > gpus:
        console.print(
            f"{table.about}\ncannot run here: it needs a GPU", highlight=False
        )
        return f"## {table.about}\n\nCannot run here: it needs a GPU.\n"
    whole = suite_of(table.suite)

    def points(flagged: Common) -> list[Point]:
        every = whole.points(flagged)
        found = named(table, every, gpus)
        if every and not found:
            raise UserError(
                f"--tables {table.name}: no line for this machine has what the flags behind -- measure"
            )
        return found

    suite = replace(whole, points=points)
    flags, count = settled(table, gpus)
    asked(
        suite.settings, [*words(flags), *more], prog=f"bench {suite.name}"
    )  # before a set is drawn
    data, said = data_for(table, count, settings, folder)
    if not gpus and (
        others := {name: flags[name] for name in table.without_gpu if name in flags}
    ):
        said += f"; {shlex.join(words(others))} in place of the report's, for no GPU is here"
    said += f"; {shlex.join(more)} in place of the report's" if more else ""
    own = {"data": str(data)} if data else {}
    argv = [*words({**own, **flags, "limit_s": settings.limit_s}), *more]
    results = folder / table.name
    with _show.progress(console, f"{table.name} ({table.suite})") as progress:
        rows = run(
            suite,
            asked(suite.settings, argv, prog=f"bench {suite.name}"),
            results,
            progress,
        )
    shown_rows = suite.derive(merged(rows))
    for row in shown_rows:  # of as many samples as the table has
        if row["status"] == "ok" and row["figures"].get("rate"):
            row["figures"].setdefault("epoch_s", count / row["figures"]["rate"])
    told = {
        title: cells(table, figure, shown_rows, gpus)
        for figure, title in table.figures.items()
    }
    place = ["--data", "DATA"] if data else []
    command = shlex.join(
        ["python", "-m", "scripts.bench", table.suite, *place, *words(flags), *more]
    )
    text = markdown(table, told, said, command)
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    return text


def main(argv: list[str]) -> int:
    """Return 0; 2 for a user's mistake, 130 on an interrupt."""
    try:
        from rich.console import Console

        if not argv or argv[0] in ("-h", "--help"):
            print(f"{__doc__}\n")
            for name in names():
                print(f"  {name:16}{read(name).title}")
            return 0
        report = read(argv[0])
        at = argv.index("--") if "--" in argv else len(argv)
        settings = asked(Published, argv[1:at], prog=f"published {argv[0]}")
        folder = (
            settings.output
            or Path("runs") / f"published-{argv[0]}-{time.strftime('%Y%m%d-%H%M%S')}"
        )
        console = Console(width=None if sys.stdout.isatty() else 200)
        console.print(
            f"{report.title}\n{report.source}\ntheirs: {report.hardware}",
            *report.differs,
            sep="\n",
            highlight=False,
        )
        known = {table.name: table for table in report.tables}
        chosen = [one_of("--tables", name, known) for name in settings.tables or known]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise record.unwritable(folder, error) from None
        with ending_on_signals():
            made = [
                measured(known[name], settings, argv[at + 1 :], folder, console)
                for name in chosen
            ]
        head = [
            f"# {report.title}",
            "",
            f"{report.source} Theirs: {report.hardware}.",
            "",
        ]
        head += [*(f"- {line}" for line in report.differs), ""]
        record.replace(folder / "published.md", "\n".join([*head, *made]).encode())
        console.print(f"published: {folder / 'published.md'}", highlight=False)
        return 0
    except UserError as mistake:
        print(f"published: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "published: interrupted; the same command with --output goes on",
            file=sys.stderr,
        )
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
