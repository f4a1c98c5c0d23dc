"""`python -m benchmarks published` NAME: the table of a published report, by hand here, and ours.

A report is a file of configs/published/: title, source, hardware, what differs, and tables. A table names a
suite of `python -m benchmarks` and its `flags` (those of `without_gpu` where there is none), the `set` that
is its --data and the `count` of files in it, the `figures` that are compared, with their titles and `units`,
the `baseline` of the ratios (`apart`: each column has its own), and `lines`. A line has the report's figures,
the point of the suite that is the same `by_hand`, the one that is `ours`, and the `gpus` that it needs. Or
`lines` are all combinations `over` axes of the suite: their `name` is a format, and each adds its values to
the points.

Machines differ, so rows are compared by their ratios: the report's to its own baseline, those of here to the same
baseline by hand, in the same run. What follows a bare -- are flags of the suite that replace the report's.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks import link_set, patch_set, video_set
from benchmarks._suite import (
    Common,
    Point,
    Row,
    crossed,
    merged,
    run,
    said_of,
    value,
)
from benchmarks.bench import suite_of
from benchmarks.train import words
from saturate.contracts import UserError, counted, one_line
from saturate.report import record
from saturate.run.trial import ending_on_signals
from saturate.settings import cli
from saturate.settings.cli import Settings, one_of
from scripts import demo_set, demo_superres, demo_textures

REPORTS = Path(__file__).resolve().parents[1] / "configs" / "published"
LEFT_OUT = "not measured: the flags of the suite leave it out here"
"""Why a point that a line names is not among the suite's."""
PATCHES = (16, 64)
"""Sides of patches that are cut, pixels."""
PIXELS = ("raw", "lz4")
"""How decoded patches are kept in LMDBs of their own."""
HERE = ("by_hand", "ours")
"""Columns of what is measured."""
DRAWN = {"textures": demo_textures, "edges": demo_superres}
"""Sets that are always drawn, of classes and for super-resolution."""
Table = dict[str, Any]


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
    """Longest that one process may take, seconds."""


def names() -> list[str]:
    """Return the names of all reports."""
    return sorted(path.stem for path in REPORTS.glob("*.yaml"))


def read(name: str) -> dict[str, Any]:
    """Return a report by its name. Raises UserError for one that is not there."""
    path = REPORTS / f"{one_of('REPORT', name, names())}.yaml"
    report: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for table in report["tables"]:
        if isinstance(lines := table["lines"], dict):
            asked = {column: lines[column] for column in HERE if column in lines}
            table["lines"] = [
                {"name": lines["name"].format(**axes)}
                | {column: point | axes for column, point in asked.items()}
                for axes in crossed(**lines["over"])
            ]
    return report


def data_for(
    kind: str, count: int, settings: Published, folder: Path
) -> tuple[Path, str]:
    """Return the --data of a table's suite, made below `folder` where it is not given, and what to say of it.

    `kind` is images (train/), training (train/ and val/), videos, patches (which `patch-set` makes) or
    one of DRAWN. Raises UserError.
    """
    root, said = settings.data, f"the images of {settings.data}"
    # other images are another set, though a run before has made one below the same --output
    digest = hashlib.blake2b(str(root).encode(), digest_size=4).hexdigest()
    target = folder / (f"{kind}-{count}-{digest}" if root else f"{kind}-{count}")
    try:
        if kind in DRAWN:
            DRAWN[kind].write(target)
            return target, f"drawn {kind}"
        if kind == "videos":
            if settings.videos is None:
                video_set.write(target, count, progress=False)
            return settings.videos or target, f"{settings.videos or 'coded videos'}"
        if kind == "patches":
            patch_set.write(target, PATCHES, count, images=root, pixels=PIXELS)
            said = said if root else "drawn textures, since --data is not given"
            return target, f"{said}, cut into {counted(count, 'patch')}"
        if root is None:
            root, said = folder / "drawn", "drawn images, since --data is not given"
            demo_set.write(root, 50, 5, progress=False)
        splits = ("train", "val") if kind == "training" else ("train",)
        for place in [target / split for split in splits]:
            if not place.exists():
                names = max(count, len(link_set.sources(root)))
                link_set.link(root, place, names, symbolic=True)
        return target, f"{said}, as {count:,} names"
    except (ValueError, OSError) as error:
        raise UserError(f"--data: {error}") from None


# --- a table ------------------------------------------------------------------------------------------------


def settled(table: Table, gpus: int) -> tuple[dict[str, Any], int]:
    """Return the flags of a table's suite and the count of files, as this machine has GPUs."""
    flags = table["flags"] | ({} if gpus else table.get("without_gpu", {}))
    count = int(flags.pop("count", table["count"]))
    if gpus and "gpus" in flags:
        flags["gpus"] = [number for number in flags["gpus"] if number <= gpus]
    return flags, count


def holds(point: Point, part: Point | None) -> bool:
    """Whether a point has these values."""
    return part is not None and part.items() <= point.items()


def shown(table: Table, points: Sequence[Point], gpus: int) -> list[Point]:
    """Return the points that a line of the table shows on a machine with so many GPUs: of a suite's loaders
    times its GPUs few are.
    """
    lines = [line for line in table["lines"] if line.get("gpus", 0) <= gpus]
    parts = [line.get(column) for line in lines for column in HERE]
    return [point for point in points if any(holds(point, part) for part in parts)]


