"""The optimiser, its schedule and the length of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, PositiveInt

from cli import Settings
from settings.types import NotNegative, Share


class Optimisation(Settings):
    """The optimiser, its schedule, and the length of a run."""

    epochs: PositiveInt = 90
    """Passes over the training data."""
    steps: PositiveInt | None = None
    """End after this many optimiser steps in all, wherever the epoch is. The schedule still spans
    --epochs."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """End once the steady windows of the rate add up to this many seconds: for a measurement."""
    optimizer: Literal["sgd", "adamw", "apex-sgd"] = "sgd"
    """SGD with Nesterov momentum, AdamW, or FusedSGD of NVIDIA's apex, where that is installed."""
    lr: Annotated[FiniteFloat, Field(gt=0)] = 0.1
    """Peak learning rate, as it is used: nothing scales it with the batch."""
    momentum: Share = 0.9
    """SGD's momentum."""
    nesterov: bool = True
    """SGD's Nesterov form."""
    weight_decay: NotNegative = 1e-4
    """Weight decay of convolutions' and linear layers' weights."""
    norm_weight_decay: NotNegative = 0.0
    """Weight decay of all other parameters: biases, norms, scales, embeddings."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Learning rate after the warm-up: cosine to --final-lr, --lr-gamma every --lr-step-epochs or at
    --lr-milestones, or constant."""
    warmup_epochs: NotNegative = 5.0
    """Linear warm-up from 1 % of --lr."""
    final_lr: NotNegative = 0.0
    """Learning rate at the end of the cosine."""
    lr_step_epochs: Annotated[FiniteFloat, Field(gt=0)] = 30.0
    """Step schedule: epochs between two drops."""
    lr_milestones: tuple[NotNegative, ...] | None = None
    """Step schedule: the epochs of the drops, instead of --lr-step-epochs."""
    lr_gamma: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.1
    """Step schedule: the factor of a drop."""
    label_smoothing: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0
    """Share of the target spread over all classes."""
    accumulate: PositiveInt = 1
    """Micro-batches whose gradients are summed for one step."""
    clip_grad_norm: NotNegative = 0.0
    """Largest gradient norm; 0 = no clipping."""
