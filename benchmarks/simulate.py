"""What many ranks and samples cost, by formulas: `python -m benchmarks simulate --ranks 64 1024 --samples 1e9`.

Each formula is a line of FORMULAS, each number that it takes a field of Case and a flag. docs/scale.md has
measured points beside them. `--config configs/imagenet/NAME.yaml --ranks 8 --rate 20000` draws the whole
schedule of a preset instead, of ImageNet's 1.28 million names and for all ranks, and reads no image.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saturate.contracts import UserError
from saturate.dataset.images.columns import Images
from saturate.dataset.synthetic import synthetic
from saturate.engine.distributed import ProcessWorld, votes_every
from saturate.engine.schedules import learning_rate, of_plan
from saturate.run.build import resolve
from saturate.settings.config import parse
from saturate.tasks.initial_state import Start

GIB = 2**30
ORDER_BYTES = 24
"""Bytes a sample while an epoch's order is made: its hash, the sorted ids, and NumPy's copy of either."""
COME_REQUESTS = 8
GATHER_REQUESTS = 5
"""Keys of a rank that the ranks' store handles, looks included, when all come, and when all gather a value: counted in
tests/unit/test_ranks.py."""
STATE_BYTES = 8
"""Bytes of a parameter in last.pt: the weight and SGD's momentum, fp32."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run, and what its machines do; the comment of a field has its unit, and the source of its default."""

    ranks: float
    samples: float
    ranks_a_host: float = 8
    batch: float = 32  # samples of a rank and step
    step_ms: float = 100
    name_bytes: float = 30  # of a file's path below the data, as in ImageNet
    header_us: float = 35  # of a core a file: 8,000 small JPEGs, docs/scale.md
    scan_cores: float = 16  # that read headers, on storage which keeps up
    order_us: float = 0.12  # of a core a sample: 100 million, docs/scale.md
    hop_us: float = 50  # of a small message between two hosts: TCP in one data centre
    message_us: float = 40  # of a core of rank 0 a message: docs/scale.md
    store_us: float = 40  # of a core of rank 0 a key: torch's TCPStore, docs/scale.md
    store_gib_s: float = 1  # that it sends
    value_bytes: float = 40  # a rank, that all gather: a few words, pickled
    requests: float = 1  # to the storage a sample: a file each, or a range of a shard
    parameters: float = 25.6e6  # ResNet-50
    storage_gib_s: float = 1  # that one host writes
    restart_s: float = 180  # 45 s until a lost rank is found, then a start
    # a failure: 419 in 54 days of 16,384 GPUs (Llama 3, arXiv 2407.21783)
    gpu_hours: float = 50_700


def fixed_bytes() -> int:
    """Return the bytes of a sample in the columns of images, but for its name."""
    return sum(
        np.dtype(code).itemsize
        for name, code in Images.COLUMNS.items()
        if name != "path_bytes"
    )


def vote_ms(case: Case) -> float:
    return 2 * (case.ranks - 1) * case.hop_us / 1000


def log_ms(case: Case) -> float:
    """Return the time of a sum: of few ranks a ring, else rank 0 hears all, and answers by a tree."""
    if votes_every(int(case.ranks)) == 1:
        return vote_ms(case)
    tree = math.ceil(math.log2(case.ranks)) * case.hop_us
    return ((case.ranks - 1) * case.message_us + tree) / 1000


def come_s(case: Case) -> float:
    return COME_REQUESTS * case.ranks * case.store_us / 1e6


def gather_s(case: Case) -> float:
    """Return the time in which each rank gets the values of all from one thread of rank 0."""
    answered = GATHER_REQUESTS * case.ranks * case.store_us / 1e6
    return answered + case.ranks**2 * case.value_bytes / (case.store_gib_s * GIB)


def sockets(case: Case) -> float:
    """Return those of a rank: of few ranks to all others, else those of a ring and of a tree."""
    if votes_every(int(case.ranks)) == 1:
        return case.ranks - 1
    return 2 + 2 * math.ceil(math.log2(case.ranks))


def checkpoint_gib(case: Case) -> float:
    return case.parameters * STATE_BYTES / GIB


def checkpoint_s(case: Case) -> float:
    return checkpoint_gib(case) / case.storage_gib_s


def stop_s(case: Case) -> float:
    votes = 2 * votes_every(int(case.ranks))
    return votes * case.step_ms / 1000 + checkpoint_s(case)


def failure_s(case: Case) -> float:
    return case.gpu_hours * 3600 / case.ranks


def interval_s(case: Case) -> float:
    """Return Young's interval, sqrt(2 C M) (CACM 17, 1974); Daly's later terms are below 1 % of it here."""
    return math.sqrt(2 * checkpoint_s(case) * failure_s(case))


def lost_share(case: Case) -> float:
    written = checkpoint_s(case) / interval_s(case)
    again = (interval_s(case) / 2 + case.restart_s) / failure_s(case)
    return written + again


