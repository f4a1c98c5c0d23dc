"""Trials of `scripts.tune`: a short run of train.py in a process of its own, and what it wrote."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks._process import ROOT, ran
from benchmarks.train import FULL_SIZE, words
from settings.config import Config, as_yaml, build
from tasks import kind_of

ONLY_TRAINS = {
    **FULL_SIZE,
    "val_every": 0,
    "ceilings": False,
    "profile": False,
    "steps": None,
    "seconds": None,
    "resume": None,
    "evaluate": False,
    "predict": None,
    "score": None,
}
"""Settings of a run that trains for a while and does nothing else."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Result of a short run: what it has written, and how it ended."""

    code: int | None  # None: it took longer than its limit
    said: str  # the last line of its log
    summary: Mapping[str, Any]
    points: list[dict[str, Any]]  # of training, as metrics.jsonl has them


def config_of(recipe: Config, changes: Mapping[str, Any]) -> Config:
    """Return the settings of a trial: the recipe with `changes`, as a run that only trains.

    Where neither names a loader it is what auto tries first, so that no trial measures loaders.
    """
    flat = {**recipe.flat(), **ONLY_TRAINS, **changes}
    if flat["loader"] == "auto":
        gpu = torch.cuda.is_available()
        flat["loader"] = kind_of(recipe).may_open(recipe, gpu=gpu)[0]
    return build(flat)


def run(config: Config, limit_s: float) -> Trial:
    """Run train.py with these settings; it is ended after `limit_s` seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "trial.yaml").write_text(as_yaml(config), encoding="utf-8")
        flags = words({"config": folder / "trial.yaml", "output": folder / "run"})
        with (folder / "log.txt").open("w") as file:
            command = [sys.executable, str(ROOT / "train.py"), *flags]
            code = ran(command, file, limit_s)
        log = _lines(folder / "log.txt")
        summary = "".join(_lines(folder / "run/summary.json")) or "{}"
        points = [json.loads(line) for line in _lines(folder / "run/metrics.jsonl")]
    return Trial(
        code=code,
        said=log[-1].removeprefix("train.py: ") if log else "",
        summary=json.loads(summary),
        points=[point for point in points if point["kind"] == "train"],
    )


def _lines(path: Path) -> list[str]:
    """Return the lines of a file that are not empty; none where it is missing."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.strip()]
