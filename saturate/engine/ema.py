"""The exponential moving average of a network's weights: moved once an optimiser step, on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from saturate.contracts import UserError

PREFIX = "module."
"""torch.optim.swa_utils.AveragedModel puts this before a network's own names."""
COUNT = "n_averaged"
"""AveragedModel's name of the number of steps that were averaged."""
WARM_UP_POWER = 2 / 3
"""The warm-up's decay after n steps is 1 - (1 + n) ** -WARM_UP_POWER, as timm's ModelEmaV3 has it."""


class Ema:
    """Averages of a network's parameters and of its floating-point buffers, such as batch norm's statistics.

    The first update copies, as timm's ModelEmaV3 and torch's AveragedModel do. Other buffers are the
    network's own of now: whole numbers, what a state dict leaves out, and masks with -inf, whose average is
    no number.

    `update` launches kernels and waits for nothing, so that a CUDA graph holds it. The tensors stay where
    they are in memory.
    """

    def __init__(self, module: nn.Module, *, decay: float, warm_up: bool) -> None:
        """Begin with the weights of now."""
        self._module = module
        self._network = list(module.parameters())
        saved = module.state_dict().keys()
        # names of the parameters and buffers that are averaged
        self.names = [name for name, _ in module.named_parameters()]
        # a buffer is kept as its dictionary and name: a network may assign a new tensor to the name
        self._buffers: list[tuple[dict[str, torch.Tensor | None], str]] = []
        for prefix, owner in module.named_modules():
            for leaf, buffer in owner._buffers.items():
                name = f"{prefix}.{leaf}" if prefix else leaf
                if buffer is not None and name in saved and _has_average(buffer):
                    self.names.append(name)
                    self._buffers.append((owner._buffers, leaf))
        self._averages = [live.detach().clone() for live in self._live()]
        device = self._network[0].device
        self._decay = torch.tensor(decay, device=device)
        self._warm_up = warm_up
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def _live(self) -> list[torch.Tensor]:
        """Return what is averaged, in the order of the averages."""
        buffers = [held[leaf] for held, leaf in self._buffers]
        return [*self._network, *buffers]  # type: ignore[list-item]  # none of them is None

    def update(self, overflowed: torch.Tensor | None) -> None:
        """Move the averages by 1 - decay towards the weights, unless the step has `overflowed`.

        That is float32 [] on the device, above 0 where gradients were no numbers; None without a loss scale.
        """
        if self._warm_up:
            decay = torch.minimum(
                self._decay, 1 - (1 + self._count.float()) ** -WARM_UP_POWER
            )
        else:
            decay = self._decay * (self._count > 0)  # the first update copies
        weight = 1 - decay
        taken = torch.ones_like(self._count)
        if overflowed is not None:
            taken = (overflowed == 0).to(taken.dtype)
            weight = weight * taken
        weights = [weight.to(average.dtype) for average in self._averages]
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, self._live(), weights)
        self._count += taken

    def restart(self) -> None:
        """Begin anew with the weights of now."""
        torch._foreach_copy_(self._averages, [live.detach() for live in self._live()])
        self._count.zero_()

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """Have the network compute with the averages inside; its own weights stay where they are."""
        parameters = [parameter.data for parameter in self._network]
        buffers = [held[leaf] for held, leaf in self._buffers]
        of_buffers = self._averages[len(parameters) :]
        try:
            for parameter, average in zip(self._network, self._averages, strict=False):
                parameter.data = average
            for (held, leaf), average in zip(self._buffers, of_buffers, strict=True):
                held[leaf] = average
            yield
        finally:
            for parameter, own in zip(self._network, parameters, strict=True):
                parameter.data = own
            for (held, leaf), buffer in zip(self._buffers, buffers, strict=True):
                held[leaf] = buffer

    def tensors(self) -> list[torch.Tensor]:
        """List what a step changes and a later step reads."""
        return [*self._averages, self._count]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the averages, and the network's other buffers, under AveragedModel's names; live tensors."""
        averages = dict(zip(map(id, self._live()), self._averages, strict=True))
        state = self._module.state_dict(keep_vars=True)
        return {COUNT: self._count} | {
            PREFIX + name: averages.get(id(value), value)
            for name, value in state.items()
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the averages of a state dict; the network has loaded its other buffers. Raises UserError."""
        for name in (COUNT, *(PREFIX + name for name in self.names)):
            if name not in state:
                problem = f"a damaged checkpoint: its 'ema' has no '{name}'"
                raise UserError(f"--resume: {problem}")
        with torch.no_grad():
            for name, average in zip(self.names, self._averages, strict=True):
                average.copy_(state[PREFIX + name])
            self._count.copy_(state[COUNT])


def _has_average(buffer: torch.Tensor) -> bool:
    """Return whether a mean of such a buffer's values is one too."""
    return buffer.is_floating_point() and bool(buffer.isfinite().all())
