"""Changes of a step that are made for a while in place of being predicted, where the program ends anyway: a step that
refuses one with an error ends it a little earlier, and all else was measured by then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from saturate.why import hooks
from saturate.why.batches import KeptBatch

BLOCKS = 3
"""Times that steps with a change, and steps without it, are timed in turns."""
WARM_UP = 4
"""Steps in which the device chooses its algorithms anew."""


class Trial(NamedTuple):
    """A change that a program can make without another recipe."""

    # whether it is one, by what step.conditions has found, on a GPU
    applies: Callable[[Mapping[str, Any]], bool]
    # what makes it for a while, for these optimisers
    made: Callable[[Collection[Any]], AbstractContextManager[Any]]


def that_apply(facts: Mapping[str, Any]) -> dict[str, Trial]:
    """Return the trials that are ones of a program with these facts (step.conditions)."""
    if facts["hardware"]["gpu"] is None:
        return {}
    return {
        name: trial
        for name, trial in TRIALS.items()
        if trial.applies(facts["settings"])
    }


def _in_fp32(settings: Mapping[str, Any]) -> bool:
    return settings["dtypes"] == ["torch.float32"] and not settings["autocast"]


@contextmanager
def channels_last(optimizers: Collection[Any]) -> Iterator[None]:
    """Keep the weights of convolutions, and what the optimisers know of them, in channels_last."""
    before = []
    for optimizer in optimizers:
        for parameter in itertools.chain(
            *(g["params"] for g in optimizer.param_groups)
        ):
            for tensor in (parameter, *optimizer.state.get(parameter, {}).values()):
                if getattr(tensor, "ndim", 0) == 4:
                    before.append((tensor, tensor.data))
                    tensor.data = tensor.data.contiguous(
                        memory_format=torch.channels_last
                    )
    try:
        yield
    finally:
        # of what several optimisers have, the first is what was there
        for tensor, data in reversed(before):
            tensor.data = data


@contextmanager
def autocast(half: torch.dtype, _: Collection[Any]) -> Iterator[None]:
    """Compute what can be in a type of 16 bits, also where the program has an autocast that is switched off."""
    hooks.tried_in = half
    try:
        # weights that were cast in one step are others in the next
        with torch.autocast("cuda", half, cache_enabled=False):
            yield
    finally:
        hooks.tried_in = None


@contextmanager
def tf32(_: Collection[Any]) -> Iterator[None]:
    """Multiply matrices of fp32 with ten bits of a fraction."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


TRIALS = {
    "torch.set_float32_matmul_precision('high')": Trial(
        lambda settings: (
            _in_fp32(settings) and torch.get_float32_matmul_precision() == "highest"
        ),
        tf32,
    ),
    "channels_last": Trial(
        lambda settings: (
            settings["has_convolutions"]
            and not settings["channels_last"]
            # it would be compiled again
            and not settings["compiled"]
        ),
        channels_last,
    ),
    # last, since a loss may refuse them and end the program; both, since their kernels differ: docs/planted.md
    "torch.autocast('cuda', torch.bfloat16)": Trial(
        lambda settings: _in_fp32(settings) and torch.cuda.is_bf16_supported(),
        partial(autocast, torch.bfloat16),
    ),
    "torch.autocast('cuda', torch.float16) with a GradScaler": Trial(
        _in_fp32, partial(autocast, torch.float16)
    ),
}
"""What to change in the program -> how it is tried."""


def gains(
    again: Iterator[KeptBatch],
    trial: Trial,
    optimizers: Collection[Any],
    steps: int,
    clock: Callable[[], float],
) -> Generator[KeptBatch, None, list[float]]:
    """Yield batches for so many steps with a change and without it, in turns; return how many times as fast they are
    by a clock before which the device has ended each, the least first.
    """
    times = []
    for _ in range(BLOCKS):
        took_s = []
        for change in (nullcontext(), trial.made(optimizers)):
            with change:
                yield from itertools.islice(again, WARM_UP)
                began = clock()
                yield from itertools.islice(again, steps)
                took_s.append(clock() - began)
        times.append(took_s[0] / took_s[1])
    return sorted(times)
