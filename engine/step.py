"""The training step: wait, forward, loss, backward, scale, clip, update. The only training step of the
project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from config import Optimisation
from contracts import Batch, Phases, Task, World
from engine import precision as precisions


class Step:
    """Calling it takes --accumulate batches and moves the weights once. Precision, DDP and compile wrap it,
    none forks it.

    Returns float32 [4 + P] on the device: sum of losses, valid samples (both of this rank), gradient norm
    (nan unless it was asked for or clips), loss scale before the update, and the sums of the P terms of the
    loss, which `loss_terms` names.
    """

    def __init__(
        self,
        *,
        module: nn.Module,
        task: Task,
        optimizer: torch.optim.Optimizer,
        optimisation: Optimisation,
        precision: str,
        world: World,
        draw_key: Callable[[int, int, int, int], int],
        phases: Phases,
    ) -> None:
        """Make the step of a run. `draw_key` turns (epoch, position, micro-batch, rank) into the seed of
        dropout and the like.
        """
        self.module = module
        self.task = task
        self.optimizer = optimizer
        self.precision = precision
        self.scaler = precisions.loss_scaler(precision, world.device)
        self.phases = phases
        self.loss_terms: tuple[str, ...] = ()
        self._accumulate = optimisation.accumulate
        self._clip = optimisation.clip_grad_norm
        self._world = world
        self._draw_key = draw_key
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._unscaled = torch.ones((), device=world.device)
        self._nan = torch.full((), torch.nan, device=world.device)

    @property
    def dtype(self) -> str:
        """Return the name of the dtype that images come in, such as float16."""
        return str(precisions.DTYPES[self.precision]).removeprefix("torch.")

    def __call__(
        self,
        batches: Iterator[Batch],
        *,
        lr: float,
        epoch: int,
        position: int,
        want_norm: bool = False,
    ) -> torch.Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss_sum = valid = term_sums = torch.zeros((), device=self._world.device)
        # the count of valid samples over all ranks, under way beside the backward pass
        counting: dist.Work | None = None
        complete = self._world.size == 1  # whether the host knows that every row of every rank has a sample
        for micro in range(self._accumulate):
            batch = next(batches)
            self.phases.mark("data_wait")
            # keyed by (seed, epoch, position, rank), so no generator state is saved
            seed(self._draw_key(epoch, position, micro, self._world.rank), self._world.device)
            last = micro + 1 == self._accumulate
            complete = complete and is_complete(batch)
            count = batch.valid.sum(dtype=torch.float32)
            valid = valid + count
            if last and self._world.size > 1:
                # beside the backward pass; its outcome is needed after that
                everyone = valid.clone()
                counting = dist.all_reduce(everyone, async_op=True)
            with self._gradients_stay_here() if not last else nullcontext():
                with precisions.autocast(self.precision, self._world.device):
                    outputs = self.module(*self.task.inputs(batch))
                    losses = self.task.losses(outputs, batch)
                self.phases.mark("forward")
                own_loss = losses.sum()
                # by rows, which the host knows: how many of all ranks are valid is known after the backward
                # pass, and _rescale makes up for it
                scaled = self.scaler.scale(own_loss / (len(batch.ids) * self._accumulate))
                # from here on the loader's thread may go on: the backward pass does not need the
                # interpreter's lock
                batch.launched()
                scaled.backward()
                self.phases.mark("backward")
            loss_sum = loss_sum + own_loss.detach()
            if terms := self.task.parts(outputs):
                self.loss_terms = tuple(terms)
                term_sums = term_sums + torch.stack([*terms.values()]) * count
            if batch.transfer is not None:
                self.phases.span("transfer", *batch.transfer)
        valid_of_all = valid
        if counting is not None:
            counting.wait()
            valid_of_all = everyone
        norm = self._rescale(None if complete else valid_of_all, len(batch.ids), want_norm)
        # before the update, which moves the loss scale: the outcome has the one that this step used
        outcome = torch.stack([loss_sum, valid, norm, self._loss_scale()])
        if self.loss_terms:
            outcome = torch.cat([outcome, term_sums])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.phases.mark("update")
        return outcome

    def _gradients_stay_here(self) -> AbstractContextManager[None]:
        """Return the context of a micro-batch after which the ranks do not yet share their gradients."""
        if isinstance(self.module, DistributedDataParallel):
            return self.module.no_sync()
        return nullcontext()

    def _rescale(self, valid: torch.Tensor | None, batch_size: int, want_norm: bool) -> torch.Tensor:
        """Turn the mean over rows into the mean over the valid samples of all ranks, then clip.

        `valid` counts these; None says that every row has one. Returns the norm before clipping.
        """
        # first: norm and clipping are of true gradients, and what has overflowed is noted here, so that
        # scaler.step leaves the weights alone
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        factor = None
        norm = self._nan
        if valid is not None:
            # backward() divided by rows and DDP by ranks; without a valid sample there is nothing to learn,
            # and no division by 0
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
        """Copy the loss scale, float32 [] on the device; 1 without one."""
        # the device tensor: get_scale() would wait for the device
        scale = self.scaler._scale if self.scaler.is_enabled() else None
        return self._unscaled if scale is None else scale.clone()

    def state_tensors(self) -> list[torch.Tensor]:
        """List every tensor that a step changes and a later step reads; restored after a ceiling was
        measured.
        """
        states = self.optimizer.state.values()
        optimizer_state = [v for state in states for v in state.values() if isinstance(v, torch.Tensor)]
        scaler_state: list[torch.Tensor] = []
        if self.scaler.is_enabled():
            both = (self.scaler._scale, self.scaler._growth_tracker)
            scaler_state = [tensor for tensor in both if tensor is not None]
        return [*self.module.parameters(), *self.module.buffers(), *optimizer_state, *scaler_state]


def is_complete(batch: Batch) -> bool:
    """Whether every row of a batch has a sample, as far as the host knows."""
    return batch.rows is not None and bool(batch.rows.valid.all())


def seed(key: int, device: torch.device) -> None:
    """Seed the host's generator and the device's.

    torch.manual_seed is for all kinds of accelerators, and formats the stack for each that is not here, in
    case it starts later.
    """
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)  # of the current device, which is this process's
