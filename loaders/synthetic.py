"""`synthetic`: the plan's ids and labels on one resident batch of noise. The ceiling of everything but the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from contracts import Batch, Feed, Rows
from loaders._staging import DTYPES, Staged, hand_over, sleeping_event


class Synthetic:
    """Pixels never change; ids, labels and padding follow the plan, so that resuming and exactness can be tested."""

    in_flight = 0

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        size = feed.plan.image_size
        shape = (feed.plan.batch_size, size, size, 3)
        generator = torch.Generator(feed.device).manual_seed(0)
        pixels = torch.randn(shape, generator=generator, device=feed.device).to(DTYPES[feed.pixels.dtype])
        self._images = pixels.permute(0, 3, 1, 2)

    def __enter__(self) -> Synthetic:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        return hand_over(self._staged(rows) for rows in self._feed.plan.rows(epoch, first))

    def close(self) -> None:
        """Nothing runs."""

    def _staged(self, rows: Rows) -> Staged:
        done = sleeping_event() if self._feed.device.type == "cuda" else None
        batch = Batch(
            images=self._images,
            sizes=self._to_device(rows.sizes),
            targets={name: self._to_device(value) for name, value in self._feed.targets(rows).items()},
            valid=self._to_device(rows.valid),
            ids=rows.ids,
        )
        return Staged(batch, None, done)

    def _to_device(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._feed.device)


def open(feed: Feed) -> Synthetic:
    return Synthetic(feed)
