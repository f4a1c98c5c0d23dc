"""The step of a program that is not ours: what it computes with, and what its time goes to.

The functions that need steps yield the batches for these, and return what they have found.
"""

from __future__ import annotations

import itertools
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from saturate.system import neighbours
from saturate.system.resources import cores
from saturate.why.batches import KeptBatch, tensors_of

COPIES = 8
"""Times that a batch is copied to the device, to see how long that takes."""
STEPS = 6
"""Steps of which forward, backward and optimiser are told apart."""
COMPILER = "torch._inductor.compile_fx"
"""The module that torch.compile imports."""

Found = Generator[KeptBatch, None, dict[str, Any]]


def synchronised() -> float:
    """Return the time once the device has done what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def is_behind() -> bool:
    """Return whether the device had not done yet what it was given, once it has."""
    if not torch.cuda.is_initialized() or torch.cuda.current_stream().query():
        return False
    torch.cuda.synchronize()
    return True


def conditions(optimizers: Collection[Any], autocast: str) -> dict[str, Any]:
    """Return what decides the rate of the step: versions, hardware, and settings."""
    parameters = [
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    kernels = [one for one in parameters if one.ndim == 4 and one.shape[-1] > 1]
    gpu = next((one.device for one in parameters if one.is_cuda), None)
    return {
        "versions": {
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "hardware": {
            "gpu": gpu and torch.cuda.get_device_name(gpu),
            "cores": cores(),
        },
        "settings": {
            "dtypes": sorted({str(one.dtype) for one in parameters}),
            "autocast": autocast,
            "channels_last": any(
                one.is_contiguous(memory_format=torch.channels_last)
                and not one.is_contiguous()
                for one in kernels
            ),
            "has_convolutions": bool(kernels),
            "fused": any(one.defaults.get("fused") for one in optimizers),
            "compiled": COMPILER in sys.modules,
        },
    }


def split(again: Iterator[KeptBatch], clock: Callable[[], float]) -> Found:
    """Time forward, backward and optimiser of a few steps, by a clock before which the device has ended each."""
    from torch.optim import optimizer

    ms: dict[str, float] = {}
    marked_at = clock()

    def mark(part: str) -> None:
        """Count the time since the last mark as that of a part."""
        nonlocal marked_at
        now = clock()
        ms[part] = ms.get(part, 0.0) + 1e3 * (now - marked_at) / STEPS
        marked_at = now

    def backward(*args: Any, **kwargs: Any) -> Any:
        mark("forward")
        result = whole(*args, **kwargs)
        mark("backward")
        return result

    def within(argument: Any) -> Any:
        def closure() -> Any:
            mark("update")
            loss = argument()
            mark("loop")
            return loss

        return closure if callable(argument) else argument

    def begun(_: Any, args: Any, named: Any) -> Any:
        mark("loop")
        # a closure is forward and backward, as often as LBFGS calls it
        return tuple(map(within, args)), {name: within(named[name]) for name in named}

    whole = torch.autograd.backward
    torch.autograd.backward = backward
    pre = optimizer.register_optimizer_step_pre_hook(begun)
    post = optimizer.register_optimizer_step_post_hook(lambda *_: mark("update"))
    try:
        for batch in itertools.islice(again, STEPS):
            mark("loop")
            yield batch
        mark("loop")
    finally:
        torch.autograd.backward = whole
        pre.remove()
        post.remove()
    return {"split_ms": ms}


def on_device(
    again: Iterator[KeptBatch],
    settings: Mapping[str, Any],
    step_s: float,
    launcher: int,
) -> Found:
    """Measure on a GPU the copy of a batch, the kernels of a step without their launches, its arithmetic, and where it
    waits for the device. A step takes `step_s`, with these settings.
    """
    if not torch.cuda.is_initialized():
        return {}
    synchronised()
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    # torch has it since 2.4
    gpu = neighbours.gpu_handle(str(getattr(device, "uuid", "")))
    facts: dict[str, Any] = {"shared": neighbours.gpu_shared(gpu, launcher)}
    batch = next(again)
    if tensors := [one for one in tensors_of(batch.again()) if not one.is_cuda]:
        began = synchronised()
        for _ in range(COPIES):
            for tensor in tensors:
                tensor.cuda(non_blocking=True)
        facts["transfer_ms"] = 1e3 * (synchronised() - began) / COPIES
        facts["pinned"] = all(tensor.is_pinned() for tensor in tensors)
    facts["syncs"] = yield from _syncs(batch)
    facts["kernels"] = yield from _kernels(again, settings, step_s)
    return facts


def _syncs(batch: KeptBatch) -> Found:
    """Count the places of the program at which a step waits for the device."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield batch
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    places = Counter(
        f"{Path(one.filename).name}:{one.lineno}"
        for one in caught
        if "synchronizing CUDA operation" in str(one.message)
    )
    return dict(places.most_common(3))


def _kernels(
    again: Iterator[KeptBatch], settings: Mapping[str, Any], step_s: float
) -> Found:
    """Time the kernels of a step one behind another, and count its arithmetic."""
    from torch.utils.flop_counter import FlopCounterMode

    from saturate.report import kernels

    times_ms = []
    for _ in range(kernels.TIMES):
        with kernels.held(step_s) as took:
            yield next(again)
        times_ms.append(took[0])
    facts = {"kernel_ms": min(times_ms)}
    if settings["compiled"]:
        return facts  # under the counter it would be compiled again
    with FlopCounterMode(display=False) as counter:
        yield next(again)
    flops, of_convolutions = kernels.counted(counter)
    # no optimiser was seen where batches alone are counted
    dtypes = settings["dtypes"] or [str(torch.get_default_dtype())]
    dtype = settings["autocast"] or dtypes[0]
    peak = kernels.peak(dtype.removeprefix("torch."), torch.device("cuda"))
    facts["arithmetic_ms"] = 1e3 * flops / peak
    facts["convolutions"] = of_convolutions / max(flops, 1.0)
    return facts
