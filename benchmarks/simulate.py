"""What many ranks and samples cost, by formulas: `python -m benchmarks simulate --ranks 64 1024 --samples 1e9`.

Each formula is a line of FORMULAS, each number that it takes a field of Case and a flag. docs/scale.md has
measured points beside them.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from saturate.dataset.images.columns import Images
from saturate.engine.distributed import votes_every

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
    given = vars(parser.parse_args(arguments))
    pairs = itertools.product(given.pop("samples"), given.pop("ranks"))
    print(
        table([Case(ranks=ranks, samples=samples, **given) for samples, ranks in pairs])
    )
    return 0
