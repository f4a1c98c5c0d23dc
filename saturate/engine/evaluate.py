"""One pass over a validation set: every sample exactly once, whatever the number of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import nn

from saturate.contracts import Batch, Counts, Pending, Task
from saturate.engine import precision as precisions
from saturate.engine.distributed import ProcessWorld, Vote


def _same_kernels() -> Any:
    """Let cuDNN pick a kernel by the shape, not by a race: the figures are the same bits on any number of
    ranks.
    """
    cudnn = torch.backends.cudnn
    return cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32
    )


class Mirrored(nn.Module):
    """A classifier whose logits are the mean of two views: a batch as it is, and mirrored left to right."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C] of images [B, 3, H, W], or of clips [B, 3, T, H, W]."""
        both: torch.Tensor = self.module(images) + self.module(images.flip(-1))
        return both / 2


@dataclass
class Outcome:
    """The figures of a pass: already there, or still being made in the background."""

    figures: dict[str, Any] | Pending  # what Metric.result gave
    _: KW_ONLY
    failed: list[int]  # ids over all ranks
    pass_s: float
    score_s: float  # that Metric.result took
    loader_s: float = 0.0  # that the loader took to open and to close
    reader: str = ""  # of the loader
    counts: Counts | None = None  # of the loader

    @property
    def in_background(self) -> bool:
        """Whether the figures are made beside what comes next."""
        return not isinstance(self.figures, dict)

    def done(self) -> bool:
        """Whether rank 0 would not have to wait for the figures."""
        return isinstance(self.figures, dict) or self.figures.done()

    def result(self, world: ProcessWorld) -> dict[str, Any]:
        """Return the task's figures and `failed` ids over all ranks, and this one's `seconds`.

        Every rank must call it, once.
        """
        began = time.perf_counter()
        figures = self.figures
        score_s = self.score_s
        if not isinstance(figures, dict):
            own = figures.result()
            extras = own.pop("extras", None)
            score_s = own.pop("seconds", 0.0)
            figures = dict(world.gather(own)[0])
            if extras:
                figures["extras"] = extras
        waited = self.score_s + time.perf_counter() - began
        seconds = {
            "loader": self.loader_s,
            "pass": self.pass_s,
            "score": score_s,
            "waited": waited,
        }
        return figures | {"failed": self.failed, "seconds": seconds}

    def cancel(self) -> None:
        """End what makes the figures: nobody will ask for them."""
        if not isinstance(self.figures, dict):
            self.figures.drop()


def evaluate(
    module: nn.Module,
    batches: Iterable[Batch],
    *,
    task: Task,
    precision: str,
    world: ProcessWorld,
    vote: Vote,
    stop: Callable[[], bool],
    advance: Callable[[int], None],
    tta: str = "none",
) -> Outcome | None:
    """Pass over all batches of all ranks; return None when a rank was asked to stop.

    `advance` gets the number of samples of each batch, once it is done; `tta` is --tta.
    """
    # each rank's batch norm has followed its own samples, and all ranks must validate one network
    world.broadcast(module.buffers())
    was_training = module.training
    module.eval()
    answering = Mirrored(module) if tta == "flip" else module
    metric = task.metric(world.device)
    failed: list[int] = []
    stopped = False
    began = time.perf_counter()
    try:
        with (
            torch.inference_mode(),
            precisions.autocast(precision, world.device),
            _same_kernels(),
        ):
            for batch in batches:
                outputs = answering(*task.inputs(batch))
                batch.launched()
                metric.update(outputs, batch)
                failed += batch.failed
                advance(int((batch.ids >= 0).sum()))
                if vote.exchange(stop=stop())["stop"]:
                    stopped = True
                    break
    finally:
        module.train(was_training)
    # the vote of the last batch is still under way
    if vote.drain()["stop"] or stopped:
        return None
    # the device's work belongs to the pass, and not to the time that scoring takes
    world.synchronise()
    failed = sorted({sample for ids in world.gather(failed) for sample in ids})
    passed = time.perf_counter()
    figures = metric.result(world)
    return Outcome(
        figures,
        failed=failed,
        pass_s=passed - began,
        score_s=time.perf_counter() - passed,
    )
