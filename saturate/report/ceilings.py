"""The two ceilings beside a rate: the step without a loader, the loader without a step. Receives both; knows
neither.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from saturate.contracts import Batch, Loader, Plan, World, do_nothing
from saturate.report import kernels
from saturate.report.hardware import nvml_handle
from saturate.report.meter import spread
from saturate.system import neighbours

LEAST_S = 2.0
"""Seconds that a ceiling is measured for, at least."""
BLOCKS = 5
"""Windows, or blocks of steps, that these seconds are cut into."""
LONGEST_S = 10.0
"""Seconds after which a loader's ceiling is content with one whole window."""
SHAPE_COUNT = 8
"""Batches that stand for all of an epoch, where sizes differ."""
LOOKED_AT = 256
"""Batches of an epoch whose sizes are looked at, where sizes differ."""


class Stopped(Exception):
    """Some rank is asked to stop; raised on all."""


def measure(
    batch: Batch,
    *,
    epoch: int,
    stop: Callable[[], bool],
    step: Any,
    loader: Loader,
    plan: Plan,
    world: Any,
) -> dict[str, dict[str, Any]] | None:
    """Measure both ceilings of a run that has just finished an epoch. `batch` is its last one; the loader is
    measured in `epoch`. `step` is of engine/step.py, and `world` of engine/distributed.py.

    Returns {"compute": ..., "loader": ...}, each with who has `shared` this rank's GPU meanwhile; None when a rank
    was asked to stop.
    """
    counts = deepcopy(loader.counts)
    # until all ranks have ended their work, some of which may be on the same GPU
    world.synchronise()
    world.barrier()
    beside = {
        "shared": neighbours.gpu_shared(nvml_handle(world.device), neighbours.root())
    }
    try:
        compute = compute_ceiling(
            step,
            typical(plan, loader, epoch=epoch, world=world)
            if plan.batches.varies
            else [batch],
            accumulate=plan.global_batch_size // (world.size * plan.batches.rows),
            world=world,
            synchronise=world.synchronise,
            stop=stop,
        )
        alone = partial(
            loader_ceiling,
            in_flight=loader.in_flight,
            world=world,
            # waits for the batch alone, as training does: other streams are at work on the next ones
            synchronise=world.await_batch,
            stop=stop,
        )
        without_step = alone(endless(loader, epoch))
        if loader.decoded_again:
            without_step["decoder"] = alone(loader.decoded_again(epoch))["rate"]
    except Stopped:
        return None
    finally:
        loader.counts = counts  # what a ceiling takes is not trained on
    return {"compute": compute | beside, "loader": without_step | beside}


def typical(plan: Plan, loader: Loader, *, epoch: int, world: World) -> Iterator[Batch]:
    """Yield SHAPE_COUNT batches of that epoch whose sizes stand for all of its batches, the same on every
    rank.

    LOOKED_AT batches, evenly spaced, are grouped by size; the one in the middle of each group is chosen. Each
    is valid until the next is asked for.
    """
    rows = plan.rows(epoch, 0)
    looked_at = np.unique(np.linspace(0, len(rows) - 1, LOOKED_AT).astype(np.int64))
    pixels = np.array([math.prod(rows[at].padded) for at in looked_at.tolist()])
    middles = (np.arange(SHAPE_COUNT) + 0.5) / SHAPE_COUNT * len(looked_at)
    chosen = world.gather(
        looked_at[np.argsort(pixels, kind="stable")][middles.astype(np.int64)].tolist()
    )[0]
    for at in chosen:
        # a resume may begin with any sample that leaves a whole step
        first = max(
            min(
                at * world.size * plan.batches.rows,
                plan.samples - plan.global_batch_size,
            ),
            0,
        )
        yield next(iter(loader.batches(epoch, first)))


