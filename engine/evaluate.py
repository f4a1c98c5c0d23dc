"""Validation: every sample exactly once, whatever the number of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from contracts import Batch, Task
from engine import precision as precisions
from engine.distributed import ProcessWorld, Vote


def _same_kernels() -> Any:
    """cuDNN picks a kernel by the shape, not by a race: the figures are the same bits on any number of ranks."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=torch.backends.cudnn.allow_tf32)


def evaluate(
    module: nn.Module,
    batches: Iterable[Batch],
    *,
    task: Task,
    precision: str,
    world: ProcessWorld,
    vote: Vote,
    stop_requested: Callable[[], bool],
    progress: Callable[[int], None],
) -> dict[str, Any] | None:
    """The task's figures and `failed` ids over all ranks, and this one's `seconds`; None when a rank was asked to stop.

    `progress` gets samples done.
    """
    world.broadcast_buffers(module)
    was_training = module.training
    module.eval()
    metric = task.metric(world.device)
    failed: list[int] = []
    stopped, began = False, time.perf_counter()
    try:
        with torch.inference_mode(), precisions.autocast(precision, world.device), _same_kernels():
            for batch in batches:
                metric.update(module(*task.inputs(batch)), batch)
                failed += batch.failed
                progress(int((batch.ids >= 0).sum()))
                if vote.exchange(stop=stop_requested())["stop"]:
                    stopped = True
                    break
    finally:
        module.train(was_training)
    if vote.drain()["stop"] or stopped:
        return None
    world.synchronise()
    passed = time.perf_counter()
    result: dict[str, Any] = metric.result(world)
    result["seconds"] = {"pass": passed - began, "score": time.perf_counter() - passed}
    result["failed"] = sorted({sample for ids in world.gather(failed) for sample in ids})
    return result
