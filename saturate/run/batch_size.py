"""--batch-size auto: the step, its graphs, the loader and a validation are tried in batches of several sizes.

The search itself is engine/batch_size.py's. Rank 0 tries, as one rank; the others wait for its answer.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice

import torch

from saturate.contracts import UserError, counted
from saturate.engine import autotune, graphed, memory
from saturate.engine.batch_size import largest
from saturate.engine.distributed import ProcessWorld, Vote
from saturate.engine.evaluate import evaluate
from saturate.engine.step import Step
from saturate.loaders import first_batches, open_loader
from saturate.loaders._dali import release_memory
from saturate.report.console import Console
from saturate.run import build
from saturate.run.build import Assembly, Resolved
from saturate.settings import config as schema
from saturate.tasks.kind import Splits

SPARE = 0.01
"""Share of the GPU's memory that trials may not have: a long run meets larger files, and memory in pieces."""
RANKS = 1 << 30
"""Bytes that NCCL may take beside other ranks: a trial has none."""
STEPS = 3
"""Steps of a trial, and batches of its validation."""


def require_gpu(settings: Resolved) -> None:
    """Raise UserError for --batch-size auto and --gpu-price without a GPU."""
    asked = settings.config.loading.batch_size
    if settings.config.run.gpu_price and settings.device.type != "cuda":
        raise UserError("--gpu-price is of GPUs, and no GPU is here; leave it out")
    if asked == "auto" and settings.device.type != "cuda":
        raise UserError(
            "--batch-size auto measures a GPU's memory, and no GPU is here; name a number"
        )
    if asked == "auto" and settings.config.run.warm_spare:
        raise UserError(
            "--batch-size auto leaves no memory of the GPU for --warm-spare true; name a number"
        )


def sized(
    settings: Resolved,
    splits: Splits,
    world: ProcessWorld,
    console: Console,
    *,
    before: object,
    make_step: Callable[[Assembly, ProcessWorld], Step],
) -> Resolved:
    """Return the settings with a number for --batch-size auto: that of the checkpoint (`before`), else one that rank
    0 finds. Every rank calls it. Raises UserError.
    """
    if settings.config.loading.batch_size != "auto":
        return settings
    optimisation = settings.config.optimisation
    samples = len(splits["train"].columns)
    share = min(optimisation.global_batch_size or samples, samples) // world.size

    def fitting_rows() -> int:
        if isinstance(before, int):
            return before
        alone = ProcessWorld(world.device)
        alone.rank, alone.size = 0, 1
        return largest(
            partial(taken, settings, splits, alone, make_step),
            room=torch.cuda.mem_get_info(world.device)[1],
            most=max(share // optimisation.accumulate, 1),
        )

    began = time.perf_counter()
    rows = world.first(fitting_rows)
    config = schema.build({**settings.config.flat(), "batch_size": rows})
    made = build.resolve(replace(settings.start, config=config), world)
    batching = made.batching
    step = counted(batching.size * batching.accumulate * world.size, "sample")
    console.info(
        f"--batch-size auto: {batching.size:,}, after {time.perf_counter() - began:.0f} s; a step has {step} "
        "(--global-batch-size keeps a recipe's)"
    )
    return made


def taken(
    settings: Resolved,
    splits: Splits,
    world: ProcessWorld,
    make_step: Callable[[Assembly, ProcessWorld], Step],
    rows: int,
) -> int | None:
    """Return the bytes of the GPU that batches of so many rows take at most, None where they do not fit. Nothing is
    left of the trial.
    """
    used = None
    try:
        used = _tried(settings, splits, world, make_step, rows)
    except (MemoryError, RuntimeError, UserError) as error:
        if memory.lack(error) is None:
            raise
    gc.collect()
    torch.cuda.empty_cache()
    if "nvidia.dali" in sys.modules:
        # pools that a trial too large has filled would lack in the run
        release_memory()
    return used


def _tried(
    settings: Resolved,
    splits: Splits,
    world: ProcessWorld,
    make_step: Callable[[Assembly, ProcessWorld], Step],
    rows: int,
) -> int | None:
    """Train and validate as the run does; return the bytes, None where graphs do not fit."""
    total = torch.cuda.mem_get_info(world.device)[1]
    spare = int(SPARE * total) + RANKS * (settings.batching.world_size > 1)
    # a step of several micro-batches has gradients that stay, and one graph more; two have all that more would have
    several = settings.batching.accumulate > 1
    holds_two = len(splits["train"].columns) >= 2 * rows
    batching = replace(
        settings.batching,
        size=rows,
        accumulate=2 if several and holds_two else 1,
        is_fixed=True,
        world_size=1,
        rank=0,
    )
    settings = replace(settings, batching=batching, loaders=settings.loaders[:1])
    device = world.device
    torch.cuda.reset_peak_memory_stats(device)
    with ExitStack() as stack:
        _held = torch.empty(spare, dtype=torch.uint8, device=device)
        assembly = build.build(settings, splits, world, Console(enabled=False))
        if assembly.plan.batches.varies or assembly.val_plan.batches.varies:
            raise UserError(
                "--batch-size auto is for batches of one shape, and of these the largest may come late; name a number"
            )
        # cuDNN's search for kernels takes seconds a size (docs/tuning.md); the run has those that are tried here
        torch.backends.cudnn.benchmark = False
        step = make_step(assembly, world)
        stack.callback(step.forget)
        graphs = graphed.prepare(
            step,
            partial(first_batches, assembly.feed),
            world,
            settings.config.model.graphs,
            one_shape=settings.kind.graphs,
        )
        if graphed.NO_CAPTURE in graphs.why_not:
            return None  # steps without graphs take less memory, and longer
        name = settings.loaders[0]
        loader = stack.enter_context(open_loader(name, assembly.feed))
        # where images grow, the largest
        batches = loader.batches(assembly.plan.first_epochs[-1], 0)
        for _ in range(min(STEPS, assembly.plan.steps())):
            step(batches, lr=autotune.LR, epoch=0, position=0)
        stack.enter_context(step.memory_lent())
        val = stack.enter_context(open_loader(name, assembly.val_feed))
        evaluate(
            assembly.module,
            islice(val.batches(0, 0), STEPS),
            task=assembly.val_task,
            precision=settings.precision,
            tta=settings.config.run.tta,
            world=world,
            vote=Vote(world),
            stop=lambda: False,
            advance=lambda _: None,
        )
        world.synchronise()
        others = total - torch.cuda.mem_get_info(device)[0]
        others -= torch.cuda.memory_reserved(device)
        return others + torch.cuda.max_memory_allocated(device)
