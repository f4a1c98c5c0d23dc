"""The training step: wait, forward, loss, backward, scale, clip, update. The only training step of the project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from contracts import Batch, Task, World
from engine import precision as precisions


class Step:
    """Calling it takes `accumulate` batches and moves the weights once. Precision, DDP and compile wrap it, none forks it.

    Returns float32 [4 + P] on the device: sum of losses, valid samples (both of this rank), gradient norm (nan unless it was
    asked for or clips), loss scale before the update, and the sums of the P parts of the loss, whose names are in `parts`.
    """

    def __init__(
        self,
        *,
        module: nn.Module,
        task: Task,
        optimizer: torch.optim.Optimizer,
        precision: str,
        accumulate: int,
        clip_grad_norm: float,
        world: World,
        draw_key: Callable[[int, int, int, int], int],
        phases: Any,
    ) -> None:
        self.module, self.optimizer = module, optimizer
        self.scaler = precisions.loss_scaler(precision, world.device)
        self.task, self.precision = task, precision
        self._accumulate, self._clip = accumulate, clip_grad_norm
        self._world, self._draw_key, self.phases = world, draw_key, phases
        self.parts: tuple[str, ...] = ()
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._unscaled, self._nan = torch.ones((), device=world.device), torch.full((), torch.nan, device=world.device)

    def __call__(self, batches: Iterator[Batch], *, lr: float, epoch: int, position: int, want_norm: bool = False) -> torch.Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss_sum = valid = part_sums = torch.zeros((), device=self._world.device)
        counting, whole = None, self._world.size == 1
        for micro in range(self._accumulate):
            batch = next(batches)
            self.phases.mark("data_wait")
            # dropout and the like: keyed by (seed, epoch, position, rank), so no generator state is saved
            seed(self._draw_key(epoch, position, micro, self._world.rank), self._world.device)
            last = micro + 1 == self._accumulate
            whole = whole and complete(batch)
            count = batch.valid.sum(dtype=torch.float32)
            valid = valid + count
            if last and self._world.size > 1:
                everyone = valid.clone()
                counting = dist.all_reduce(everyone, async_op=True)
            with nullcontext() if last or self._world.size == 1 else self.module.no_sync():  # type: ignore[operator]
                with precisions.autocast(self.precision, self._world.device):
                    outputs = self.module(*self.task.inputs(batch))
                    losses = self.task.losses(outputs, batch)
                self.phases.mark("forward")
                mine = losses.sum()
                scaled = self.scaler.scale(mine / (len(batch.ids) * self._accumulate))
                batch.launched()
                scaled.backward()
                self.phases.mark("backward")
            loss_sum = loss_sum + mine.detach()
            if parts := self.task.parts(outputs):
                self.parts = tuple(parts)
                part_sums = part_sums + torch.stack([*parts.values()]) * count
            if batch.transfer is not None:
                self.phases.span("transfer", *batch.transfer)
        everywhere = valid if counting is None else (counting.wait(), everyone)[1]
        norm = self._rescale(None if whole else everywhere, len(batch.ids), want_norm)
        outcome = torch.stack([loss_sum, valid, norm, self._loss_scale()])
        if self.parts:
            outcome = torch.cat([outcome, part_sums])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.phases.mark("update")
        return outcome

    def _rescale(self, valid: torch.Tensor | None, batch_size: int, want_norm: bool) -> torch.Tensor:
        """Mean over places -> mean over valid samples of all ranks, which is None where every place has one; then clip.

        Returns the norm before clipping.
        """
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        factor, norm = None, self._nan
        if valid is not None:
            factor = torch.where(valid > 0, batch_size * self._accumulate * self._world.size / valid, 0.0)
        if want_norm or self._clip > 0:
            norm = torch.nn.utils.get_total_norm(gradients)
            norm = norm if factor is None else norm * factor
        if self._clip > 0:
            clipped = torch.clamp(self._clip / (norm + 1e-6), max=1.0)
            factor = clipped if factor is None else factor * clipped
        if factor is not None:
            torch._foreach_mul_(gradients, factor)
        return norm

    def _loss_scale(self) -> torch.Tensor:
        scale = getattr(self.scaler, "_scale", None)  # the device tensor: get_scale() would wait for the device
        return self._unscaled if scale is None else scale.clone()

    def state_tensors(self) -> list[torch.Tensor]:
        """Every tensor that a step changes and a later step reads; what is restored after a ceiling was measured."""
        module_state = [*self.module.parameters(), *self.module.buffers()]
        optimizer_state = [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
        scaler_state = [t for name in ("_scale", "_growth_tracker") if (t := getattr(self.scaler, name, None)) is not None]
        return [*module_state, *optimizer_state, *scaler_state]


def complete(batch: Batch) -> bool:
    """Whether every place of a batch has a sample, as far as the host knows."""
    return batch.rows is not None and bool(batch.rows.valid.all())


def seed(key: int, device: torch.device) -> None:
    """Of the host's generator and the device's. torch.manual_seed is for all kinds of accelerators, and formats the stack for each that
    is not here, in case it starts later."""
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)  # of the current device, which is this process's
