"""The two ceilings beside a rate: the step without a loader, the loader without a step. Receives both; knows neither."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch

from contracts import Batch, Loader, World
from report.meter import spread

LEAST_S = 2.0
BLOCKS = 5


def measure(run: Any, batch: Batch) -> None:
    """Both ceilings of a run that has just finished an epoch; the batch is its last one."""
    synchronise = run.world.synchronise
    compute = compute_ceiling(
        run.step,
        batch,
        accumulate=run.plan.step_samples // (run.world.size * run.plan.batch_size),
        world=run.world,
        synchronise=synchronise,
    )
    loader = loader_ceiling(run.loader, epoch=run.progress.epoch + 1, world=run.world, synchronise=run.world.await_batch)
    run.report.ceilings(compute=compute, loader=loader, step=run.progress.step)


def compute_ceiling(step: Any, batch: Batch, *, accumulate: int, world: World, synchronise: Callable[[], None]) -> dict[str, Any]:
    """Samples/s of all ranks of the very step object on one resident batch; whatever it changed is put back bit for bit."""
    resident = Batch(
        images=batch.images.clone(memory_format=torch.preserve_format),
        sizes=batch.sizes.clone(),
        targets={name: value.clone() for name, value in batch.targets.items()},
        valid=torch.ones_like(batch.valid),
        ids=batch.ids,
    )
    saved = [tensor.detach().to("cpu", copy=True) for tensor in step.state_tensors()]
    untouched = not step.optimizer.state  # AdamW when every step so far was skipped, for a loss scale that was too high
    lr = [group["lr"] for group in step.optimizer.param_groups]

    def run(count: int) -> float:
        synchronise()
        world.barrier()
        began = time.perf_counter()
        for _ in range(count):
            step(itertools.repeat(resident, accumulate), lr=1e-8, epoch=0, position=0)
            step.phases.step()
        synchronise()
        world.barrier()
        return time.perf_counter() - began

    step.phases.interrupt()
    run(3)
    guess = max(world.gather(run(5) / 5))
    count = max(2, math.ceil(LEAST_S / guess / BLOCKS))
    samples = world.size * len(batch.ids) * accumulate * count
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
    over several times, as training does.
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
        # whole rounds of what is in flight: workers deliver in bursts
        samples = 0
        for batch in itertools.islice(batches, max(loader.in_flight, 1)):
            synchronise()
            samples += int((batch.ids >= 0).sum()) - len(batch.failed)
        now = time.perf_counter()
        rates.append(samples / (now - last))
        last = now
    batches.close()
    total = float(world.sum(np.array([np.median(rates)]))[0])
    scale = total / float(np.median(rates))  # the spread is rank 0's, as the spread of all
    return {"rate": total, "spread": spread([rate * scale for rate in rates]), "rounds": len(rates)}
