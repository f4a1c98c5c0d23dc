"""The learning-rate range test of `scripts.tune --lr`: one short run whose rate rises, and its picture.

Leslie N. Smith, "Cyclical Learning Rates for Training Neural Networks", https://arxiv.org/abs/1506.01186.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Array, UserError
from scripts import _trials
from settings.config import Config

LOWEST = 1e-6
DECADES = 7
"""The rate rises from LOWEST to 10."""
STEPS = 140
FEWEST = 42
PROBE_STEPS = 4
RISING = {
    "schedule": "range",
    "lr": LOWEST,
    "lr_per": 0,
    "lr_step_epochs": 1.0,
    "log_every": 1,
    "warmup_epochs": 0,
    "warmup_steps": 0,
    "save_every_minutes": 0,
    "ema": 0.0,
    "patience": 0,
}
"""Settings of a run whose learning rate rises from LOWEST on, and whose losses are all kept."""
BUDGET_S = 75.0
"""Seconds that the rising steps may take; starting twice takes the rest of two minutes."""
LIMIT_S = 300.0
SKIPPED = 0.1
"""Share of the steps, the first ones, that no advice is taken from: the loss settles in them at any rate."""
SLOPE_DECADES = 0.5
"""A slope is that of a line through the losses of half a decade of rates."""
CLEAR = 4.0
"""A slope counts as a fall where it is so many times its standard error: the steepest of some hundred slopes
of noise alone hardly ever is."""
FLOOR = 0.1
"""The loss is low while no more than this share of its fall is lost again."""
LEAST = 0.01
"""Share of the loss that falls over half a decade, at least, also where nothing scatters."""
SMOOTH = 0.8
"""Weight of what came before in the smoothed loss."""
DIVERGED = 2.0
"""The test is over where the smoothed loss is so many times its least."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Result of the test: a rate and a loss a step, and the rate that is advised.

    `advised` is None where the loss falls nowhere more clearly than noise does.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    advised: float | None


def measured(recipe: Config, gpu: bool, say: Callable[[str], None]) -> Range:
    """Run the test with a recipe, and `say` what goes on. Raises UserError."""
    say(f"--lr: a run of {PROBE_STEPS} steps tells how long a step takes")
    first = _run(recipe, gpu, {"steps": PROBE_STEPS})
    if first.code:  # at so low a rate the loss is no number whatever the rate
        raise UserError(first.said)
    probed = first.summary
    step_s = (probed.get("step_ms") or {}).get("p50", 0.0) / 1e3
    steps = int(min(STEPS, max(FEWEST, BUDGET_S / max(step_s, 1e-3))))
    highest = LOWEST * 10**DECADES
    say(
        f"--lr: {steps} steps of {step_s:.2g} s, in which the rate rises from {LOWEST:g} to {highest:g}"
    )
    epochs = steps / probed["epoch_steps"]
    length = {
        "steps": steps,
        "epochs": math.ceil(epochs) + 1,
        "lr_step_epochs": epochs / DECADES,
    }
    points = _run(recipe, gpu, length).points
    losses = [float(loss) for point in points for loss in point["losses"]]
    return advised([lr for point in points for lr in point["lrs"]], losses)


def _run(recipe: Config, gpu: bool, length: dict[str, Any]) -> _trials.Trial:
    """Return what a run of this `length` with a rising rate wrote. Raises UserError with its last line."""
    if not gpu and recipe.model.precision == "auto":
        # once the loss has diverged, bf16 takes a CPU 25 times as long
        length["precision"] = "fp32"
    trial = _trials.run(_trials.config_of(recipe, RISING | length), LIMIT_S)
    if trial.code is None:
        raise UserError(f"a step takes too long: {LIMIT_S:.0f} s")
    # 3: the loss is no number any more, which is what a test may end with
    if trial.code not in (0, 3):
        raise UserError(trial.said)
    return trial


def advised(rates: list[float], losses: list[float]) -> Range:
    """Return the rate around which the loss falls the most over the logarithm of the rate, or a tenth of the
    one at which it begins to climb again, whichever is larger.

    A small set is learned while the rate is still far too low: its loss falls early, and is low from there to
    where it diverges. Only what lies behind the first steps counts. There is no advice where the steepest
    fall is not clearly more than the losses of single steps scatter.
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
    end = int(np.argmin(smoothed)) + 1 if smoothed else 0
    kept = slice(int(SKIPPED * len(losses)), end)
    best = _steepest(np.log10(rates[kept]), np.array(losses[kept]))
    if best is None:
        return Range(rates=rates, losses=losses, smoothed=smoothed, advised=None)
    low = min(smoothed) + FLOOR * (smoothed[kept.start] - min(smoothed))
    climbs = rates[max(step for step, loss in enumerate(smoothed) if loss <= low)]
    rounded = float(f"{max(10**best, climbs / 10):.1g}")
    return Range(rates=rates, losses=losses, smoothed=smoothed, advised=rounded)


def _steepest(decades: Array, losses: Array) -> float | None:
    """Return the middle of the half decade over which `losses` fall the most; None where none is clear.

    `decades` are logarithms of the rates, ascending.
    """
    ends = np.searchsorted(decades, decades + SLOPE_DECADES + 1e-9)
    windows = [
        (first, end)
        for first, end in enumerate(ends)
        if end - first >= 3 and decades[-1] >= decades[first] + SLOPE_DECADES
    ]
    # losses of neighbouring steps have about the same rate: they differ by the noise, twice
    noise = (
        1.4826 * np.median(np.abs(np.diff(losses))) / math.sqrt(2)
        if len(losses) > 1
        else math.inf
    )
    clearest = 0.0
    best = None
    for first, end in windows:
        over = decades[first:end] - decades[first:end].mean()
        slope = float(over @ losses[first:end] / (over @ over))
        error = noise / math.sqrt(float(over @ over))
        least = LEAST * abs(float(losses[first:end].mean())) / SLOPE_DECADES
        if slope < min(clearest, -CLEAR * error, -least):
            clearest = slope
            best = float(decades[first:end].mean())
    return best


def draw(found: Range, path: Path) -> None:
    """Draw loss over rate. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curves = {"loss of a step": found.losses, "smoothed": found.smoothed}
    for label, losses in curves.items():
        axes.semilogx(found.rates[: len(losses)], losses, label=label)
    if found.advised is not None:
        label = f"--lr {found.advised:g}"
        axes.axvline(found.advised, color="black", linestyle="--", label=label)
    top = max(found.smoothed[0] if found.smoothed else 1.0, 1e-9)
    axes.set(xlabel="learning rate", ylabel="loss", ylim=(0, DIVERGED * top))
    axes.legend()
    figure.savefig(path)
