"""--precision fp16-pure: fp16 weights and gradients in the network, fp32 masters of them in the optimiser.

    network, fp16  --gradients-->  masters, fp32  --update-->  masters  --weights-->  network, fp16

Norms keep fp32 weights. The forward pass runs under autocast, which hands each operation what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Masters:
    """The fp32 masters of a network's fp16 parameters."""

    def __init__(self, module: nn.Module) -> None:
        """Turn the parameters of `module` into fp16, in place, but for those of norms."""
        kept = set()
        for layer in module.modules():
            if isinstance(layer, NORMS):
                kept |= set(layer.parameters(recurse=False))
        self.names: dict[str, nn.Parameter] = {}
        self.of: dict[nn.Parameter, nn.Parameter] = {}
        for name, parameter in module.named_parameters():
            if parameter in kept or parameter.dtype != torch.float32:
                continue
            master = nn.Parameter(
                parameter.detach().clone(), requires_grad=parameter.requires_grad
            )
            parameter.data = parameter.data.half()
            self.names[name] = master
            self.of[parameter] = master

    def take_gradients(self) -> None:
        """Copy the network's gradients to the masters, before they are unscaled: fp16 could not hold them."""
        gradients = {half: half.grad for half in self.of if half.grad is not None}
        wide = [torch.empty_like(self.of[half]) for half in gradients]
        torch._foreach_copy_(wide, list(gradients.values()))
        for half, gradient in zip(gradients, wide, strict=True):
            self.of[half].grad = gradient

    def give_weights(self) -> None:
        """Copy the masters to the network's weights."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.of), list(self.of.values()))

    def forget_gradients(self, *, set_to_none: bool) -> None:
        """Drop the network's gradients, or make them zeros where they are."""
        gradients = [half.grad for half in self.of if half.grad is not None]
        if set_to_none:
            for half in self.of:
                half.grad = None
        elif gradients:
            torch._foreach_zero_(gradients)

    def in_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a network's state dict with the masters in place of their fp16 copies."""
        return {
            **state,
            **{name: master.detach() for name, master in self.names.items()},
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the weights of a state dict, fp32 or of any other dtype; the network has loaded it already."""
        with torch.no_grad():
            for name, master in self.names.items():
                master.copy_(state[name])
