"""SGD and AdamW, fused on CUDA, without weight decay on biases and norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from config import Optimisation

DECAYED = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)
"""Layers whose weights decay, and nothing else of them."""


def settings(optimisation: Optimisation) -> dict[str, Any]:
    """The keyword arguments of `build` that a configuration decides."""
    chosen = optimisation.model_dump(include={"lr", "weight_decay", "norm_weight_decay", "momentum", "nesterov"})
    return {"name": optimisation.optimizer, **chosen}


def build(
    module: nn.Module, *, name: str, lr: float, weight_decay: float, norm_weight_decay: float, momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    """Two groups: weights of convolutions, linear layers and attention, and the rest (biases, norms, scales, embeddings)."""
    decayed = {id(p) for layer in module.modules() if isinstance(layer, DECAYED) for p in layer.parameters(recurse=False) if p.ndim > 1}
    weights, rest = ([p for p in module.parameters() if p.requires_grad and (id(p) in decayed) is one] for one in (True, False))
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": weight_decay}, {"params": rest, "weight_decay": norm_weight_decay}]
    groups = [group for group in groups if group["params"]]
    fused = all(p.is_cuda for p in weights)
    if name == "sgd":
        sgd = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0, fused=fused)
        if momentum > 0:
            # Fused SGD (torch 2.11 to 2.15) allocates these without writing them, and when the first steps are skipped
            # because the loss scale is too high they stay unwritten: ResNet-50 in fp16 was nan at its third step.
            for parameter in (p for group in groups for p in group["params"]):
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    return torch.optim.AdamW(groups, lr=lr, fused=fused)
