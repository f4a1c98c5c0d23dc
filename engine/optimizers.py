"""SGD and AdamW, fused on CUDA, without weight decay on biases and norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from config import Optimisation

DECAYED = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)
"""Layers whose weights decay; their biases do not, nor does any other layer."""


def build(module: nn.Module, optimisation: Optimisation) -> torch.optim.Optimizer:
    """Build the optimiser with two groups: weights of convolutions, linear layers and attention, and the
    rest.

    The rest are biases, norms, scales and embeddings.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, DECAYED)]
    decayed = {id(p) for layer in layers for p in layer.parameters(recurse=False) if p.ndim > 1}
    trained = [p for p in module.parameters() if p.requires_grad]
    weights = [p for p in trained if id(p) in decayed]
    rest = [p for p in trained if id(p) not in decayed]
    groups: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": optimisation.weight_decay},
        {"params": rest, "weight_decay": optimisation.norm_weight_decay},
    ]
    groups = [group for group in groups if group["params"]]
    device = trained[0].device if trained else torch.device("cpu")
    on_gpu = device.type == "cuda"
    for group in groups:
        # a GPU reads it from memory when the step runs: a CUDA graph holds numbers of the host fast
        group["lr"] = torch.tensor(optimisation.lr, device=device) if on_gpu else optimisation.lr
    if optimisation.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, fused=on_gpu, capturable=on_gpu)
    else:
        momentum = optimisation.momentum
        nesterov = optimisation.nesterov and momentum > 0
        optimizer = torch.optim.SGD(groups, momentum=momentum, nesterov=nesterov, fused=on_gpu)
    make_state(optimizer)
    return optimizer


def make_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the state, zeros, of each parameter that has none: torch makes it in the first step.

    A graph needs it before it is captured. And fused SGD (torch 2.11 to 2.15) allocates momenta without
    writing them, and when the first steps are skipped because the loss scale is too high they stay so:
    ResNet-50 in fp16 was nan at step 3.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(optimizer, torch.optim.AdamW):
                state = optimizer.state[parameter]
                device = parameter.device if group["capturable"] else "cpu"
                state.setdefault("step", torch.zeros((), device=device))
                state.setdefault("exp_avg", torch.zeros_like(parameter))
                state.setdefault("exp_avg_sq", torch.zeros_like(parameter))
            elif group["momentum"] > 0 and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        set_group_lr(group, lr)


def set_group_lr(group: dict[str, Any], lr: float) -> None:
    """Set the learning rate of a group, in place where it lies on a device."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr
