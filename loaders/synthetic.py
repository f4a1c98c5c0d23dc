"""`synthetic`: the plan's ids and labels on resident noise. The ceiling of everything but the step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from saturate.contracts import Batch, Columns, Counts, Feed, Rows, StageSeconds
from saturate.loaders._postprocess import DTYPES, batch_of
from saturate.loaders._staging import Staged, hand_over, sleeping_event
from saturate.plan.patches import HIGH


class Synthetic:
    """Pixels never change; ids, labels and padding follow the plan, so that resuming can be tested.

    There are no levels to finish: noise is as good turned as not, and to change what is resident would cost
    what this leaves out.
    """

    in_flight = 0
    decoded_again = None
    notes: Sequence[str] = ()
    reader = ""

    def __init__(self, feed: Feed[Columns]) -> None:
        self.counts = Counts()
        self._feed = feed
        generator = torch.Generator(feed.device).manual_seed(0)
        largest = feed.plan.batches.rows * math.prod(feed.plan.batches.sample_shape)
        self._noise = torch.randn(largest, generator=generator, device=feed.device).to(
            DTYPES[feed.pixels.dtype]
        )
        larger = largest * feed.plan.batches.scale**2
        self._larger = torch.rand(larger, generator=generator, device=feed.device)

    def __enter__(self) -> Synthetic:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        return hand_over(
            self._staged(rows) for rows in self._feed.plan.rows(epoch, first)
        )

    def stage_seconds(self, *, anew: bool = False) -> StageSeconds:
        return {}

    def awaited(self) -> str:
        return ""

    def close(self) -> None:
        """Do nothing: nothing runs."""

    def _staged(self, rows: Rows) -> Staged:
        done = sleeping_event() if self._feed.device.type == "cuda" else None
        channels, *frames = self._feed.plan.batches.sample_shape[:-2]
        shape = (len(rows), *frames, *rows.padded, channels)
        images = self._noise[: math.prod(shape)].view(shape).movedim(-1, 1)
        batch = batch_of(images, rows, rows.valid, self._feed)
        if upscale := self._feed.plan.batches.scale:
            height, width = (side * upscale for side in rows.padded)
            shape = (len(rows), height, width, channels)
            batch.targets[HIGH] = (
                self._larger[: math.prod(shape)].view(shape).movedim(-1, 1)
            )
        return Staged(batch, None, done)


def open(feed: Feed[Columns]) -> Synthetic:
    return Synthetic(feed)
