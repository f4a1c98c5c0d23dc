"""Clipping of gradients: by their norm, by value, and adaptively by the weights (AGC)."""

from __future__ import annotations

import torch
from torch import nn

from saturate.engine.optimizers import require_timm
from saturate.settings.optimisation import Optimisation


class Clipping:
    """What --clip-grad-norm, --clip-grad-value and --clip-grad-agc ask for; decided on the device."""

    def __init__(self, module: nn.Module, optimisation: Optimisation) -> None:
        """Raises UserError where timm, which has AGC, is not installed."""
        self.norm = optimisation.clip_grad_norm
        self._value = optimisation.clip_grad_value
        self._agc = optimisation.clip_grad_agc
        # without the last layer, as timm and Brock et al. 2021 (arXiv:2102.06171): its weight and its bias
        self._adaptive = list(module.parameters())[:-2]
        if self._agc:
            require_timm("--clip-grad-agc")
            from timm.utils.agc import adaptive_clip_grad

            self._adapt = adaptive_clip_grad

    def factor(self, norm: torch.Tensor) -> torch.Tensor | float:
        """Return what gradients of this `norm`, float32 [], are multiplied by; 1 without --clip-grad-norm."""
        return torch.clamp(self.norm / (norm + 1e-6), max=1.0) if self.norm else 1.0

    def clip(self, gradients: list[torch.Tensor]) -> None:
        """Clip by the weights and by value, in place; `gradients` are those of all trained parameters."""
        if self._agc:
            self._adapt(self._adaptive, clip_factor=self._agc)
        if self._value:
            torch._foreach_clamp_min_(gradients, -self._value)
            torch._foreach_clamp_max_(gradients, self._value)
