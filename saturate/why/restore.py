"""The state of a program that is given batches again, kept before and put back after: networks, optimisers, schedules,
loss scales and random numbers.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

COUNT_STEPS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "transformers.trainer": "the Trainer of Hugging Face",
    "ultralytics": "Ultralytics",
}
"""Modules of trainers that count steps by themselves, and end or save by that count: nobody else can put it back."""


def refused() -> str:
    """Return what keeps a count that cannot be put back; "" for a loop without a trainer."""
    return next((who for name, who in COUNT_STEPS.items() if name in sys.modules), "")


class Kept:
    """What the program computes with, as it is now."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        import torch

        self._tables = [
            (table, dict(table))
            for module in _all_of(torch.nn.Module)
            for table in (module._parameters, module._buffers)
        ]
        tensors = {
            id(tensor): tensor
            for _, entries in self._tables
            for tensor in entries.values()
            if tensor is not None
        }
        self._tensors = [(one, one.detach().clone()) for one in tensors.values()]
        # of steps that accumulate
        self._grads = [
            (one, one.grad.clone())
            for one in tensors.values()
            if one.is_leaf and one.grad is not None
        ]
        of_pytorch = torch.optim.lr_scheduler
        kinds = (of_pytorch.LRScheduler, of_pytorch.ReduceLROnPlateau)
        scaler: Any = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
        holders = [*optimizers, *_all_of(*kinds), *_all_of(scaler)]
        self._states = [(one, copy.deepcopy(one.state_dict())) for one in holders]
        self._random = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state()
        self._host = torch.get_rng_state()
        self._devices = (
            torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        )

    def put_back(self) -> None:
        """Have the program go on from here."""
        import torch

        for table, entries in self._tables:
            table.update(entries)
        with torch.no_grad():
            for tensor, content in self._tensors:
                tensor.copy_(content)
                tensor.grad = None
            for tensor, content in self._grads:
                tensor.grad = content
        for holder, state in self._states:
            holder.load_state_dict(state)
        random.setstate(self._random)
        sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)


def _all_of(*kinds: type) -> Iterator[Any]:
    """Yield the program's objects of these kinds. The type alone is asked: lazy modules import at isinstance."""
    return (one for one in gc.get_objects() if issubclass(type(one), kinds))
