"""What a step on a GPU is made of: its kernels without the launches, and its arithmetic at the device's peak."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

CLOCK_HZ = 2e9
"""Cycles a second for which the device is held: an H100 has 1.98e9. One of 2.6e9 is held for 1.15 steps, which is
long enough too."""
TIMES = 3
"""Steps that are measured; the fastest one counts, since whatever else runs only adds."""
SIDE = 4096
"""Side of the square matrices whose product shows the device's peak."""
BACKWARD = 2
"""Forward passes whose arithmetic a backward pass has."""


def kernel_ms(
    step: Callable[[], object], device: torch.device, step_s: float
) -> dict[str, float]:
    """Return `kernel_ms`, the step's kernels one behind another, of one that takes `step_s`; {} on a CPU.

    Ranks meet in a step: all take as many, or an error ends the run.
    """
    if device.type != "cuda":
        return {}
    return {"kernel_ms": min(_kernel_ms(step, step_s) for _ in range(TIMES))}


def arithmetic(
    forward: Callable[[], object], *, dtype: str, device: torch.device
) -> dict[str, float]:
    """Return `arithmetic_ms` and `convolutions` of a step; {} on a CPU, or where there is no room for it.

    arithmetic_ms: its products, of matrices and of convolutions, at the rate of a large product of matrices.
    The rest of the kernels' time moves memory. convolutions: their share of the arithmetic.
    """
    if device.type != "cuda":
        return {}
    try:
        flops, of_convolutions = _flops(forward)
        return {
            "arithmetic_ms": 1e3 * (1 + BACKWARD) * flops / peak(dtype, device),
            "convolutions": of_convolutions / max(flops, 1.0),
        }
    except torch.OutOfMemoryError:  # the batch has left no room
        return {}


@contextmanager
def held(step_s: float) -> Iterator[list[float]]:
    """Yield a list that holds afterwards the milliseconds of the kernels that were launched inside, for `step_s`
    seconds: the device is held meanwhile, so that none waits for its launch.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    took: list[float] = []
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CLOCK_HZ * (1.5 * step_s + 2e-3)))
    start.record()
    yield took
    end.record()
    torch.cuda.synchronize()
    took.append(start.elapsed_time(end))


def _kernel_ms(step: Callable[[], object], step_s: float) -> float:
    with held(step_s) as took:
        step()
    return took[0]


def _flops(forward: Callable[[], object]) -> tuple[float, float]:
    """Return the floating-point operations of a forward pass, and those of convolutions."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        forward()
    return counted(counter)


def counted(counter: Any) -> tuple[float, float]:
    """Return the floating-point operations that a FlopCounterMode has seen, and those of convolutions."""
    by_operator = counter.get_flop_counts().get("Global", {})
    convolutions = sum(
        count for name, count in by_operator.items() if "convolution" in str(name)
    )
    return float(counter.get_total_flops()), float(convolutions)


def peak(dtype: str, device: torch.device) -> float:
    """Return the floating-point operations a second of a large product of matrices."""
    left = torch.randn(SIDE, SIDE, device=device, dtype=getattr(torch, dtype))
    torch.mm(left, left)
    torch.cuda.synchronize()
    times = 10
    began = time.perf_counter()
    for _ in range(times):
        torch.mm(left, left)
    torch.cuda.synchronize()
    return times * 2 * SIDE**3 / (time.perf_counter() - began)
