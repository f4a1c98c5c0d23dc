"""The state of a program that is given batches again, kept before and put back after: networks, optimisers, schedules,
loss scales and random numbers.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch

COUNT_STEPS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "transformers.trainer": "the Trainer of Hugging Face",
    "ultralytics": "Ultralytics",
}
"""Modules of trainers that count steps by themselves, and end or save by that count: nobody else can put it back."""


def refuses() -> bool:
    """Say so where a trainer keeps a count that cannot be put back."""
    who = next((who for name, who in COUNT_STEPS.items() if name in sys.modules), "")
    if who:
        print(
            f"saturate why: --then go-on: {who} counts steps by itself, so the program ends once it is measured",
            file=sys.stderr,
        )
    return bool(who)


class State:
    """What the program computes with, as it is now."""

    def __init__(self, optimizers: Iterable[Any]) -> None:
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
        }.values()
        self._tensors = [(one, one.detach().clone()) for one in tensors]
        # of steps that accumulate
        self._grads = [
            (one, one.grad.clone())
            for one in tensors
            if one.is_leaf and one.grad is not None
        ]
        schedules = torch.optim.lr_scheduler
        holders = [
            *optimizers,
            *_all_of(schedules.LRScheduler, schedules.ReduceLROnPlateau),
            # torch.amp has it since 2.3
            *_all_of(getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)),
        ]
        self._states = [(one, copy.deepcopy(one.state_dict())) for one in holders]
        # what sets random numbers -> how these are now
        self._random: list[tuple[Callable[[Any], object], Any]] = [
            (random.setstate, random.getstate()),
            # what they draw from, if they do
            (numpy.random.set_state, numpy.random.get_state()),  # noqa: NPY002
            (torch.set_rng_state, torch.get_rng_state()),
        ]
        if torch.cuda.is_initialized():
            devices = torch.cuda.get_rng_state_all()
            self._random.append((torch.cuda.set_rng_state_all, devices))

    def put_back(self) -> None:
        """Have the program go on from here."""
        for table, entries in self._tables:
            table.update(entries)
        with torch.no_grad():
            for tensor, content in self._tensors:
                tensor.copy_(content)
                tensor.grad = None
            for tensor, content in self._grads:
                tensor.grad = content
        # an optimiser makes new ones, and the program, or an optimiser around it, has those of before
        held = [
            (holder, holder.param_groups, [*holder.param_groups])
            for holder, _ in self._states
            if hasattr(holder, "param_groups")
        ]
        for holder, state in self._states:
            holder.load_state_dict(state)
        loaded = [[dict(one) for one in holder.param_groups] for holder, *_ in held]
        for (holder, groups, each), new in zip(held, loaded, strict=True):
            for group, content in zip(each, new, strict=True):
                group.clear()
                group.update(content)
            groups[:] = each
            holder.param_groups = groups
        for put_back, state in self._random:
            put_back(state)


def _all_of(*kinds: type) -> Iterator[Any]:
    """Yield the program's objects of these kinds. The type alone is asked: lazy modules import at isinstance."""
    return (one for one in gc.get_objects() if issubclass(type(one), kinds))