FORMULAS: dict[str, Callable[[Case], float]] = {
    "columns, GiB a host": lambda c: c.samples * (fixed_bytes() + c.name_bytes) / GIB,
    "first scan, s": lambda c: c.samples * c.header_us / 1e6 / c.scan_cores,
    "order, GiB a host": lambda c: c.samples * ORDER_BYTES * c.ranks_a_host / GIB,
    "order, s an epoch": lambda c: c.samples * c.order_us / 1e6,
    "epoch, s": lambda c: c.samples / (c.ranks * c.batch) * c.step_ms / 1000,
    "requests/s to the storage": lambda c: (
        c.requests * c.ranks * c.batch / c.step_ms * 1000
    ),
    "to come, s": come_s,
    "to gather, s": gather_s,
    "sockets a rank": sockets,
    "vote, ms": vote_ms,
    "vote every, steps": lambda c: votes_every(int(c.ranks)),
    "log, ms": log_ms,
    "checkpoint, GiB": checkpoint_gib,
    "checkpoint, s": checkpoint_s,
    "to a stop, s": stop_s,
    "a failure every, h": lambda c: failure_s(c) / 3600,
    "save every, min (Young)": lambda c: interval_s(c) / 60,
    "lost by failures, %": lambda c: 100 * lost_share(c),
}


def table(cases: list[Case]) -> str:
    """Return FORMULAS of each case as a Markdown table."""
    lines = [
        ["ranks", *(f"{case.ranks:,.0f}" for case in cases)],
        ["---"] * (len(cases) + 1),
        ["samples", *(f"{case.samples:,.0f}" for case in cases)],
    ]
    for name, formula in FORMULAS.items():
        values = (formula(case) for case in cases)
        lines.append(
            [
                name,
                *(
                    f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
                    for value in values
                ),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def schedule(preset: Path, ranks: int, rate: float, price: float) -> Iterator[str]:
    """Yield a Markdown table of a preset's epochs, and what they take at a `rate`: images a second of all ranks, of
    the last size; smaller ones come faster by their pixels. `price` is dollars an hour of a GPU.

    Raises UserError for a preset that is none of images with a label, and ValueError where the ranks show a sample
    more often than --repeats says, or not as many as they should.
    """
    config = parse(["--config", str(preset), "--loader", "synthetic"])
    if (task := config.flat()["task"]) != "classification":
        raise UserError(
            f"--config {preset} is of --task {task}, and names are drawn for classification"
        )
    start = Start.from_config(config, (), {}, path=None, origin="")
    settings = resolve(start, ProcessWorld(torch.device("cpu")))
    sets = synthetic()
    batching = replace(settings.batching, world_size=ranks)
    plan: Any
    plan, _ = settings.kind.plans(sets, settings.native, batching)
    optimisation, _ = of_plan(config.optimisation, plan)
    epochs, steps = optimisation.epochs, plan.steps()
    yield "| epoch | pixels | steps | images | learning rate | minutes |"
    yield "| --- | --- | --- | --- | --- | --- |"
    minutes = 0.0
    for epoch in range(epochs):
        shown = np.zeros(plan.samples, np.int8)
        for rank in range(ranks):
            for rows in replace(plan, rank=rank).rows(epoch, 0):
                np.add.at(shown, rows.ids[rows.valid], 1)
        images = int(shown.sum())
        too_often = shown.max() > batching.repeats
        if too_often or images != steps * plan.global_batch_size:
            raise ValueError(f"epoch {epoch + 1}: {images} images, some too often")
        rates = [
            learning_rate(epoch + step / steps, optimisation) for step in (0, steps - 1)
        ]
        share = plan.pixels(epoch) / plan.pixels(epochs - 1)
        minutes += (took := images * share / rate / 60)
        side = math.isqrt(plan.pixels(epoch))
        yield (
            f"| {epoch + 1} | {side} | {steps:,} | {images:,} | {rates[0]:.4g} to {rates[1]:.4g} | {took:.3g} |"
        )
    hours = minutes / 60 * ranks
    yield (
        f"\nin all {minutes:.3g} minutes of training, {hours:.3g} GPU hours, ${hours * price:.3g}; validation and "
        "start apart; accuracy is not simulated"
    )


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ranks", type=positive, nargs="+", default=[1, 8, 64, 512, 1024, 4096]
    )
    parser.add_argument("--samples", type=positive, nargs="+", default=[1_281_167])
    numbers = [
        field
        for field in dataclasses.fields(Case)
        if field.default is not dataclasses.MISSING
    ]
    for field in numbers:
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(
            flag, type=positive, default=field.default, help=f"default: {field.default}"
        )
    parser.add_argument("--config", type=Path, help="the preset to draw")
    parser.add_argument(
        "--rate",
        type=positive,
        default=20_000.0,
        help="images a second of all ranks, of the preset's last size (%(default)g)",
    )
    parser.add_argument("--gpu-price", type=positive, default=2.5, help="$ an hour")
    given = vars(parser.parse_args(arguments))
    preset, rate, price = (given.pop(key) for key in ("config", "rate", "gpu_price"))
    if preset:
        try:
            for ranks in given["ranks"]:
                print(*schedule(preset, int(ranks), rate, price), sep="\n")
        except UserError as mistake:
            parser.error(str(mistake))
        return 0
    pairs = itertools.product(given.pop("samples"), given.pop("ranks"))
    print(
        table([Case(ranks=ranks, samples=samples, **given) for samples, ranks in pairs])
    )
    return 0