def cells(table: Table, figure: str, rows: Sequence[Row], gpus: int) -> list[list[str]]:
    """Return a list a line: its name, theirs, by hand here, ours; each a figure with its ratio to the
    baseline, and its spread where it was repeated, or why there is none.

    The baseline here is the one by hand, or ours where nothing by hand is measured; of a table whose columns
    are `apart`, each has its own.
    """
    unit = table.get("units", {}).get(figure, 1.0)

    def here(line: Table, column: str) -> tuple[float | None, str, str]:
        """Return a figure, as text or why there is none, and its spread."""
        part = line.get(column)
        row = next((row for row in rows if holds(row["point"], part)), None)
        if part is None:
            return None, "-", ""
        if line.get("gpus", 0) > gpus:
            return None, f"cannot run here: it needs {line['gpus']} GPUs", ""
        if row is None:
            return None, LEFT_OUT, ""
        known = value(row, figure)
        if row["status"] != "ok":
            return None, f"not measured: {said_of(row)}", ""
        if known is None:
            return None, "not measured: it has no such figure here", ""
        its = row["spread"].get(figure)
        ends = [_digits(its[end] / unit) for end in ("min", "max")] if its else []
        return known / unit, _digits(known / unit), " to ".join(ends)

    lines = {}
    for line in table["lines"]:
        known = line.get("published", {}).get(figure)
        theirs = (known, f"{known:,.6g}" if known else "-", "")
        lines[line["name"]] = [theirs, here(line, "by_hand"), here(line, "ours")]
    theirs, by_hand, ours = (first for first, *_ in lines[table["baseline"]])
    baselines = [theirs, by_hand or ours, by_hand or ours]
    if table.get("apart"):
        baselines[2] = ours

    def cell(known: float | None, text: str, between: str, base: float | None) -> str:
        more = [f"{known / base:.2f} x"] if known and base else []
        more += [between] if between else []
        return f"{text} ({'; '.join(more)})" if more else text

    return [
        [name, *(cell(*one, base) for one, base in zip(its, baselines, strict=True))]
        for name, its in lines.items()
    ]


def _digits(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.4g}"


def measured(
    table: Table, settings: Published, more: Sequence[str], folder: Path
) -> str:
    """Measure a table with `more` flags of its suite, and return it as Markdown. Raises UserError."""
    gpus = torch.cuda.device_count()
    head = f"## {table['about']}\n"
    if table.get("gpus", 0) > gpus:
        return f"{head}\nCannot run here: it needs a GPU.\n"
    whole = suite_of(table["suite"])

    def points(flagged: Common) -> list[Point]:
        found = shown(table, whole.points(flagged), gpus)
        if not found:
            raise UserError(
                f"{table['name']}: the flags leave nothing that a line shows"
            )
        return found

    flags, count = settled(table, gpus)
    prog = f"bench {whole.name}"
    # before a set is drawn
    cli.flags(whole.settings, [*words(flags), *more], prog=prog)
    data, said = data_for(table["set"], count, settings, folder)
    argv = [*words({"data": str(data), **flags, "limit_s": settings.limit_s}), *more]
    asked = cli.flags(whole.settings, argv, prog=prog)
    suite = replace(whole, points=points)
    rows = suite.derive(merged(run(suite, asked, folder / table["name"], print)))
    for row in rows:  # of as many samples as the table has
        if row["status"] == "ok" and row["figures"].get("rate"):
            row["figures"].setdefault("epoch_s", count / row["figures"]["rate"])
    command = ["python", "-m", "benchmarks", whole.name, *words(flags), *more]
    apart = ", each column's to its own" if table.get("apart") else ""
    lines = [
        head,
        f"Ratios are to *{table['baseline']}*{apart}. Data: {said}.\n",
        f"```bash\n{shlex.join(command)}\n```\n",
    ]
    for figure, title in table["figures"].items():
        titles = [[title, "theirs", "by hand here", "ours"], ["---"] * 4]
        body = cells(table, figure, rows, gpus)
        lines += [*(f"| {' | '.join(row)} |" for row in titles + body), ""]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Return 0; 2 for a user's mistake, 130 on an interrupt."""
    if not argv or argv[0] in ("-h", "--help"):
        print(f"{__doc__}\n")
        for name in names():
            print(f"  {name:16}{read(name)['title']}")
        return 0
    try:
        report = read(argv[0])
        at = argv.index("--") if "--" in argv else len(argv)
        settings = cli.flags(Published, argv[1:at], prog=f"published {argv[0]}")
        known = {table["name"]: table for table in report["tables"]}
        chosen = [one_of("--tables", name, known) for name in settings.tables or known]
        date = time.strftime("%Y%m%d-%H%M%S")
        folder = settings.output or Path("runs") / f"published-{argv[0]}-{date}"
        head = (
            f"# {report['title']}\n\n{report['source']} Theirs: {report['hardware']}.\n"
        )
        parts = [head, *(f"- {line}" for line in report["differs"]), ""]
        folder.mkdir(parents=True, exist_ok=True)
        with ending_on_signals():
            for name in chosen:
                parts.append(measured(known[name], settings, argv[at + 1 :], folder))
                print(parts[-1], flush=True)
        record.replace(folder / "published.md", "\n".join(parts).encode())
        print(f"published: {folder / 'published.md'}")
    except (UserError, OSError) as mistake:
        print(one_line(f"published: {mistake}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("published: interrupted; --output goes on", file=sys.stderr)
        return 130
    return 0
