"""The table of optimisers, fused on CUDA, without weight decay on biases and norms."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from contracts import UserError
from settings.optimisation import Optimisation

Groups = list[dict[str, Any]]
DECAYED = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)
"""Layers whose weights decay; their biases do not, nor does any other layer."""


def build(
    module: nn.Module,
    optimisation: Optimisation,
    masters: Mapping[nn.Parameter, nn.Parameter] | None = None,
) -> torch.optim.Optimizer:
    """Build the optimiser with two groups: weights of convolutions, linear layers and attention, and the
    rest.

    The rest are biases, norms, scales and embeddings. `masters`: parameters that are trained in place of the
    network's own.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, DECAYED)]
    decayed = {id(p) for layer in layers for p in layer.parameters(recurse=False) if p.ndim > 1}
    trained = [p for p in module.parameters() if p.requires_grad]
    masters = masters or {}
    weights = [masters.get(p, p) for p in trained if id(p) in decayed]
    rest = [masters.get(p, p) for p in trained if id(p) not in decayed]
    groups: Groups = [
        {"params": weights, "weight_decay": optimisation.weight_decay},
        {"params": rest, "weight_decay": optimisation.norm_weight_decay},
    ]
    groups = [group for group in groups if group["params"]]
    kind = OPTIMIZERS[optimisation.optimizer]
    device = trained[0].device if trained else torch.device("cpu")
    on_gpu = device.type == "cuda"
    for group in groups:
        # a GPU reads it from memory when the step runs: a CUDA graph holds numbers of the host fast
        in_memory = on_gpu and kind.capturable
        group["lr"] = torch.tensor(optimisation.lr, device=device) if in_memory else optimisation.lr
    optimizer = kind.make(groups, optimisation, on_gpu)
    make_state(optimizer)
    return optimizer


def _sgd(groups: Groups, optimisation: Optimisation, on_gpu: bool) -> torch.optim.Optimizer:
    nesterov = optimisation.nesterov and optimisation.momentum > 0
    return torch.optim.SGD(groups, momentum=optimisation.momentum, nesterov=nesterov, fused=on_gpu)


def _adamw(groups: Groups, optimisation: Optimisation, on_gpu: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, fused=on_gpu, capturable=on_gpu)


def _apex_sgd(groups: Groups, optimisation: Optimisation, on_gpu: bool) -> torch.optim.Optimizer:
    flag = "--optimizer apex-sgd"
    if not on_gpu:
        raise UserError(f"{flag} is for a GPU; --optimizer sgd is the same elsewhere")
    try:
        from apex.optimizers import FusedSGD
    except ImportError as error:
        found = importlib.util.find_spec("apex") is not None
        other = (
            "the apex that is installed is another project of that name" if found else "it is not installed"
        )
        if found and error.name not in ("apex.optimizers", "apex"):
            other = f"it cannot be imported ({error})"
        raise UserError(f"{flag} is of NVIDIA's apex: {other}; see github.com/NVIDIA/apex") from None
    nesterov = optimisation.nesterov and optimisation.momentum > 0
    made: torch.optim.Optimizer = FusedSGD(
        groups, lr=optimisation.lr, momentum=optimisation.momentum, nesterov=nesterov
    )
    return made


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An --optimizer."""

    make: Callable[[Groups, Optimisation, bool], torch.optim.Optimizer]  # the last: whether on a GPU
    capturable: bool  # a CUDA graph can hold its step


OPTIMIZERS = {
    "sgd": Kind(make=_sgd, capturable=True),
    "adamw": Kind(make=_adamw, capturable=True),
    # takes the learning rate from the host, and waits for the device to know whether gradients overflowed
    "apex-sgd": Kind(make=_apex_sgd, capturable=False),
}


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