def never() -> bool:
    """Never ask to stop."""
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
    """Measure the samples/s of all ranks of the very step object on resident batches, in turns.

    Whatever it changed is put back bit for bit. Raises Stopped once `stop` says so on some rank.
    """
    resident = [_copied(batch) for batch in batches]

    def take(batch: Batch) -> object:
        # so low a learning rate that one batch, again and again, hardly moves the weights
        return step(itertools.repeat(batch, accumulate), lr=1e-8, epoch=0, position=0)

    def run(count: int) -> float:
        synchronise()
        world.barrier()
        began = time.perf_counter()
        for at in range(count):
            take(resident[at % len(resident)])
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
        with step.preserved():
            # each shape once before anything is timed: kernels are picked, memory is taken, the first time
            run(max(3, len(resident)))
            guess = run(5) / 5  # how many steps fill a block is not known before
            wanted = max(2, math.ceil(LEAST_S / guess / BLOCKS))
            count = math.ceil(wanted / len(resident)) * len(resident)  # whole rounds
            seconds = [run(count) for _ in range(BLOCKS)]
            step_s = float(np.median(seconds)) / count
            with step.unshared() as alone:
                if alone:
                    run(2)  # gradients get memory of their own, the first time
                unshared_s = run(count) / count if alone else step_s
            # they come sorted by size: the middle one takes about as long as all of them in the mean
            middle = resident[len(resident) // 2]
            kernel_ms = kernels.kernel_ms(partial(take, middle), world.device, step_s)
            # ranks meet in no forward pass: one whose batch has left no room for it keeps nobody waiting
            arithmetic = kernels.arithmetic(
                lambda: [step.forward(middle) for _ in range(accumulate)],
                dtype=step.dtype,
                device=world.device,
            )
    finally:
        step.phases.interrupt()
        # no step of the training took these times
        step.phases.read()
    samples = world.size * len(resident[0].ids) * accumulate * count
    rates = [samples / s for s in seconds]
    return {
        "rate": float(np.median(rates)),
        "spread": spread(rates),
        "steps": count * BLOCKS,
        "step_ms": 1e3 * step_s,
        "all_reduce_ms": 1e3 * max(step_s - unshared_s, 0.0),
        **kernel_ms,
        **arithmetic,
    }


def endless(loader: Loader, epoch: int) -> Generator[Batch]:
    """Yield the batches of an epoch and all that follow."""
    for e in itertools.count(epoch):
        yield from loader.batches(e, 0)


def loader_ceiling(
    batches: Generator[Batch],
    *,
    in_flight: int,
    world: World,
    synchronise: Callable[[], None],
    stop: Callable[[], bool] = never,
) -> dict[str, Any]:
    """Measure the samples/s of all ranks of an open loader's batches with nobody computing; each is awaited on
    the device, and they are closed in the end. `in_flight`: how many may be ready before anyone asks. Ranks meet in
    every step of training: it is the slowest one's rate times their number.

    It is the median of at least three windows of LEAST_S / BLOCKS, fewer if one takes seconds. A small data
    set is passed over several times, as training does. Raises Stopped once `stop` says so on some rank; it is
    asked at every batch.
    """

    def take(count: int) -> int | None:
        """Count the samples of the next batches. None = this rank is asked to stop."""
        samples = 0
        for batch in itertools.islice(batches, count):
            batch.launched()
            synchronise()
            samples += batch.delivered
            if stop():
                return None
        return samples

    rates: list[float] = []
    # batches that may be ready before anyone asks are no part of the rate
    taken = take(in_flight)
    world.barrier()
    began = last = time.perf_counter()

    def wants_more() -> bool:
        passed = last - began
        enough = passed >= LEAST_S and len(rates) >= 3
        return not enough and (passed < LONGEST_S or not rates)

    while taken is not None and wants_more():
        samples = 0
        now = last
        while taken is not None and now - last < LEAST_S / BLOCKS:
            # whole rounds of what is in flight: workers deliver in bursts
            taken = take(max(in_flight, 1))
            samples += taken or 0
            now = time.perf_counter()
        rates.append(samples / (now - last))
        last = now
    batches.close()
    of_ranks = world.gather(None if taken is None else rates)
    if None in of_ranks:
        raise Stopped
    slowest = world.size * min(map(np.array, of_ranks), key=np.median)
    return {
        "rate": float(np.median(slowest)),
        "spread": spread(slowest.tolist()),
        "windows": len(slowest),
    }


def _copied(batch: Batch) -> Batch:
    """Copy a batch into memory of its own, with every row valid."""
    return replace(
        batch,
        rows=None
        if batch.rows is None
        else replace(batch.rows, valid=np.ones_like(batch.rows.valid)),
        images=batch.images.clone(memory_format=torch.preserve_format),
        sizes=batch.sizes.clone(),
        targets={name: value.clone() for name, value in batch.targets.items()},
        valid=torch.ones_like(batch.valid),
        transfer=None,
        transforms_ms=None,
        launched=do_nothing,
    )
