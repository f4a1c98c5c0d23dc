"""All eight turns, and operations on some rows: what a loader must make of them; and faults.

The reference is NumPy's turns and colours of what the same loader delivers unturned: equal bit for bit where
there is no operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from contracts import Array, Feed, Rows
from plan import geometry, ops
from tests.conformance.placed import distorted, turned
from tests.conformance.scenes import Open

HEIGHT, WIDTH = 40, 56
"""Sides of the outputs before they are turned, in pixels."""
CLOSE = 0.2
"""Grey levels between colours that were computed in fp32 and in fp64, from what was rounded to fp16."""


@dataclass(frozen=True)
class Turning:
    """contracts.Plan: another's, with outputs of HEIGHT x WIDTH in all turns, every second one distorted."""

    inner: Any
    turns: bool
    operates: bool
    filled: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def transposes(self) -> bool:
        return self.turns

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return (
            *self.inner.sample_shape[:-2],
            *((WIDTH, WIDTH) if self.turns else (HEIGHT, WIDTH)),
        )

    def rows(self, epoch: int, first: int) -> Sequence[Rows]:
        return [self._changed(rows, epoch) for rows in self.inner.rows(epoch, first)]

    def _changed(self, rows: Rows, epoch: int) -> Rows:
        numbers = rows.ids + np.arange(len(rows)) + epoch
        turns = (numbers % geometry.TURNS * self.turns).astype(np.uint8)
        sizes = np.where(
            geometry.transposed(turns)[:, None], (WIDTH, HEIGHT), (HEIGHT, WIDTH)
        )
        distorted = (
            ops.alone(ops.Op.DISTORT, ops.distortions(1, epoch, rows.ids))
            * (numbers % 2 == 1)[:, None, None]
        )
        return replace(
            rows,
            turns=turns,
            sizes=sizes,
            ops=distorted.astype(np.float32) if self.operates else None,
        )


def rows_are_changed(
    open_: Open, feed: Feed, tolerance: float = 0.0, *, operates: bool = True
) -> None:
    """Every batch of two epochs.

    `tolerance`: grey levels between two passes of the loader, 0 = equal bits.
    """
    for epoch in (0, 1):
        plain = _delivered(
            open_,
            replace(feed, plan=Turning(feed.plan, turns=False, operates=False)),
            epoch,
        )
        plan: Any = Turning(feed.plan, turns=True, operates=operates)
        found = _delivered(open_, replace(feed, plan=plan), epoch)
        expected = plan.rows(epoch, 0)
        assert len(found) == len(plain) == len(expected) > 0
        for images, before, rows in zip(found, plain, expected, strict=True):
            assert images.shape[-3:-1] == rows.padded
            for i in np.flatnonzero(rows.valid).tolist():
                _same(feed, images[i], before[i], rows, i, tolerance)
            assert not images[~rows.valid].any()


def _same(
    feed: Feed, image: Array, before: Array, rows: Rows, i: int, tolerance: float
) -> None:
    height, width = rows.sizes[i].tolist()
    rest = image.copy()
    rest[..., :height, :width, :] = 0
    assert not rest.any(), f"row {i}: not 0 beside its output"
    operation, *numbers = [0] if rows.ops is None else rows.ops[i, 0].tolist()
    wanted = before
    if operation:
        std, mean = np.array(feed.pixels.std), np.array(feed.pixels.mean)
        wanted = (distorted((before * std + mean).clip(0, 1), numbers) - mean) / std
    wanted = turned(wanted, int(rows.turns[i]))
    seen = image[..., :height, :width, :]
    if tolerance or operation:
        apart = 255 * np.abs((seen - wanted) * np.array(feed.pixels.std)).mean()
        assert apart <= CLOSE + 2.25 * tolerance, (
            f"row {i}, turn {rows.turns[i]}: {apart:.2f} grey levels apart"
        )
    else:
        assert np.array_equal(seen, wanted), (
            f"row {i}, turn {rows.turns[i]}: not the same bits"
        )


def _delivered(open_: Open, feed: Feed, epoch: int) -> list[Array]:
    with open_(feed) as loader:
        return [
            batch.images.detach().float().cpu().movedim(1, -1).numpy().copy()
            for batch in loader.batches(epoch, 0)
        ]
