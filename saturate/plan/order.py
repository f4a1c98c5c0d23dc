"""The order of an epoch and the share of a rank: pure functions of numbers.

Training, world size 2, batch 2, accumulation 2 (so G = 8), n = 19, first = 0; letters are ranks:

    order      0  1 | 2  3 | 4  5 | 6  7 || 8  9 | 10 11 | 12 13 | 14 15 || 16 17 18
    rank         a      b      a      b       a       b       a       b
    micro-batch 0           1           2               3                   dropped
    step       0                          1

A data set of few steps drops nothing (`fitted`): its last step is filled up with the samples before it, whose
loss is masked there (`filled_up`). The same n = 19 is then three steps, and the last one is

    order     16 17 | 18 11 | 12 13 | 14 15
    rank         a      b      a      b
    fillers              11   12 13   14 15
"""

from __future__ import annotations

import numpy as np

from saturate.contracts import Array
from saturate.plan.draws import Purpose, bits, key


def order(seed: int, epoch: int, n: int) -> Array:
    """Return int64 [n], the ids 0..n-1 sorted by a hash of (seed, epoch, id)."""
    # no two ids have the same bits, which are a bijection of them: any sort gives this order
    return np.argsort(
        bits(key(seed, epoch, Purpose.ORDER), np.arange(n, dtype=np.uint64))
    )


def repeated(samples: Array, repeats: int) -> Array:
    """Return int64 [n], items of samples [n] in their order, each `repeats` times in a row, n in all.

    Repeated augmentation (Hoffer et al. 2019) at an epoch's length, as DeiT has it: the samples at the end of
    the order are left out. Item sample * repeats + r is the sample's repeat r.
    """
    shown = samples[: -(-len(samples) // repeats)]
    return (shown[:, None] * repeats + np.arange(repeats)).ravel()[: len(samples)]


# consecutive samples of like sizes, where there are enough: then a batch of 128 is no wider than one of 16
BLOCK = 256
CHUNK = 64  # blocks that are made together: few enough that the same images do not always meet


def block_size(n: int) -> int:
    """Return a sixteenth of the samples or so: with fewer blocks the same images would always meet."""
    return min(BLOCK, max(8, 1 << max(n // 16, 1).bit_length() - 1))


def by_size(heights: Array, widths: Array) -> Array:
    """Return int64 [n], the places of images of these sizes: neighbours have like sizes."""
    # the last key counts first: landscape or portrait, then the shorter side
    return np.lexsort(
        (np.maximum(heights, widths), np.minimum(heights, widths), heights > widths)
    )


def grouped(heights: Array, widths: Array, *, seed: int, epoch: int) -> Array:
    """Return int64 [n], the places of an epoch's order, regrouped: each block has samples of like sizes.

    `heights`, `widths` [n] are of the outputs, in the epoch's order; a block has block_size(n) samples. Each
    CHUNK blocks of the order are sorted by size and cut, and the blocks are shuffled. What is left at the
    end, less than a block, stays as it was: sorted, a last step would always drop the same sizes.
    """
    n = len(heights)
    block = block_size(n)
    whole = n // block * block
    chunks = [
        slice(begin, min(begin + CHUNK * block, whole))
        for begin in range(0, whole, CHUNK * block)
    ]
    sorted_ = [chunk.start + by_size(heights[chunk], widths[chunk]) for chunk in chunks]
    # axes: [blocks, block]
    blocks = np.concatenate([np.zeros(0, np.int64), *sorted_]).reshape(-1, block)
    shuffled = blocks[
        np.argsort(
            bits(key(seed, epoch, Purpose.BLOCKS), np.arange(len(blocks))),
            kind="stable",
        )
    ]
    return np.concatenate([shuffled.ravel(), np.arange(whole, n)])


FEW_STEPS = 20
"""An epoch of at least so many steps drops its tail, which is less than a twentieth of the samples."""


def fitted(n: int, batch_size: int, shares: int) -> tuple[int, bool]:
    """Fit a batch size to a small data set; `shares` = ranks x accumulation.

    Returns (batch size, whether an epoch keeps its tail). Below FEW_STEPS the samples are spread evenly over
    the steps, so that none is dropped and the last step is filled up by a few rows.
    """
    global_batch_size = batch_size * shares
    if n >= FEW_STEPS * global_batch_size or n < shares:
        return batch_size, False
    count = -(-n // global_batch_size)
    return -(-n // (count * shares)), True


def steps(
    n: int, first: int, global_batch_size: int, *, keeps_tail: bool = False
) -> int:
    """Return the optimiser steps behind the first `first` samples.

    They are whole ones, and with `keeps_tail` one more for what is left.
    """
    left = max(n - first, 0)
    return -(-left // global_batch_size) if keeps_tail else left // global_batch_size


def filled_up(ordered: Array, first: int, global_batch_size: int) -> Array:
    """Return the order, behind whose end are the fillers of the last of the whole steps after `first`.

    They are what comes before that step: samples of the same epoch and none of its own, as far as there are
    so many; then, from its own first one on, what lies in other micro-batches.
    """
    left = max(len(ordered) - first, 0)
    # of a last step that is short: its first sample, and how many it lacks
    begin = len(ordered) - left % global_batch_size
    lacking = -left % global_batch_size
    places = max(begin - lacking, 0) + np.arange(lacking)
    return np.concatenate([ordered, ordered.take(places, mode="wrap")])


def share(
    ordered: Array,
    micro_batch: int,
    *,
    first: int,
    batch_size: int,
    world_size: int,
    rank: int,
) -> Array:
    """Return int64 [<= batch_size], the ids of a rank's micro-batch; shorter only where `ordered` ends."""
    # ranks take turns, so that a step is one stretch of the order however many they are
    start = first + (micro_batch * world_size + rank) * batch_size
    return ordered[start : start + batch_size]
