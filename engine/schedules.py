"""The learning rate as a pure function of the epoch, a float that counts the samples consumed."""

from __future__ import annotations

import math

from settings.optimisation import Optimisation

WARMUP_START = 0.01


def learning_rate(epoch: float, optimisation: Optimisation) -> float:
    """Return the rate at `epoch`: a linear warm-up from 1 % of the peak (--lr), then the schedule.

    That is a cosine to --final-lr, drops by --lr-gamma every --lr-step-epochs or at --lr-milestones, or
    constant.
    """
    peak = optimisation.lr
    warmup = optimisation.warmup_epochs
    if epoch < warmup:
        return peak * (WARMUP_START + (1 - WARMUP_START) * epoch / warmup)
    if optimisation.schedule == "cosine":
        final = optimisation.final_lr
        share = min((epoch - warmup) / max(optimisation.epochs - warmup, 1e-9), 1.0)
        return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * share))
    if optimisation.schedule == "step":
        return peak * optimisation.lr_gamma ** _drops(epoch, optimisation)
    return peak


def warmup_warning(optimisation: Optimisation, epoch_steps: int) -> str | None:
    """Return a line where the run, of epochs with so many steps, ends before its warm-up does; else None."""
    steps = optimisation.steps
    length = min(optimisation.epochs, optimisation.epochs if steps is None else steps / max(epoch_steps, 1))
    warmup = optimisation.warmup_epochs
    if not warmup or length > warmup:
        return None
    last = learning_rate(length, optimisation) if length < warmup else optimisation.lr
    return (
        f"the warm-up of {warmup:g} epochs fills the run of {length:.3g}: the learning rate only rises, to "
        f"{last:.3g} of --lr {optimisation.lr:g}; a shorter --warmup-epochs leaves time to train"
    )


def _drops(epoch: float, optimisation: Optimisation) -> int:
    """Count the drops of a step schedule up to `epoch`."""
    if optimisation.lr_milestones is None:
        return math.floor(epoch / optimisation.lr_step_epochs)
    return sum(at <= epoch for at in optimisation.lr_milestones)
