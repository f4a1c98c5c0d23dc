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
LONGEST_S = 10.0
"""After which a loader's ceiling is content with one whole window."""
LOOKED_AT = 256
"""Batches of an epoch whose sizes are looked at, where they differ."""


class Stopped(Exception):
    """Some rank is asked to stop; raised on all."""


def measure(run: Any, batch: Batch) -> bool:
    """Both ceilings of a run that has just finished an epoch; the batch is its last one. False, and no result, when it is asked to stop."""
    synchronise = run.world.synchronise
    run.report.info("measuring the two ceilings: the step alone, the loader alone")
    counts = deepcopy(getattr(run.loader, "counts", None))
    try:
        compute = compute_ceiling(
            run.step,
            [batch] if run.plan.resident == 1 else typical(run.plan, run.loader, epoch=run.progress.epoch + 1, world=run.world),
            accumulate=run.plan.global_batch_size // (run.world.size * run.plan.batch_size),
            world=run.world,
            synchronise=synchronise,
            stop=run.stop,
        )
        loader = loader_ceiling(run.loader, epoch=run.progress.epoch + 1, world=run.world, synchronise=run.world.await_batch, stop=run.stop)
    except Stopped:
        return False
    finally:
        if counts is not None:
            run.loader.counts = counts  # what a ceiling takes is not trained on
    run.report.ceilings(compute=compute, loader=loader, step=run.progress.step)
    return True


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
        first = min(at * world.size * plan.batch_size, plan.samples - plan.global_batch_size)
        yield next(iter(loader.batches(epoch, first)))


def never() -> bool:
    return False


def compute_ceiling(
    step: Any,
    batches: Iterable[Batch],
    *,
    accumulate: int,
    world: World,
    synchronise: Callable[[], None],
    stop: Callable[[], bool] = never,
) -> dict[str, Any]:
    """Samples/s of all ranks of the very step object on resident batches, in turns; whatever it changed is put back bit for bit.

    Raises Stopped once `stop` says so on some rank.
    """
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
        took = time.perf_counter() - began
        seconds, stopping = zip(*world.gather((took, stop())), strict=True)
        if any(stopping):
            raise Stopped
        return float(seconds[0])  # rank 0's clock, the same figure on every rank

    step.phases.interrupt()
    try:
        run(max(3, len(resident)))
        guess = run(5) / 5
        count = -(-max(2, math.ceil(LEAST_S / guess / BLOCKS)) // len(resident)) * len(resident)  # whole rounds
        seconds = [run(count) for _ in range(BLOCKS)]
    finally:
        if untouched:
            step.optimizer.state.clear()
        for tensor, before in zip(step.state_tensors(), saved, strict=True):
            tensor.detach().copy_(before)
        for group, value in zip(step.optimizer.param_groups, lr, strict=True):
            group["lr"] = value
        step.phases.interrupt()
        step.phases.read()
    samples = world.size * len(resident[0].ids) * accumulate * count
    rates = [samples / s for s in seconds]
    return {"rate": float(np.median(rates)), "spread": spread(rates), "steps": count * BLOCKS}


def loader_ceiling(
    loader: Loader, *, epoch: int, world: World, synchronise: Callable[[], None], stop: Callable[[], bool] = never
) -> dict[str, Any]:
    """Samples/s of all ranks of the open loader with nobody computing; each batch is awaited on the device.

    What may be ready before anyone asks (`loader.in_flight` batches) is discarded first. A small data set is passed
    over several times, as training does. The median of windows of LEAST_S / BLOCKS, as the other ceiling; of at least three, unless one
    takes seconds. Raises Stopped once `stop` says so on some rank; it is asked at every batch.
    """

    def endless() -> Generator[Batch]:
        for e in itertools.count(epoch):
            yield from loader.batches(e, 0)

    batches = endless()

    def take(count: int) -> int | None:
        """Samples of the next batches. None = this rank is asked to stop."""
        samples = 0
        for batch in itertools.islice(batches, count):
            batch.launched()
            synchronise()
            samples += batch.delivered
            if stop():
                return None
        return samples

    rates: list[float] = []
    taken = take(loader.in_flight)
    world.barrier()
    began = last = time.perf_counter()
    while taken is not None and (last - began < LEAST_S or len(rates) < 3) and (last - began < LONGEST_S or not rates):
        samples, now = 0, last
        while taken is not None and now - last < LEAST_S / BLOCKS:
            taken = take(max(loader.in_flight, 1))  # whole rounds of what is in flight: workers deliver in bursts
            samples += taken or 0
            now = time.perf_counter()
        rates.append(samples / (now - last))
        last = now
    own = math.nan if taken is None else float(np.median(rates))
    batches.close()
    total = float(world.sum(np.array([own]))[0])
    if math.isnan(total):
        raise Stopped
    scale = total / own  # the spread is rank 0's, as the spread of all
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
