"""The order of an epoch and the share of a rank: pure functions of numbers.

Training, world size 2, batch 2, accumulation 2 (so G = 8), n = 19, first = 0; letters are ranks:

    order      0  1 | 2  3 | 4  5 | 6  7 || 8  9 | 10 11 | 12 13 | 14 15 || 16 17 18
    rank         a      b      a      b       a       b       a       b
    micro-batch 0           1           2               3                   dropped
    step       0                          1
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dataset.draws import Purpose, bits, key

Array = np.ndarray[Any, Any]


def order(seed: int, epoch: int, n: int) -> Array:
    """int64 [n], the ids 0..n-1 sorted by a hash of (seed, epoch, id)."""
    return np.argsort(bits(key(seed, epoch, Purpose.ORDER), np.arange(n, dtype=np.uint64)), kind="stable")


def steps(n: int, first: int, step_samples: int) -> int:
    """Whole optimiser steps of `step_samples` that fit behind the first `first` samples."""
    return max(n - first, 0) // step_samples


def micro_batches(n: int, first: int, *, batch_size: int, world_size: int, accumulate: int, training: bool) -> int:
    """Micro-batches of one rank: whole steps in training; everything, the last one padded, in validation."""
    if training:
        return steps(n, first, world_size * batch_size * accumulate) * accumulate
    return -(-max(n - first, 0) // (world_size * batch_size))


def share(ordered: Array, micro_batch: int, *, first: int, batch_size: int, world_size: int, rank: int) -> Array:
    """int64 [<= batch_size], the ids of a rank's micro-batch; shorter only where `ordered` ends."""
    start = first + (micro_batch * world_size + rank) * batch_size
    return ordered[start : start + batch_size]
