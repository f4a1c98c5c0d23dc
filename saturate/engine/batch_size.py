"""The search of --batch-size auto: the largest batch that fits, from a few trials and the memory that they took.

    64 -> 1,024 -> memory grows by so much a sample -> AIM of what would fill the device,
       which is taken where it fits; else a little less

Must not know what a trial is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from saturate.contracts import UserError

CLOSE = 0.97
"""The batch that is found is at least this share of the largest that fits."""
AIM = CLOSE + 0.005
"""Share of the predicted largest batch that is tried: that is predicted anew behind it, and may then be larger."""
FIRST = 64
FASTEST = 16
"""No trial has more than so many times the batch of one that has fitted: kernels are chosen anew for each."""
LESS = 0.02
"""Share by which the next is smaller where that did not fit, then twice as much: DALI takes memory in large pieces."""
GRIDS = (8, 4, 2, 1)
"""A batch of 64 times such a number, or more, is a multiple of it, as tensor cores take them."""


def largest(taken: Callable[[int], int | None], *, room: int, most: int) -> int:
    """Return a batch that fits, of at least CLOSE of the largest that does, and of `most` at most.

    `taken` tries a batch and returns the bytes that it takes, None where it does not fit; `room` are the bytes that
    there are. How far the largest batch is away is predicted where that is close: a trial that runs out of memory to
    show it would take as long as the others together. Raises UserError where not even one sample fits.
    """
    fitted: dict[int, int] = {}
    fails = most + 1  # or more than is wanted
    in_row = 0  # trials that did not fit, since one did
    batch = min(FIRST, most)
    while True:
        used = taken(batch)
        if used is None:
            fails, in_row = batch, in_row + 1
        else:
            fitted[batch], in_row = used, 0
        if fails == 1:
            raise UserError(
                "--batch-size auto: not even one sample fits; a smaller network, --image-size or "
                "--grad-checkpointing true"
            )
        fits = max(fitted, default=0)
        limit = _predicted(fitted, room)
        near = fails - 1.0
        if limit is not None and len(fitted) > 1:
            near = min(near, limit)
        # the next larger one that could be tried
        if fits >= CLOSE * near or _gridded(fails - 1) <= fits:
            return fits
        batch = _next(fitted, fails, limit, in_row, unbounded=fails > most)


def _predicted(fitted: dict[int, int], room: int) -> float | None:
    """Return the largest batch that fits where memory goes on growing as between the two largest that did.

    Of one that did all its memory is taken to be of its samples, so that what is returned fits.
    """
    if not fitted:
        return None
    # smaller ones tell little more than what is there without a sample
    small, large = [0, *sorted(fitted)][-2:]
    a_sample = max(fitted[large] - fitted.get(small, 0), 1) / (large - small)
    return large + (room - fitted[large]) / a_sample


def _next(
    fitted: dict[int, int],
    fails: int,
    limit: float | None,
    in_row: int,
    *,
    unbounded: bool,
) -> int:
    """Return the batch to try, above the largest that `fitted` and below one that `fails`."""
    fits = max(fitted, default=0)
    middle = (fits + fails) // 2
    # little more than is close enough: mostly less fits than is predicted, and a trial that does not fit is lost
    guess = middle if limit is None else math.ceil(AIM * limit)
    guess += _grid(guess) - 1
    if unbounded:
        # the least that says whether the batch before is close to the largest
        least = int(fits / CLOSE) + _grid(fits)
        guess = min(max(guess, least), FASTEST * fits)
    elif in_row and limit is not None:
        guess = max(int(fails * (1 - LESS * 2 ** (in_row - 1))), middle)
    elif not fits / CLOSE < guess < fails:
        guess = middle
    return min(max(_gridded(guess), fits + 1), fails - 1)


def _grid(batch: int) -> int:
    return next(grid for grid in GRIDS if batch >= 64 * grid or grid == 1)


def _gridded(batch: int) -> int:
    """Return the next smaller batch that is worth a trial."""
    return batch // _grid(batch) * _grid(batch)
