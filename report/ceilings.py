"""The two ceilings beside a rate: the step without a loader, the loader without a step. Receives both; knows neither."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from contracts import Batch, Loader, Plan, World, nothing
from report.meter import spread

LEAST_S = 2.0
BLOCKS = 5
LOOKED_AT = 256
"""Batches of an epoch whose sizes are looked at, where they differ."""


def measure(run: Any, batch: Batch) -> None:
    """Both ceilings of a run that has just finished an epoch; the batch is its last one."""
    synchronise = run.world.synchronise
    counts = deepcopy(getattr(run.loader, "counts", None))
    compute = compute_ceiling(
        run.step,
        [batch] if run.plan.resident == 1 else typical(run.plan, run.loader, epoch=run.progress.epoch + 1, world=run.world),
        accumulate=run.plan.step_samples // (run.world.size * run.plan.batch_size),
        world=run.world,
        synchronise=synchronise,
    )
    loader = loader_ceiling(run.loader, epoch=run.progress.epoch + 1, world=run.world, synchronise=run.world.await_batch)
    if counts is not None:
        run.loader.counts = counts  # what a ceiling takes is not trained on
    run.report.ceilings(compute=compute, loader=loader, step=run.progress.step)


def typical(plan: Plan, loader: Loader, *, epoch: int, world: World) -> Iterator[Batch]:
    """`plan.resident` batches of that epoch whose sizes stand for all of its batches: each valid until the next is asked for.

    Of LOOKED_AT batches, evenly spaced, those in the middle of as many groups of like size; the same ones on every rank.
    """
    rows = plan.rows(epoch, 0)
    looked_at = np.unique(np.linspace(0, len(rows) - 1, LOOKED_AT).astype(np.int64))
    pixels = np.array([math.prod(rows[at].padded) for at in looked_at.tolist()])
    middles = (np.arange(plan.resident) + 0.5) / plan.resident * len(looked_at)
    chosen = world.gather(looked_at[np.argsort(pixels, kind="stable")][middles.astype(np.int64)].tolist())[0]
    for at in chosen:
        # a resume may begin with any sample that leaves a whole step
        first = min(at * world.size * plan.batch_size, plan.samples - plan.step_samples)
        yield next(iter(loader.batches(epoch, first)))


def compute_ceiling(
    step: Any, batches: Iterable[Batch], *, accumulate: int, world: World, synchronise: Callable[[], None]
) -> dict[str, Any]:
    """Samples/s of all ranks of the very step object on resident batches, in turns; whatever it changed is put back bit for bit."""
    resident = [_copied(batch) for batch in batches]
    saved = [tensor.detach().to("cpu", copy=True) for tensor in step.state_tensors()]
    untouched = not step.optimizer.state  # AdamW when every step so far was skipped, for a loss scale that was too high
    lr = [group["lr"] for group in step.optimizer.param_groups]

    def run(count: int) -> float:
        synchronise()
        world.barrier()
        began = time.perf_counter()
        for at in range(count):
            step(itertools.repeat(resident[at % len(resident)], accumulate), lr=1e-8, epoch=0, position=0)
            step.phases.step()
        synchronise()
        world.barrier()
        return time.perf_counter() - began

    step.phases.interrupt()
    run(max(3, len(resident)))
    guess = max(world.gather(run(5) / 5))
    count = -(-max(2, math.ceil(LEAST_S / guess / BLOCKS)) // len(resident)) * len(resident)  # whole rounds
    samples = world.size * len(resident[0].ids) * accumulate * count
    seconds = [world.gather(run(count))[0] for _ in range(BLOCKS)]  # rank 0's clock, the same figure on every rank
    if untouched:
        step.optimizer.state.clear()
    for tensor, before in zip(step.state_tensors(), saved, strict=True):
        tensor.detach().copy_(before)
    for group, value in zip(step.optimizer.param_groups, lr, strict=True):
        group["lr"] = value
    step.phases.interrupt()
    step.phases.read()
    rates = [samples / s for s in seconds]
    return {"rate": float(np.median(rates)), "spread": spread(rates), "steps": count * BLOCKS}


def loader_ceiling(loader: Loader, *, epoch: int, world: World, synchronise: Callable[[], None]) -> dict[str, Any]:
    """Samples/s of all ranks of the open loader with nobody computing; each batch is awaited on the device.

    What may be ready before anyone asks (`loader.in_flight` batches) is discarded first. A small data set is passed
    over several times, as training does. The median of windows of LEAST_S / BLOCKS, as the other ceiling.
    """

    def endless() -> Generator[Batch]:
        for e in itertools.count(epoch):
            yield from loader.batches(e, 0)

    batches = endless()
    for _ in itertools.islice(batches, loader.in_flight):
        synchronise()
    world.barrier()
    rates: list[float] = []
    began = last = time.perf_counter()
    while last - began < LEAST_S or len(rates) < 3:
        samples, now = 0, last
        while now - last < LEAST_S / BLOCKS:
            # whole rounds of what is in flight: workers deliver in bursts
            for batch in itertools.islice(batches, max(loader.in_flight, 1)):
                batch.launched()
                synchronise()
                samples += batch.delivered
            now = time.perf_counter()
        rates.append(samples / (now - last))
        last = now
    batches.close()
    total = float(world.sum(np.array([np.median(rates)]))[0])
    scale = total / float(np.median(rates))  # the spread is rank 0's, as the spread of all
    return {"rate": total, "spread": spread([rate * scale for rate in rates]), "windows": len(rates)}


def _copied(batch: Batch) -> Batch:
    """In memory of its own, every row valid."""
    return replace(
        batch,
        rows=None if batch.rows is None else replace(batch.rows, valid=np.ones_like(batch.rows.valid)),
        images=batch.images.clone(memory_format=torch.preserve_format),
        sizes=batch.sizes.clone(),
        targets={name: value.clone() for name, value in batch.targets.items()},
        valid=torch.ones_like(batch.valid),
        transfer=None,
        launched=nothing,
    )
