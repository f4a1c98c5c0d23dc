"""The exponential moving average of a network's weights: moved once an optimiser step, on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from contracts import UserError

PREFIX = "module."
"""What torch.optim.swa_utils.AveragedModel puts before a network's own names."""
COUNT = "n_averaged"
"""AveragedModel's name of the number of steps that were averaged."""
WARM_UP_POWER = 2 / 3
"""The warm-up's decay after n steps is 1 - (1 + n) ** -WARM_UP_POWER, as timm's ModelEmaV3 has it."""


class Ema:
    """Averages of a network's parameters; its buffers are the network's own of now.

    `update` launches kernels and waits for nothing, so that a CUDA graph holds it. The tensors stay where
    they are in memory.
    """

    def __init__(
        self,
        module: nn.Module,
        masters: Mapping[nn.Parameter, nn.Parameter],
        *,
        decay: float,
        warm_up: bool,
    ) -> None:
        """Begin with the weights of now. `masters`: parameters that are trained in place of the network's."""
        self._module = module
        self._network = list(module.parameters())
        self._live: list[torch.Tensor] = [masters.get(parameter, parameter) for parameter in self._network]
        self._averages = [live.detach().clone() for live in self._live]
        device = self._live[0].device
        self._decay = torch.tensor(decay, device=device)
        self._warm_up = warm_up
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, overflowed: torch.Tensor | None) -> None:
        """Move the averages by 1 - decay towards the weights, unless the step has `overflowed`.

        That is float32 [] on the device, above 0 where gradients were no numbers; None without a loss scale.
        """
        decay = self._decay
        if self._warm_up:
            decay = torch.minimum(decay, 1 - (1 + self._count.float()) ** -WARM_UP_POWER)
        weight = 1 - decay
        taken = torch.ones_like(self._count)
        if overflowed is not None:
            taken = (overflowed == 0).to(taken.dtype)
            weight = weight * taken
        weights = [weight.to(average.dtype) for average in self._averages]
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, self._live, weights)
        self._count += taken

    def restart(self) -> None:
        """Begin anew with the weights of now."""
        torch._foreach_copy_(self._averages, [live.detach() for live in self._live])
        self._count.zero_()

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """Have the network compute with the averages inside; its own weights stay where they are."""
        held = [parameter.data for parameter in self._network]
        try:
            for parameter, average in zip(self._network, self._averages, strict=True):
                parameter.data = average.to(parameter.dtype)
            yield
        finally:
            for parameter, own in zip(self._network, held, strict=True):
                parameter.data = own

    def tensors(self) -> list[torch.Tensor]:
        """List what a step changes and a later step reads."""
        return [*self._averages, self._count]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the averages, and the network's buffers, under AveragedModel's names; live tensors."""
        averages = {id(own): average for own, average in zip(self._network, self._averages, strict=True)}
        named = self._module.named_parameters(remove_duplicate=False)
        own = {name: averages[id(parameter)] for name, parameter in named}
        state = {name: own.get(name, value) for name, value in self._module.state_dict().items()}
        return {COUNT: self._count, **{PREFIX + name: value for name, value in state.items()}}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the averages of a state dict; the network has loaded its buffers. Raises UserError."""
        names = [name for name, _ in self._module.named_parameters()]
        missing = [name for name in (COUNT, *(PREFIX + name for name in names)) if name not in state]
        if missing:
            raise UserError(f"--resume: a damaged checkpoint: its 'ema' has no '{missing[0]}'")
        with torch.no_grad():
            for name, average in zip(names, self._averages, strict=True):
                average.copy_(state[PREFIX + name])
            self._count.copy_(state[COUNT])
