"""The only random numbers of the project: uniforms that are a pure function of a key and a counter.

A stream is named by (seed, epoch, purpose); its counters are sample ids. No generator has a state, so nothing
has to be saved, and neither workers nor ranks can change what is drawn.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np

from saturate.contracts import Array

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, as in SplitMix64
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)

WORD = 0xFFFFFFFFFFFFFFFF


class Purpose(IntEnum):
    """What a stream is for. Values are part of every key: never renumber."""

    ORDER = 1
    WINDOW = 2
    FLIP = 3
    FRAMES = 4
    COLOUR = 5
    MODEL = 6  # dropout and other draws on the device, see engine/step.py
    SCALE = 7  # of a detector's training images
    ZOOM = 8
    OVERLAP = 9  # how much of a box a crop has to have
    CROP = 10
    BLOCKS = 11  # the order of groups of samples of like sizes
    AUTO = 12  # the policy of --auto-augment
    JITTER = 13
    GREY = 14
    BLUR = 15
    ERASE = 16
    UPSIDE_DOWN = 17  # vertical flips
    MIX = 18  # mixup and cutmix
    TRANSFORM = 19  # what the function of --transforms is given
    BALANCE = 20  # the order of an epoch in which classes come alike


def _mix(words: Array) -> Array:
    """Mix words by SplitMix64's finaliser (Steele, Lea, Flood 2014), a bijection. Overflow is intended."""
    words = (words ^ (words >> np.uint64(30))) * _MULTIPLY_1
    words = (words ^ (words >> np.uint64(27))) * _MULTIPLY_2
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=1024)
def key(*words: int) -> int:
    """Return one 64-bit key of several words; each goes through the mixer, so no sum or product collides.

    Python's own numbers do as `_mix` does: for one of them NumPy takes fifteen times as long, and a batch of
    8 has a key of its own.
    """
    state = 0
    for word in words:
        state = ((state ^ (word & WORD)) + int(_INCREMENT)) & WORD
        state = (state ^ (state >> 30)) * int(_MULTIPLY_1) & WORD
        state = (state ^ (state >> 27)) * int(_MULTIPLY_2) & WORD
        state ^= state >> 31
    return state


def bits(stream: int | Array, counters: Array) -> Array:
    """Return uint64 for each counter, the same on every machine and NumPy version. Streams broadcast."""
    words = np.asarray(stream, np.uint64)
    return _mix(
        _mix((np.asarray(counters).astype(np.uint64) ^ words) + _INCREMENT) + words
    )


def uniforms(seed: int, epoch: int, purpose: Purpose, ids: Array, count: int) -> Array:
    """Return float64 [len(ids), count] in [0, 1).

    Row i depends on (seed, epoch, purpose, ids[i]) alone.
    """
    streams = np.array(
        [key(seed, epoch, purpose, column) for column in range(count)], np.uint64
    )
    return (bits(streams, np.asarray(ids)[:, None]) >> np.uint64(11)) * 2.0**-53
