"""Validation: every sample exactly once, whatever the number of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from contracts import Batch, Pending, Task
from engine import precision as precisions
from engine.distributed import ProcessWorld, Vote


def _same_kernels() -> Any:
    """cuDNN picks a kernel by the shape, not by a race: the figures are the same bits on any number of ranks."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=torch.backends.cudnn.allow_tf32)


class Outcome:
    """The figures of a pass over the validation set: there, or being made beside what comes next."""

    def __init__(self, found: dict[str, Any] | Pending, *, failed: list[int], pass_s: float, score_s: float) -> None:
        self._found, self.failed, self._pass_s, self._score_s = found, failed, pass_s, score_s
        self.later = not isinstance(found, dict)

    def done(self) -> bool:
        """Whether rank 0 would not have to wait for them."""
        return isinstance(self._found, dict) or self._found.done()

    def result(self, world: ProcessWorld) -> dict[str, Any]:
        """The task's figures and `failed` ids over all ranks, and this one's `seconds`. Every rank must call it, once."""
        began = time.perf_counter()
        found, score_s = self._found, self._score_s
        if not isinstance(found, dict):
            told = found.result()
            extras, score_s = told.pop("extras", None), told.pop("seconds", 0.0)
            found = dict(world.gather(told)[0]) | ({"extras": extras} if extras else {})
        waited = self._score_s + time.perf_counter() - began
        return found | {"failed": self.failed, "seconds": {"pass": self._pass_s, "score": score_s, "waited": waited}}

    def drop(self) -> None:
        """Nobody will ask for them."""
        if not isinstance(self._found, dict):
            self._found.drop()


def told_by(loader: Any) -> dict[str, Any]:
    """What a summary says of a validation's loader, which is closed by then."""
    return {name: getattr(loader, name) for name in ("reader", "counts") if hasattr(loader, name)}


@dataclass(frozen=True, kw_only=True)
class Validated:
    """An outcome, and what it is of."""

    outcome: Outcome
    loading: dict[str, Any]  # see told_by
    step: int
    epoch: int | None  # the last one trained
    picks: bool  # whether best.pt may become the state
    state: dict[str, Any] | None  # on rank 0, if it picks


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
) -> Outcome | None:
    """One pass over all batches of all ranks; None when a rank was asked to stop.

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
                outputs = module(*task.inputs(batch))
                batch.launched()
                metric.update(outputs, batch)
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
    failed = sorted({sample for ids in world.gather(failed) for sample in ids})
    passed = time.perf_counter()
    found = metric.result(world)
    return Outcome(found, failed=failed, pass_s=passed - began, score_s=time.perf_counter() - passed)
