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
    fused = all(p.is_cuda for p in weights)
    if optimisation.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=optimisation.lr, fused=fused)
    momentum = optimisation.momentum
    nesterov = optimisation.nesterov and momentum > 0
    sgd = torch.optim.SGD(groups, lr=optimisation.lr, momentum=momentum, nesterov=nesterov, fused=fused)
    if momentum > 0:
        # Fused SGD (torch 2.11 to 2.15) allocates these without writing them, and when the first steps are
        # skipped because the loss scale is too high they stay so: ResNet-50 in fp16 was nan at step 3.
        for parameter in (p for group in groups for p in group["params"]):
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd
