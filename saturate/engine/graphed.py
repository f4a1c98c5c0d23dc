"""The whole optimiser step as CUDA graphs: captured once before training, replayed with every batch.

    batch    -> copied into the batch that was captured, on the step's own stream
    replay   -> forward, loss, backward, all-reduce, unscale, clip, update: one launch instead of hundreds

A graph writes to the addresses that were captured, so whatever a step leaves for the next one stays where it
is; engine/step.py keeps to that.
"""

from __future__ import annotations

import gc
import itertools
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from saturate.contracts import Batch, UserError
from saturate.engine.distributed import ProcessWorld
from saturate.engine.step import Step

WARM_UP = 3
"""Steps before a capture: libraries pick kernels and take memory in the first, torch.compile compiles."""
WARM_UP_OF_RANKS = 11
"""DistributedDataParallel asks for as many: it arranges its buckets anew until then."""
NO_CAPTURE = "CUDA cannot capture it"
"""How it begins why a step is none, where CUDA refuses, also for lack of memory."""
WAITS = "synchroniz"
"""torch's error has this word where the host would wait for the device, which a graph cannot do."""


class NoPhases:
    """A contracts.Phases that measures nothing: an event inside of a graph has no time to be asked for."""

    steps: Sequence[dict[str, float]] = ()

    def mark(self, name: str) -> None:
        """Do nothing."""


class Graphs:
    """The micro-batches of a step, captured for each shape of images: the last of a step with and without
    the gradient norm, and the ones before.
    """

    def __init__(self, step: Step, statics: Sequence[Batch]) -> None:
        """Capture. `statics` are the batches that replays read, one a shape, the smallest first.

        Raises RuntimeError where CUDA cannot.
        """
        self._statics = {
            static.images.shape: _tensors(static, [*static.targets])
            for static in statics
        }
        self._targets = [*statics[0].targets]
        self._graphs: dict[tuple[torch.Size, bool, bool], torch.cuda.CUDAGraph] = {}
        self._outcomes: dict[tuple[torch.Size, bool, bool], torch.Tensor] = {}
        self._always_norm = step.clips
        # one pool for all: no two run at the same time. As use_mem_pool takes it; a MemPool must not go before
        # its graphs
        self._pool: Any = SimpleNamespace(id=torch.cuda.graph_pool_handle())
        variants = [(True, False)] if step.clips else [(True, False), (True, True)]
        if step.accumulate > 1:
            variants.append((False, False))
        # the largest images first: the graphs of smaller ones then find room in what these have left
        for static, (last, want_norm) in itertools.product(reversed(statics), variants):
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.current_stream()
            # another thread's calls, such as those of NCCL's watchdog, are none of the graph's business
            with torch.cuda.graph(
                graph, self._pool.id, stream, capture_error_mode="thread_local"
            ):
                outcome = step.micro_batch(static, last=last, want_norm=want_norm)
            self._graphs[static.images.shape, last, want_norm] = graph
            self._outcomes[static.images.shape, last, want_norm] = outcome

    def replay(self, batch: Batch, *, last: bool, want_norm: bool) -> torch.Tensor:
        """Do what Step.micro_batch does, with the numbers of `batch`. Its seed was set by the caller."""
        shape = batch.images.shape
        torch._foreach_copy_(self._statics[shape], _tensors(batch, self._targets))
        variant = shape, last, want_norm and last and not self._always_norm
        self._graphs[variant].replay()
        return self._outcomes[variant]

    def lent(self) -> AbstractContextManager[None]:
        """Return a context whose tensors lie where a replay has its own in between.

        A replay writes over those that outlive it: `lent_bytes` says whether any do.
        """
        lent: AbstractContextManager[None] = torch.cuda.use_mem_pool(self._pool)
        return lent

    def lent_bytes(self) -> int:
        """Return the bytes that are in use in the graphs' memory between two replays, by graphs or others."""
        segments = torch.cuda.memory_snapshot(self._pool.id)
        return sum(int(segment["allocated_size"]) for segment in segments)


def _tensors(batch: Batch, targets: Sequence[str]) -> list[torch.Tensor]:
    """Return all tensors of a batch, whose targets have these names."""
    return [
        batch.images,
        batch.sizes,
        batch.valid,
        *(batch.targets[name] for name in targets),
    ]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of --graphs."""

    why_not: str = ""  # "" where steps are graphs
    one_shape: bool  # whether all batches have one
    # phases of an eager step, measured before
    warm_up_ms: dict[str, float] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return what a summary says of it."""
        return {
            "graphs": not self.why_not,
            "graphs_off": self.why_not or None,
            "one_shape": self.one_shape,
            "warm_up_ms": self.warm_up_ms,
        }


