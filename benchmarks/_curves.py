"""Rows -> TensorBoard's CUSTOM SCALARS: a suite's main figures over one value of its points. Must not know
how a row was measured.

The page's axis is the step, so that value is the step; the points that differ in nothing else are a run,
curves/<what they have in common>.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks._suite import Row, Suite, name_of, value
from report.tensorboard import Board

CURVES = {
    "train": ("batch_size", ("rate", "compute_ceiling", "loader_ceiling", "efficiency")),
    "workers": ("batch_size", ("rate", "compute_ceiling", "gpu_utilisation", "power_w")),
    "loader": ("gpus", ("rate", "pass_s", "host_gib", "device_gib")),
    "slow-storage": ("read_delay_ms", ("waited_s", "total_s", "first_batch_s")),
    "max-batch": ("batch_size", ("device_gib", "allocated_gib", "host_gib")),
    "readers": ("processes", ("rate", "per_core", "cpu_us")),
}
"""Suite -> a value of its points, and figures. `soak` has curves over its epochs, in the run of each
point."""


def write(suite: Suite, rows: Sequence[Row], folder: Path, *, unit: str) -> None:
    """Write the curves anew, for the rows that have figures to show."""
    for events in (folder / "curves").glob("*/events.out.tfevents.*"):
        events.unlink()
    over, figures = CURVES.get(suite.name, ("", ()))
    good = [row for row in rows if row["status"] == "ok"]
    shown = [name for name in figures if any(value(row, name) is not None for row in good)]
    if not shown:
        return
    # a step is a whole number
    parts = 1 if all(float(row["point"][over]).is_integer() for row in good) else 1000
    group = f"{suite.name} over {over}" + (", thousandths" if parts > 1 else "")
    titles = {column.key: column.title.format(unit=unit) for column in suite.columns}
    named = dict.fromkeys(name for row in good for name in row["point"] if name != over)
    apart = [name for name in named if len({json.dumps(row["point"].get(name)) for row in good}) > 1]
    runs: dict[str, list[Row]] = {}
    for row in sorted(good, key=lambda row: float(row["point"][over])):
        runs.setdefault(
            name_of({name: row["point"].get(name, "") for name in apart}) or suite.name, []
        ).append(row)
    for name, its in runs.items():
        (folder / "curves" / name).mkdir(parents=True, exist_ok=True)
        board = Board(folder / "curves" / name)
        board.layout({group: {titles[figure]: [figure] for figure in shown}})
        for row in its:
            board.scalars(
                {f"{group}/{figure}": value(row, figure) for figure in shown},
                round(parts * row["point"][over]),
            )
        board.close()
