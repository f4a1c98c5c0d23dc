"""The learning rate as a pure function of the epoch, a float that counts the samples consumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from config import Optimisation

WARMUP_START = 0.01


def settings(optimisation: Optimisation) -> dict[str, Any]:
    """The keyword arguments of `learning_rate` that a configuration decides."""
    return {
        "peak": optimisation.lr,
        "epochs": optimisation.epochs,
        "schedule": optimisation.schedule,
        "warmup": optimisation.warmup_epochs,
        "final": optimisation.final_lr,
        "step_epochs": optimisation.lr_step_epochs,
        "milestones": optimisation.lr_milestones,
        "gamma": optimisation.lr_gamma,
    }


def learning_rate(
    epoch: float,
    *,
    peak: float,
    epochs: float,
    schedule: str,
    warmup: float,
    final: float,
    step_epochs: float,
    gamma: float,
    milestones: Sequence[float] | None = None,
) -> float:
    """Linear warm-up from 1 % of `peak` over `warmup` epochs, then cosine to `final`, drops by `gamma`, or constant."""
    if epoch < warmup:
        return peak * (WARMUP_START + (1 - WARMUP_START) * epoch / warmup)
    if schedule == "cosine":
        share = min((epoch - warmup) / max(epochs - warmup, 1e-9), 1.0)
        return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * share))
    if schedule == "step":
        drops = math.floor(epoch / step_epochs) if milestones is None else sum(at <= epoch for at in milestones)
        return peak * gamma**drops
    return peak
