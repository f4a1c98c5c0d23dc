"""The message for a batch that does not fit into memory: it names a batch size that does."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from contracts import Task, UserError, World
from engine import precision as precisions
from engine.step import Step

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of a batch's axes -> memory format."""
GOT_NONE = {
    "can't allocate memory": "the machine has not enough memory",
    "could not create a primitive": "oneDNN got no memory",
    "_ALLOC_FAILED": "a CUDA library got no memory",
    "bytes on device": "DALI got no memory",
    "CUDA allocation failed": "DALI got no memory",
}
"""Words in an error's text -> the reason that the user is told."""


@contextmanager
def explained(
    step: Step, batch_size: int, shape: tuple[int, ...], world: World
) -> Iterator[None]:
    """Turn running out of memory into a UserError that names a batch size which was tried and fits.

    `shape` is that of a sample.
    """
    try:
        yield
        return
    except (MemoryError, RuntimeError) as error:
        if (reason := _lack(error)) is None:
            raise
        failed = error.__traceback__
    traceback.clear_frames(failed)  # which hold what the step had made
    step.forget()
    fits = largest_fit(step, batch_size, shape, world.device)
    if fits:
        advice = f"--batch-size {fits} fits"
    else:
        advice = "no smaller one did in what memory is left here: a far smaller one, --arch or --image-size"
    keeping = "with --accumulate to keep the step's size"
    raise UserError(
        f"--batch-size {batch_size} does not fit ({reason}); {advice}, {keeping}"
    )


@contextmanager
def validating(batch_size: int) -> Iterator[None]:
    """Turn running out of memory in a validation into a UserError that names its batch size."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if (reason := _lack(error)) is None:
            raise
        remedy = "a smaller --val-batch-size needs less"
        raise UserError(
            f"a validation batch of {batch_size} does not fit ({reason}): {remedy}"
        ) from None


def _lack(error: BaseException) -> str | None:
    """Say which memory ran out; None where the error is about something else."""
    if isinstance(error, torch.OutOfMemoryError):
        return str(error).split(".")[0]
    for sign, reason in GOT_NONE.items():
        if sign in str(error):
            return reason
    # Python's and NumPy's own
    return (
        "the machine has not enough memory" if isinstance(error, MemoryError) else None
    )


def largest_fit(
    step: Step, batch_size: int, shape: tuple[int, ...], device: torch.device
) -> int:
    """Find the largest of batch_size * 3/4, 1/2, 3/8, 1/4, ... whose forward and backward pass run; 0 when
    none does.
    """
    three_quarters = {batch_size * 3 // 4 >> k for k in range(24)}
    halves = {batch_size // 2 >> k for k in range(24)}
    module = step.module
    if isinstance(module, DistributedDataParallel):
        module = module.module  # other ranks do not take part
    for size in sorted(three_quarters | halves, reverse=True):
        if size > 0 and _runs(
            module, step.task, (size, *shape), device, step.precision
        ):
            return size
    return 0


def _runs(
    module: torch.nn.Module,
    task: Task,
    shape: tuple[int, ...],
    device: torch.device,
    precision: str,
) -> bool:
    try:
        images = torch.zeros(shape, device=device)
        images = images.to(memory_format=CHANNELS_LAST[len(shape)])
        with precisions.autocast(precision, device):
            outputs = module(*task.probe(images))
        total = torch.stack(
            [tensor.float().sum() for tensor in _tensors(outputs)]
        ).sum()
        trained = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        # not backward(): DistributedDataParallel's hooks on the parameters would then share these gradients
        # with ranks that wait in the middle of a step
        torch.autograd.grad(total, trained, allow_unused=True)
        return True
    # libraries beside torch say it in a RuntimeError of their own: see GOT_NONE; and batch norm says by a
    # ValueError that it cannot train on one value a channel
    except (torch.OutOfMemoryError, RuntimeError, ValueError):
        return False
    finally:
        # the next, smaller size must not find the memory of this one taken
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _tensors(outputs: Any) -> list[torch.Tensor]:
    """List what a backward pass begins with: a detector's losses, or logits, which may be beside an auxiliary
    head's.
    """
    if isinstance(outputs, dict):
        return list(outputs.values())
    return [outputs if isinstance(outputs, torch.Tensor) else outputs[0]]
