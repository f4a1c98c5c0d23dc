"""The points of `workers --task superres`: batch x store x host memory x patch x workers x launching.

Each is a run of train.py on ready patches; beside them the loop by hand. Knows no figure but the rate.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _show, train
from benchmarks._suite import Point, Row
from benchmarks.baselines.superres import SCALE
from contracts import UserError
from scripts.patch_set import STAMP

LOOP = f"{train.BY_HAND}torchvision"
LOOP_WORKERS = 16
"""Workers of the loop by hand, as the report has them."""
REACH = (1.3, 5.0)
"""The epoch of the smallest batch over that of the largest, at most; its rate over the loop's, at least."""


def points(settings: Any, workers: Sequence[int], memory: Sequence[str], steps: Sequence[str]) -> list[Point]:
    """Return the points. Raises UserError where a set is missing."""
    if settings.data is None:
        raise UserError("--data is missing: a folder that python -m scripts.patch_set has made")
    data = Path(settings.data)
    sets = [f"{store}-{patch}" for patch in settings.patches for store in settings.stores]
    for name in sets:
        if not (data / name).is_dir():
            raise UserError(f"--data {settings.data}: has no {name}/; python -m scripts.patch_set makes it")
    count = json.loads((data / STAMP).read_text(encoding="utf-8"))["count"] - 1
    fixed = {
        "arch": settings.arch or "srcnn",
        "loader": settings.loader or "paired",
        "precision": settings.precision,
        "patches": count,
    }
    named = ("image_size", "store", "workers", "batch_size", "memory", "step")
    found: list[Point] = []
    for patch, store, size in itertools.product(settings.patches, settings.stores, settings.batch_sizes):
        ours = itertools.product([patch], [store], workers, [size], memory, steps)
        found += [fixed | dict(zip(named, values, strict=True)) for values in ours]
        if settings.by_hand and store == "png":  # right behind its own: a machine's speed drifts
            loop = (patch, store, LOOP_WORKERS, size, "pinned", "by hand")
            found.append(fixed | {"loader": LOOP} | dict(zip(named, loop, strict=True)))
    return found


def command(settings: Any, point: Point, folder: Path) -> list[str]:
    """Return the command of train.py, or of the loop by hand."""
    data = Path(settings.data) / f"{point['store']}-{point['image_size']}"
    own = f"--workers {point['workers']} --patch-size {point['image_size']} --scale {SCALE} "
    own += f"--pin-memory {_flag(point['memory'] == 'pinned')} --graphs {_flag('graphs' in point['step'])} "
    own += f"--compile {_flag('compile' in point['step'])}"
    loop = point["loader"] == LOOP
    common = train.Train(
        task="superres",
        data=str(data),
        seconds=settings.seconds,
        workers=LOOP_WORKERS if loop else None,
        flags="" if loop else f"{own} {settings.flags}",
    )
    return train.command(common, point | {"gpus": 1}, folder)


def _flag(on: bool) -> str:
    return str(on).lower()


def conclude(rows: Sequence[Row]) -> list[str]:
    """Say how far the smallest batch's epoch is from the largest's, and how far from the loop by hand."""
    said = []
    for patch, its in _show.by([row for row in rows if row["status"] == "ok"], "image_size").items():
        ours = [row for row in its if row["point"]["loader"] != LOOP]
        loop = [row for row in its if row["point"]["loader"] == LOOP]
        rates = {size: _show.best(same, "rate") for size, same in _show.by(ours, "batch_size").items()}
        known = {size: rate for size, rate in rates.items() if rate}
        if len(known) > 1:
            small, large = min(known), max(known)
            times = known[large] / known[small]
            said.append(
                f"{patch} px: the epoch of batch {small} takes {times:.2f} times that of batch {large} "
                f"(the reach: {REACH[0]})."
            )
        for size, same in _show.by(loop, "batch_size").items():
            by_hand = _show.best(same, "rate")
            if by_hand and size in known:
                said.append(
                    f"{patch} px, batch {size}: {known[size] / by_hand:.1f} times the loop by hand "
                    f"({known[size]:,.0f} and {by_hand:,.0f} img/s)."
                )
    return said
