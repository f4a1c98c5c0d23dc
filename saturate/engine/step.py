"""The training step: wait, forward, loss, backward, scale, clip, update. The only training step of the
project.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from saturate.contracts import Batch, Phases, Task
from saturate.engine import optimizers
from saturate.engine import precision as precisions
from saturate.engine.clipping import Clipping
from saturate.engine.distributed import ProcessWorld
from saturate.engine.ema import Ema
from saturate.settings.optimisation import Optimisation

if TYPE_CHECKING:
    from saturate.engine.graphed import Graphs


class Step:
    """Calling it takes --accumulate batches and moves the weights once. Precision, DDP and compile wrap it,
    none forks it.

    Returns float32 [4 + P] on the device: sum of losses, valid samples (both of this rank), gradient norm
    (nan unless it was asked for or clips), loss scale before the update, and the sums of the P terms of the
    loss, which `loss_terms` names. It may be written again by the next call.

    The host decides nothing between the first kernel and the last: what depends on numbers, such as how many
    samples are valid or whether a gradient has overflowed, is decided on the device. So the same code runs
    eagerly and is captured as a CUDA graph, and every tensor that one step leaves for the next stays where it
    is in memory.
    """

    def __init__(
        self,
        *,
        module: nn.Module,
        task: Task,
        optimisation: Optimisation,
        precision: str,
        world: ProcessWorld,
        draw_key: Callable[[int, int, int, int], int],
        phases: Phases,
        compiled: bool = False,
    ) -> None:
        """Make the step of a run, and the optimiser of `module`, which is on its device and has its weights.

        `draw_key` turns (epoch, position, micro-batch, rank) into the seed of dropout and the like.
        """
        self.optimizer = optimizers.build(module, optimisation)
        self._rates = optimizers.LearningRates(self.optimizer)
        self.capturable = optimizers.OPTIMIZERS[optimisation.optimizer].capturable
        self._network = module
        self._wrap = partial(
            world.wrap,
            module,
            compiled=compiled,
            bucket_mib=optimisation.bucket_mib,
        )
        self.module = self._wrap()
        # behind DDP, with which all ranks have rank 0's weights
        self.ema = None
        if optimisation.ema:
            self.ema = Ema(
                module, decay=optimisation.ema, warm_up=optimisation.ema_warmup
            )
        self.task = task
        self.precision = precision
        self.scaler = precisions.loss_scaler(precision, world.device)
        self.phases = phases
        self.accumulate = optimisation.accumulate
        self.clips = optimisation.clip_grad_norm > 0
        self._clipping = Clipping(module, optimisation)
        self.world = world
        self.loss_terms: tuple[str, ...] = ()
        # None: every kernel is launched by the host, one by one
        self.graphs: Graphs | None = None
        self._held_by_graphs = 0  # bytes, when their memory was lent
        self._shares = True  # its gradients with the other ranks
        self._draw_key = draw_key
        self._parameters = [
            p for group in self.optimizer.param_groups for p in group["params"]
        ]
        self._unscaled = torch.ones((), device=world.device)
        self._nan = torch.full((), torch.nan, device=world.device)
        # sums over the micro-batches so far: losses, valid samples, the loss's terms
        self._sums = torch.zeros(2, device=world.device)
        # the scaler makes its tensors when it is first used
        self.scaler.scale(self._unscaled)

    @property
    def dtype(self) -> str:
        """Return the name of the dtype that images come in, such as float16."""
        return precisions.dtype_of(self.precision)

    def __call__(
        self,
        batches: Iterator[Batch],
        *,
        lr: float,
        epoch: int,
        position: int,
        want_norm: bool = False,
    ) -> torch.Tensor:
        self._rates.set(lr)
        for micro in range(self.accumulate):
            batch = next(batches)
            self.phases.mark("data_wait")
            # keyed by (seed, epoch, position, rank), so no generator state is saved
            seed(
                self._draw_key(epoch, position, micro, self.world.rank),
                self.world.device,
            )
            last = micro + 1 == self.accumulate
            if self.graphs is None:
                outcome = self.micro_batch(batch, last=last, want_norm=want_norm)
            else:
                outcome = self.graphs.replay(batch, last=last, want_norm=want_norm)
                batch.launched()
                self.phases.mark("graph")
            if batch.transforms_ms is not None:
                self.phases.took("transforms", batch.transforms_ms)
            if batch.transfer is not None:
                self.phases.span("transfer", *batch.transfer)
        return outcome

    def forward(self, batch: Batch) -> object:
        """Return the network's outputs, as they are before it is compiled; no gradient is taken."""
        with torch.no_grad(), precisions.autocast(self.precision, self.world.device):
            return self._network(*self.task.inputs(batch))

    def micro_batch(self, batch: Batch, *, last: bool, want_norm: bool) -> torch.Tensor:
        """Add the gradients of one batch; with the `last` one of a step, update the weights.

        Returns what the step returns, of the micro-batches so far. This is what a graph captures.
        """
        count = batch.valid.sum(dtype=torch.float32)
        # valid samples of the step over all ranks, under way beside the backward pass
        everyones = self._sums[1] + count
        counting: dist.Work | None = None
        if last and self.world.size > 1:
            counting = dist.all_reduce(everyones, async_op=True)
        shares = last and self._shares
        with nullcontext() if shares else self._gradients_stay_here():
            with precisions.autocast(self.precision, self.world.device):
                outputs = self.module(*self.task.inputs(batch))
                losses = self.task.losses(outputs, batch)
            self.phases.mark("forward")
            own_loss = losses.sum()
            # divided by rows, which the host knows: how many of all ranks are valid is known after the backward
            # pass, and _rescale makes up for it
            scaled = self.scaler.scale(own_loss / (len(batch.ids) * self.accumulate))
            # from here on the loader's thread may go on: the backward pass does not need the
            # interpreter's lock
            batch.launched()
            scaled.backward()
            self.phases.mark("backward")
        terms = self.task.parts(outputs)
        if len(terms) != len(self.loss_terms):  # in the first step
            self.loss_terms = tuple(terms)
            self._sums = torch.cat([self._sums, self._sums.new_zeros(len(terms))])
        self._sums += torch.stack(
            [own_loss.detach(), count, *(term * count for term in terms.values())]
        )
        if not last:
            return self._sums
        if counting is not None:
            counting.wait()
        outcome = self._update(everyones, len(batch.ids), want_norm)
        self.phases.mark("update")
        return outcome

    def _update(
        self, valid: torch.Tensor, batch_size: int, want_norm: bool
    ) -> torch.Tensor:
        """Move the weights by the gradients that are there, and forget these. Returns the step's outcome."""
        norm = self._rescale(valid, batch_size, want_norm)
        # before the update, which moves the loss scale: the outcome has the one that this step used
        outcome = torch.cat(
            [self._sums[:2], torch.stack([norm, self._loss_scale()]), self._sums[2:]]
        )
        overflowed = self._overflowed()
        self.scaler.step(self.optimizer)
        if self.ema is not None:
            self.ema.update(overflowed)
        self.scaler.update()
        # the next micro-batch adds to what is there, also in a graph: zeros in the same memory
        self.optimizer.zero_grad(set_to_none=self.accumulate == 1)
        self._sums.zero_()
        return outcome

    def _gradients_stay_here(self) -> AbstractContextManager[None]:
        """Return the context of a micro-batch after which the ranks do not yet share their gradients."""
        if isinstance(self.module, DistributedDataParallel):
            return self.module.no_sync()
        return nullcontext()

    def _rescale(
        self, valid: torch.Tensor, batch_size: int, want_norm: bool
    ) -> torch.Tensor:
        """Turn the mean over rows into the mean over the `valid` samples of all ranks, then clip.

        Returns the norm before clipping.
        """
        # first: norm and clipping are of true gradients, and what has overflowed is noted here, so that
        # scaler.step leaves the weights alone
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        # backward() divided by rows and DDP by ranks; exactly 1 where every row has a sample; without a
        # valid sample there is nothing to learn, and no division by 0
        factor = torch.where(
            valid > 0, batch_size * self.accumulate * self.world.size / valid, 0.0
        )
        norm = self._nan
        if want_norm or self.clips:
            norm = torch.nn.utils.get_total_norm(gradients) * factor
        torch._foreach_mul_(gradients, factor * self._clipping.factor(norm))
        self._clipping.clip(gradients)
        return norm

    def _overflowed(self) -> torch.Tensor | None:
        """Return whether gradients were no numbers, float32 [] on the device, above 0 if so.

        None without a loss scale. `_rescale` has looked at them.
        """
        if not self.scaler.is_enabled():
            return None
        state = self.scaler._per_optimizer_states[id(self.optimizer)]
        return torch.stack(list(state["found_inf_per_device"].values())).sum()

    def _loss_scale(self) -> torch.Tensor:
        """Return the loss scale, float32 [] on the device; 1 without one."""
        # the device tensor: get_scale() would wait for the device
        scale = self.scaler._scale if self.scaler.is_enabled() else None
        return self._unscaled if scale is None else scale

    @contextmanager
    def unshared(self) -> Iterator[bool]:
        """Let each rank step by its own gradients inside; yields whether it can: a graph holds the sharing."""
        self._shares = False
        try:
            yield self.graphs is None and self.world.size > 1
        finally:
            self._shares = True

    def state_tensors(self) -> list[torch.Tensor]:
        """List every tensor that a step changes and a later step reads. They stay the same objects.

        Sums and gradients of a step's micro-batches are zero between steps.
        """
        held = [*self.module.parameters(), *self.module.buffers()]
        for state in self.optimizer.state.values():
            held += [v for v in state.values() if isinstance(v, torch.Tensor)]
        if self.scaler.is_enabled():
            both = (self.scaler._scale, self.scaler._growth_tracker)
            held += [tensor for tensor in both if tensor is not None]
        return [*held, *(self.ema.tensors() if self.ema is not None else [])]

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Put back, bit for bit and in place, what the steps inside change, and take away what they make."""
        # an optimiser may make state in its first step, and count steps in its groups or attributes; a
        # network may assign a new tensor to a buffer's name
        optimizer = self.optimizer
        holders: list[dict[Any, Any]] = [
            module._buffers for module in self._network.modules()
        ]
        holders += [
            vars(optimizer),
            optimizer.state,
            *optimizer.state.values(),
            *optimizer.param_groups,
        ]
        held = [(holder, dict(holder)) for holder in holders]
        values = [v for holder in holders for v in holder.values()]
        values += self.state_tensors()
        tensors = list(
            {id(v): v for v in values if isinstance(v, torch.Tensor)}.values()
        )
        # copies lie on the host: the batch may have left the device no room for them
        saved = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        rates = self._rates.read()
        try:
            yield
        finally:
            for holder, before in held:
                made = [name for name in holder if name not in before]
                # graphs read what was made before a capture
                for name in made if self.graphs is None else []:
                    del holder[name]
                holder.update(before)
            for tensor, value in zip(tensors, saved, strict=True):
                tensor.detach().copy_(value)
            self._rates.write(rates)

    @contextmanager
    def memory_lent(self) -> Iterator[None]:
        """Let what runs inside, between two steps, have the memory that graphs need in a replay alone."""
        if self.graphs is None:
            yield
            return
        self._held_by_graphs = self.graphs.lent_bytes()
        with self.graphs.lent():
            yield

    def memory_is_back(self) -> bool:
        """Return whether nothing of what was lent is still in use. All ranks call it together.

        Where something is, a replay would write over it: steps are launched kernel by kernel from then on.
        """
        if self.graphs is None:
            return True
        gc.collect()
        lent = self.graphs.lent_bytes() > self._held_by_graphs
        if any(self.world.gather(lent)):
            self.graphs = None
        return self.graphs is not None

    def wrap_again(self) -> None:
        """Wrap the network anew, after an error in a backward pass. All ranks call it together."""
        if self.world.size == 1:
            return
        self.module = self._network
        gc.collect()  # the wrapper before takes its hooks off the parameters
        self.module = self._wrap()

    def forget(self) -> None:
        """Drop gradients and sums of a step that an error has cut short, and the graphs with their memory."""
        self.graphs = None
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.is_enabled():
            self.scaler._per_optimizer_states.clear()  # else the next unscale_ refuses to be the second one
        self._sums.zero_()


def seed(key: int, device: torch.device) -> None:
    """Seed the host's generator and the device's, which a graph's replay reads too.

    torch.manual_seed is for all kinds of accelerators, and formats the stack for each that is not here, in
    case it starts later.
    """
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        # this process's; there are no generators before CUDA has started
        index = torch.cuda.current_device()
        torch.cuda.default_generators[index].manual_seed(key)
