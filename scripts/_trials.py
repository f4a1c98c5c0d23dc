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
    "score": None,
}
"""Settings of a run that trains for a while and does nothing else."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a short run has written, and how it ended."""

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
        flat["loader"] = kind_of(recipe).may_open(
            recipe, gpu=torch.cuda.is_available()
        )[0]
    return build(flat)


def run(config: Config, limit_s: float) -> Trial:
    """Run train.py with these settings; it is ended after `limit_s` seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        asked = Path(scratch) / "trial.yaml"
        asked.write_text(as_yaml(config), encoding="utf-8")
        log = Path(scratch) / "log.txt"
        command = [
            sys.executable,
            str(ROOT / "train.py"),
            *words({"config": asked, "output": folder}),
        ]
        with log.open("w") as file:
            code = ran(command, file, limit_s)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        summary, metrics = folder / "summary.json", folder / "metrics.jsonl"
        told = (
            metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
        )
        return Trial(
            code=code,
            said=(lines or [""])[-1].removeprefix("train.py: "),
            summary=json.loads(summary.read_text(encoding="utf-8"))
            if summary.exists()
            else {},
            points=[
                point for point in map(json.loads, told) if point["kind"] == "train"
            ],
        )
