"""What validations say of the learning itself, beside the figures: facts.FACTS has a row for each. Pure.

Each is read off a summary, in which NOW has what no file of a run keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from saturate.contracts import counted
from saturate.report.advice import Summary, look_up
from saturate.report.words import number

RISEN = 0.05
"""Share by which the last loss lies above the least one, from which on it has risen: validations differ by less."""
FEW = 20
"""Samples of a class below which it is hardly learnt."""


def overfits(values: Summary) -> dict[str, Any] | None:
    """Return the `epoch`, from 1, since which the loss of validation rises, the `least` and the `last`; None where it
    does not."""
    losses = []
    validations = look_up(values, "now.validations") or []
    # of the average, where there was one all the time: its losses are not those of the network
    of_average = all("ema_loss" in figures for _, figures in validations)
    for epoch, figures in validations:
        loss = figures.get("ema_loss" if of_average else "loss")
        if epoch is not None and loss is not None and math.isfinite(loss):
            losses.append((epoch, loss))
    if not losses:
        return None
    epoch, least = min(losses, key=itemgetter(1))
    last = losses[-1][1]
    if last <= (1 + RISEN) * least:
        return None
    return {"epoch": epoch + 1, "least": least, "last": last}


def rises(losses: Mapping[str, Any], _: Summary) -> str:
    """Say that a network overfits."""
    return (
        f"the loss of validation rises since epoch {losses['epoch']}, {number(losses['least'])} to "
        f"{number(losses['last'])}: more images, more augmentation, or --patience"
    )


def few(fewest: Mapping[str, Any], _: Summary) -> str:
    """Say that a class has too few samples to train on."""
    if not fewest or fewest["samples"] >= FEW:
        return ""
    samples = counted(fewest["samples"], "sample")
    return f"{samples} of class '{fewest['class']}' to train on: it is hardly learnt from fewer than {FEW}"


def no_better_than_bicubic(values: Summary) -> dict[str, float] | None:
    """Return the PSNR of the best validation and of bicubic interpolation, where that is as good."""
    bicubic = look_up(values, "validation.psnr_bicubic")
    best = look_up(values, "best.value") or look_up(values, "validation.psnr")
    # nan is no figure
    if bicubic is None or best is None or not best <= bicubic:
        return None
    return {"network": best, "bicubic": bicubic}


BICUBIC = "{network:.2f} dB, and bicubic interpolation alone has {bicubic:.2f} dB: more --epochs, or another --lr"
ONE_ANSWER = "the last validation took all samples for '{}': another --lr, or are the labels right?"
