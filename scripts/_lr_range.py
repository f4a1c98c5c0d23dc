"""The learning-rate range test of `scripts.tune --lr`: one short run whose rate rises, and its picture.

Leslie N. Smith, "Cyclical Learning Rates for Training Neural Networks", https://arxiv.org/abs/1506.01186.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._process import ROOT, ran
from benchmarks.train import words
from config import Config, as_yaml, build
from contracts import UserError
from report.console import Console
from tasks import kind_of, loader_of

LOWEST = 1e-6
DECADES = 7
"""The rate rises from LOWEST to 10."""
STEPS = 140
FEWEST = 42
PROBE_STEPS = 4
BUDGET_S = 75.0
"""Seconds that the rising steps may take; starting twice takes the rest of two minutes."""
LIMIT_S = 300.0
SMOOTH = 0.8
"""Weight of what came before in the smoothed loss."""
DIVERGED = 2.0
"""The test is over where the smoothed loss is so many times its least."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """What the test has found: a rate and a loss a step, and the rate that is advised."""

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    advised: float


def measured(recipe: Config, gpu: bool) -> Range:
    """Run the test with a recipe. Raises UserError."""
    kind = kind_of(recipe)
    loader = loader_of(recipe, kind, gpu=gpu, files=kind.are_files(recipe))
    columns = kind.splits(recipe, loader, Console(enabled=False))["train"].columns
    # one loader, where auto would measure all of them in each run
    settled = {**recipe.flat(), "loader": loader}
    if not gpu and recipe.model.precision == "auto":
        settled["precision"] = "fp32"  # once the loss has diverged, bf16 takes a CPU 25 times as long
    recipe = build(settled)
    a_step = recipe.loading.batch_size * recipe.optimisation.accumulate
    probed = _run(recipe, {"steps": PROBE_STEPS})
    step_s = (probed["summary"].get("step_ms") or {}).get("p50", 0.0) / 1e3
    steps = int(min(STEPS, max(FEWEST, BUDGET_S / max(step_s, 1e-3))))
    epochs = steps * a_step / len(columns)
    found = _run(
        recipe, {"steps": steps, "epochs": math.ceil(epochs) + 1, "lr_step_epochs": epochs / DECADES}
    )
    losses = [loss for point in found["train"] for loss in point["losses"]]
    rates = [LOWEST * 10 ** (DECADES * step / steps) for step in range(len(losses))]
    return advised(rates, [float(loss) for loss in losses])


def _run(recipe: Config, more: dict[str, Any]) -> dict[str, Any]:
    """Return summary and training points of a short run. Raises UserError with the run's own last line."""
    rising = {"schedule": "range", "lr": LOWEST, "warmup_epochs": 0, "lr_step_epochs": 1.0, "log_every": 1}
    short = {"val_every": 0, "ceilings": False, "profile": False, "save_every_minutes": 0, "seconds": None}
    once = {"ema": 0.0, "patience": 0}
    config = build({**recipe.flat(), **rising, **short, **once, **more})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        asked = Path(scratch) / "trial.yaml"
        asked.write_text(as_yaml(config), encoding="utf-8")
        command = [sys.executable, str(ROOT / "train.py"), *words({"config": asked, "output": folder})]
        log = Path(scratch) / "log.txt"
        with log.open("w") as file:
            code = ran(command, file, LIMIT_S)
        if code not in (0, 3):  # 3: the loss is no number any more, which is what a test may end with
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            why = f"a step takes too long: {LIMIT_S:.0f} s" if code is None else (lines or [""])[-1]
            raise UserError(why.removeprefix("train.py: "))
        points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        summary = folder / "summary.json"
        told = json.loads(summary.read_text()) if summary.exists() else {}
    return {"summary": told, "train": [point for point in points if point["kind"] == "train"]}


def advised(rates: list[float], losses: list[float]) -> Range:
    """Return the rate at which the smoothed loss falls the most over the logarithm of the rate.

    Only what comes before the loss's least counts. Raises UserError where the loss never falls.
    """
    smoothed: list[float] = []
    mean = 0.0
    for step, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            break
        mean = SMOOTH * mean + (1 - SMOOTH) * loss
        smoothed.append(mean / (1 - SMOOTH**step))
        if smoothed[-1] > DIVERGED * min(smoothed):
            break
    lowest = int(np.argmin(smoothed)) if smoothed else 0
    if lowest < 2 or smoothed[lowest] > 0.99 * smoothed[0]:
        raise UserError("the loss does not fall at any learning rate: are the labels right, is it trained?")
    slopes = np.gradient(smoothed[: lowest + 1], np.log10(rates[: lowest + 1]))
    best = rates[int(np.argmin(slopes))]
    return Range(rates=rates, losses=losses, smoothed=smoothed, advised=float(f"{best:.1g}"))


def draw(found: Range, path: Path) -> None:
    """Draw loss over rate. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.semilogx(found.rates[: len(found.losses)], found.losses, color="#c0c8d8", label="loss of a step")
    axes.semilogx(found.rates[: len(found.smoothed)], found.smoothed, color="#2060c0", label="smoothed")
    axes.axvline(found.advised, color="#c04020", linestyle="--", label=f"--lr {found.advised:g}")
    top = max(found.smoothed[0], 1e-9)
    axes.set(xlabel="learning rate", ylabel="loss", ylim=(0, DIVERGED * top))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