def prepare(
    step: Step,
    make_batches: Callable[[], Sequence[Batch]],
    world: ProcessWorld,
    asked: bool | str,
    *,
    one_shape: bool,
) -> Outcome:
    """Capture the step, where --graphs (`asked`: auto, True or False) and the task's shapes allow it.

    `make_batches` makes batches to throw away, one of each shape that training will have, the smallest first.
    Raises UserError where graphs were asked for and cannot be.
    """
    if asked is False:
        return Outcome(why_not="--graphs false", one_shape=one_shape)
    split: dict[str, float] = {}
    if world.device.type != "cuda":
        why = "there is no GPU"
    elif not one_shape:
        why = "batches of this task have many shapes, and each would be a graph"
    elif not step.capturable:
        why = "this --optimizer decides on the host"
    else:
        why, split = capture(step, make_batches(), world)
    outcome = Outcome(why_not=why, one_shape=one_shape, warm_up_ms=split)
    if asked is True and outcome.why_not:
        raise UserError(f"--graphs true: {outcome.why_not}; --graphs false")
    return outcome


def arrange_buckets(step: Step, make_batches: Callable[[], Sequence[Batch]]) -> None:
    """Have DistributedDataParallel arrange its buckets before the first step that counts, where no capture has.

    It sums the first gradients in buckets of the parameters' order, and later ones in the order in which they
    come. The sum of a bucket is rounded by where its parts lie, for three ranks and more: the first step of a resumed
    run would be another one than that of a run which nobody has stopped. All ranks call it together.
    """
    if step.graphs is not None or step.world.size == 1:
        return
    phases = step.phases
    step.phases = NoPhases()  # type: ignore[assignment]
    with step.preserved():
        step(itertools.repeat(make_batches()[0]), lr=0.0, epoch=0, position=0)
    step.forget()
    step.phases = phases


def capture(
    step: Step, batches: Sequence[Batch], world: ProcessWorld
) -> tuple[str, dict[str, float]]:
    """Warm the step up on batches that are thrown away, capture it, and put all that it changed back.

    `batches` has one of each shape, the smallest first. Returns why it cannot be captured, "" where it was,
    and the milliseconds of the phases of an eager step with the largest.
    Every rank calls it, and all of them capture or none. The loader opens after this: its threads call CUDA,
    and a call at the wrong time breaks a capture.
    """
    statics = [_cloned(batch) for batch in batches]
    with step.preserved():
        count = WARM_UP if world.size == 1 else WARM_UP_OF_RANKS
        for static in statics:
            why = _warm_up(step, static, count)
            split = step.phases.read()
            if why := next(filter(None, world.gather(why)), ""):
                break
            count = WARM_UP
        if not why:
            phases = step.phases
            step.phases = NoPhases()  # type: ignore[assignment]
            gc.collect()  # what is left of the warm-up would stay beside the graph's own memory
            why = _captured(step, statics)
            step.phases = phases
            why = next(filter(None, world.gather(why)), "")
    if why:
        step.forget()
        step.wrap_again()  # a backward pass that broke off leaves DistributedDataParallel in its middle
    return why, split


def _cloned(batch: Batch) -> Batch:
    """Return a batch in memory of its own, for replays to read."""
    return replace(
        batch,
        images=batch.images.clone(),  # keeps its memory format
        sizes=batch.sizes.clone(),
        valid=batch.valid.clone(),
        targets={name: target.clone() for name, target in batch.targets.items()},
        rows=None,  # numbers of the host would be those of this batch in every replay
        host={},
    )


def _warm_up(step: Step, static: Batch, count: int) -> str:
    """Take steps, and in the last one see whether the host has to wait for the device.

    Returns where, "" if nowhere.
    """
    for number in range(count):
        step.phases.interrupt()
        last = number == count - 1
        _refuse_waits(last)
        try:
            step(itertools.repeat(static), lr=0.0, epoch=0, position=0, want_norm=True)
        except RuntimeError as error:
            if not last or WAITS not in str(error):
                raise
            frames = traceback.extract_tb(error.__traceback__)
            at = [each for each in frames if "/torch/" not in each.filename][-1]
            where = f"{Path(at.filename).name}, line {at.lineno}"
            return f"the host waits for the device in the middle of a step ({where})"
        finally:
            _refuse_waits(False)
        step.phases.step()
        torch.cuda.synchronize()
        if not last:
            step.phases.read()  # these steps chose kernels and took memory
    return ""


def _refuse_waits(on: bool) -> None:
    """Have torch raise where the host would wait for the device, or no more."""
    with warnings.catch_warnings():
        # that it does not see all of them yet: what it misses, the capture itself refuses
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error" if on else "default")


def _captured(step: Step, statics: Sequence[Batch]) -> str:
    """Capture. Returns what CUDA said against it, "" where it did not."""
    try:
        step.graphs = Graphs(step, statics)
        torch.cuda.synchronize()
    except RuntimeError as error:
        # also where memory is short: eager steps fit, as the warm-up has shown
        # the generator is still in the capture, and would refuse to draw: give it a state that never was
        device = step.world.device
        fresh = torch.Generator(device).graphsafe_get_state()
        torch.cuda.default_generators[torch.cuda.current_device()].graphsafe_set_state(
            fresh
        )
        return f"{NO_CAPTURE} ({str(error).partition(chr(10))[0]})"
    return ""
