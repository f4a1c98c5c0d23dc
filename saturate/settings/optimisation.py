"""The optimiser, its schedule and the length of a run."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, FiniteFloat, NonNegativeInt, PositiveInt

from saturate.settings.cli import Settings
from saturate.settings.types import CLASSIFIERS, Facts, NotNegative, Share, setting


def _target(value: str) -> str:
    if not re.fullmatch(r"\w+=\d*\.?\d+", value):
        raise ValueError(f"got '{value}', which is no NAME=VALUE, such as top1=0.759")
    return value


class Optimisation(Settings):
    """The optimiser, its schedule, and the length of a run."""

    facts: ClassVar[Facts] = Facts(evaluation="unused")

    epochs: PositiveInt = setting(90, changes_rate=False)
    """Passes over the training data."""
    steps: PositiveInt | None = setting(
        None, changes_rate=False, resume="free", recipe=False
    )
    """End after this many optimiser steps in all, wherever the epoch is. The schedule still spans
    --epochs."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] | None = setting(
        None, changes_rate=False, resume="free", recipe=False
    )
    """End once the steady windows of the rate add up to this many seconds: for a measurement."""
    patience: Annotated[int, Field(ge=0)] = setting(
        0, needs=("val_every",), changes_rate=False, resume="free"
    )
    """End after so many validations in a row without a better figure; 0 = never."""
    until: Annotated[str, AfterValidator(_target)] | None = setting(
        None, needs=("val_every",), changes_rate=False, resume="free"
    )
    """End once a validation reaches a figure, such as top1=0.759 (a share), of the network or of its average.
    The schedule still spans --epochs."""
    optimizer: Literal[
        "sgd", "adamw", "lamb", "lars", "lion", "muon", "apex-sgd", "apex-lamb"
    ] = "sgd"
    """SGD with momentum and AdamW are torch's; LAMB, LARS, Lion and Muon (convolutions as matrices; AdamW
    moves what is none) timm's, FusedSGD and FusedLAMB NVIDIA's apex's, where these are installed."""
    lr: Annotated[FiniteFloat, Field(gt=0)] = setting(0.1, changes_rate=False)
    """Peak learning rate, as it is used, unless --lr-per is given."""
    lr_per: NonNegativeInt = setting(0, changes_rate=False)
    """Samples of a step that --lr is for: with a step of other samples, over all ranks and --accumulate, it
    is scaled in proportion. 0 = --lr is used as it is."""
    momentum: Share = setting(
        0.9, needs=("optimizer", "sgd", "lars", "muon", "apex-sgd")
    )
    """Momentum of SGD, LARS and Muon."""
    nesterov: bool = setting(
        True, needs=("optimizer", "sgd", "lars", "muon", "apex-sgd")
    )
    """The Nesterov form of that momentum."""
    weight_decay: NotNegative = 1e-4
    """Weight decay of parameters of more than one dimension."""
    norm_weight_decay: NotNegative = 0.0
    """Weight decay of all other parameters: biases, norms and scales of one dimension, and what the network
    itself names (timm's no_weight_decay)."""
    no_decay: tuple[str, ...] = ()
    """Patterns of names of parameters without weight decay, such as '*.gamma': '*' stands for anything."""
    layer_decay: Annotated[FiniteFloat, Field(gt=0, le=1)] = 1.0
    """What is left of the learning rate from each layer to the one before: timm's groups of layers
    (--arch timm/NAME), of other networks their blocks; 1 = all."""
    schedule: Literal["cosine", "linear", "poly", "step", "constant"] = setting(
        "cosine", changes_rate=False
    )
    """Learning rate after the warm-up: cosine, linear or poly = it falls to --final-lr, poly as what is left of
    the epochs to the power of --lr-power; step = it drops by --lr-gamma every --lr-step-epochs, or at
    --lr-milestones; constant = it stays."""
    warmup_epochs: NotNegative = setting(5.0, changes_rate=False)
    """Linear warm-up from --warmup-start, in epochs."""
    warmup_steps: NonNegativeInt = setting(0, changes_rate=False)
    """Length of the warm-up in optimiser steps, in place of --warmup-epochs."""
    warmup_start: Share = setting(0.01, changes_rate=False)
    """Share of --lr that the warm-up begins at."""
    final_lr: NotNegative = setting(
        0.0, needs=("schedule", "cosine", "linear", "poly"), changes_rate=False
    )
    """Learning rate at the end of the cosine, of the line or of poly."""
    lr_power: Annotated[FiniteFloat, Field(gt=0)] = setting(
        2.0, needs=("schedule", "poly"), changes_rate=False
    )
    """Power of the poly schedule."""
    lr_step_epochs: Annotated[FiniteFloat, Field(gt=0)] = setting(
        30.0, needs=("schedule", "step"), changes_rate=False
    )
    """Step schedule: epochs from the end of the warm-up to the first drop, and between two drops."""
    lr_milestones: tuple[NotNegative, ...] | None = setting(
        None, needs=("schedule", "step"), changes_rate=False
    )
    """Step schedule: the epochs of the drops, counted from the start, instead of --lr-step-epochs."""
    lr_gamma: Annotated[FiniteFloat, Field(gt=0, le=1)] = setting(
        0.1, needs=("schedule", "step"), changes_rate=False
    )
    """Step schedule: the factor of a drop."""
    label_smoothing: Annotated[FiniteFloat, Field(ge=0, lt=1)] = setting(
        0.0, tasks=CLASSIFIERS, changes_rate=False
    )
    """Share of the target spread over all classes."""
    loss: Literal["ce", "bce"] = setting("ce", tasks=CLASSIFIERS, evaluation="free")
    """Cross entropy, or the mean over the classes of the binary cross entropy of each, as timm's
    --bce-loss."""
    bce_threshold: Share | None = setting(
        None, tasks=CLASSIFIERS, needs=("loss", "bce")
    )
    """--loss bce: targets above it are 1 and all others 0."""
    teacher: str | None = setting(None, tasks=CLASSIFIERS, ranks="first")
    """A checkpoint of another run, of the same classes: the network also learns what that one says of each
    sample (distillation)."""
    teacher_share: Share = setting(0.5, tasks=CLASSIFIERS, needs=("teacher",))
    """Share of the loss that is the distance from the teacher; the rest is --loss."""
    teacher_temperature: Annotated[FiniteFloat, Field(gt=0)] = setting(
        1.0, tasks=CLASSIFIERS, needs=("teacher",)
    )
    """What the logits of both are divided by before the distance is taken."""
    balance: Literal["none", "sampler", "loss"] = setting("none", tasks=CLASSIFIERS)
    """Classes with unlike numbers of samples: sampler = an epoch, as long as ever, has as many of each class,
    and shows those of a small one several times; loss = a sample counts by the inverse of its class's
    number."""
    accumulate: PositiveInt = 1
    """Micro-batches whose gradients are summed for one step."""
    bucket_mib: PositiveInt | None = setting(None, recipe=False)
    """MiB of gradients that ranks sum at once: fewer leave earlier in the backward pass, more need fewer
    messages. Default: torch's, 25 after a first bucket of 1."""
    global_batch_size: PositiveInt | None = None
    """Samples of a step over all ranks: --accumulate follows from it, with micro-batches as large as
    --batch-size or a little smaller. A run keeps it when it is resumed with another number of ranks."""
    clip_grad_norm: NotNegative = 0.0
    """Largest gradient norm; 0 = no clipping."""
    clip_grad_value: NotNegative = 0.0
    """Largest element of a gradient; 0 = no clipping."""
    clip_grad_agc: NotNegative = 0.0
    """Adaptive clipping: largest norm of a unit's gradient as a share of its weights' norm, but for the last
    layer; 0 = none."""
    ema: Annotated[FiniteFloat, Field(ge=0, lt=1)] = setting(0.0, evaluation="free")
    """Decay of an average of the weights, moved each step, such as 0.9999. It is validated and saved beside
    the network, and best.pt is of whichever is better. 0 = none."""
    ema_warmup: bool = setting(False, needs=("ema",))
    """Begin the average with a smaller decay, 1 - (1 + steps) ** (-2/3), as timm's --model-ema-warmup."""
