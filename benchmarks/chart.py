"""`python -m benchmarks chart TABLE.md TO.svg`: the rates of a table of `bench train`, a bar a loader.

The file may be the suite's table.md or a page that has such a table, whose first one is drawn. README's chart:

    python -m benchmarks chart docs/benchmarks/train.md docs/images/rates.svg
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from saturate.contracts import UserError
from saturate.run.program import Parser
from saturate.system.exit_codes import of_program

COLOURS = {
    "dali-gpu": "#0072b2",
    "dali-fed": "#009e73",
    "torchvision": "#d55e00",
    "dali-cpu": "#e69f00",
}
"""Loader -> its colour in every chart; others, such as loops by hand, are grey."""
Row = dict[str, str]


def rows_of(text: str) -> list[Row]:
    """Return the rows of the first table with rates, as column -> cell. Raises UserError."""
    rows: list[Row] = []
    names: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            names = []
            if rows:
                return rows
        elif {"loader", "img/s"} <= {*cells}:
            names = cells
        elif names and not line.startswith("| -"):
            rows.append(dict(zip(names, cells, strict=False)))
    if not rows:
        raise UserError("there is no table with the columns loader and img/s")
    return rows


def number(cell: str) -> float | None:
    """Return the number that a cell begins with; None where it has none."""
    found = re.match(r"[\d,]+(\.\d+)?", cell)
    return float(found[0].replace(",", "")) if found else None


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the chart as SVG, the same bytes for the same rows.

    A bar is the rate, a tick the loader alone, and the line the least compute ceiling.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # text stays text, and names of elements are not drawn at random
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rates"})
    figure, axes = pyplot.subplots(figsize=(7, 0.35 * len(rows) + 0.9))
    ranked = sorted(rows, key=lambda row: number(row["img/s"]) or 0)
    names = []
    for place, row in enumerate(ranked):
        loader = row["loader"]
        rate = number(row["img/s"]) or 0
        names.append(f"{loader} · {rate:,.0f}")
        axes.barh(place, rate, height=0.6, color=COLOURS.get(loader, "#b8b8b8"))
        alone = number(row.get("loader ceiling", ""))
        if alone is not None:
            axes.plot(alone, place, "k|", markersize=15, markeredgewidth=2)
            axes.annotate(
                f"{alone:,.0f}",
                (alone, place),
                xytext=(5, 0),  # points
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    ceilings = [number(row.get("compute ceiling", "")) for row in ranked]
    known = [ceiling for ceiling in ceilings if ceiling is not None]
    if known:
        axes.axvline(min(known), color="black", linestyle="--")
        axes.set_title(
            f"dashed: compute ceiling, {min(known):,.0f}; tick: the loader alone; grey: by hand",
            fontsize=9,
            loc="left",
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("images a second")
    axes.set_xlim(right=1.12 * axes.dataLim.x1)  # room for a tick's number
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0; 2 for a user's mistake."""
    parser = Parser("chart", __doc__)
    parser.add_argument(
        "table", type=Path, help="table.md of bench train, or a page with it"
    )
    parser.add_argument("output", type=Path, help="the .svg file to write")
    options = parser.parse_args(arguments)

    def run() -> int:
        draw(rows_of(options.table.read_text(encoding="utf-8")), options.output)
        return 0

    return of_program("chart", run)
