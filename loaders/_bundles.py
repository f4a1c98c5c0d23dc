"""A loader of bundles as a loader of micro-batches: most of what a small batch costs is paid once for many.

A batch of 8 takes a loader nearly as long as one of 128: its rows are drawn, sent to workers, collected,
copied and finished by some hundred calls, whatever their size. Knows no loader by name.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from saturate.contracts import Array, Batch, Columns, Feed, Loader, Rows
from saturate.plan.bundles import Bundled, cut


class Bundles:
    """A contracts.Loader of micro-batches: it cuts the batches of `loader`, which are bundles.

    `feed` is what `bundled` has returned, and `loader` was opened with.
    """

    def __init__(self, loader: Loader, feed: Feed[Columns]) -> None:
        assert isinstance(feed.plan, Bundled)
        self._loader = loader
        self._plan = feed.plan
        self.in_flight = (loader.in_flight + 1) * self._plan.count
        self.notes = loader.notes
        self.reader = loader.reader
        self.counts = loader.counts
        self.stage_seconds = loader.stage_seconds
        self.awaited = loader.awaited
        self.close = loader.close
        self.decoded_again = loader.decoded_again and self._decoded_again

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        return self._cut(self._loader.batches(epoch, first))

    def _cut(self, bundles: Iterator[Batch]) -> Iterator[Batch]:
        size = self._plan.plan.batches.rows
        count = self._plan.count
        for number, bundle in enumerate(bundles):
            # not before the first bundle: the plan counts them once the loader has asked for its rows
            left = self._plan.bundled - number * count
            yield from micro_batches(bundle, size, min(left, count))

    def _decoded_again(self, epoch: int) -> Generator[Batch]:
        assert self._loader.decoded_again
        for bundle in self._loader.decoded_again(epoch):
            yield from micro_batches(
                bundle, self._plan.plan.batches.rows, self._plan.count
            )

    def __enter__(self) -> Bundles:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def bundled(feed: Feed[Columns], count: int) -> Feed[Columns]:
    """Return a feed whose batches are bundles of `count` micro-batches of `feed`, with their targets."""
    plan = Bundled(feed.plan, count)
    return replace(feed, plan=plan, targets=partial(_targets, feed))


def _targets(feed: Feed[Columns], rows: Rows) -> dict[str, Array]:
    """Return the targets of a bundle's rows, made for one micro-batch after the other: each mixes its own."""
    each = [feed.targets(part) for part in cut(rows, feed.plan.batches.rows)]
    return {
        name: np.concatenate([targets[name] for targets in each]) for name in each[0]
    }


def micro_batches(bundle: Batch, size: int, count: int) -> Iterator[Batch]:
    """Yield the first `count` batches of `size` rows of a bundle: views of its tensors."""
    assert bundle.rows is not None
    ms = None if bundle.transforms_ms is None else bundle.transforms_ms / count
    for index, rows in enumerate(cut(bundle.rows, size)[:count]):
        span = slice(index * size, (index + 1) * size)
        lost = rows.ids[(rows.ids >= 0) & ~rows.valid] if bundle.failed else ()
        yield Batch(
            images=bundle.images[span],
            sizes=bundle.sizes[span],
            targets={name: values[span] for name, values in bundle.targets.items()},
            valid=bundle.valid[span],
            ids=rows.ids,
            failed=tuple(map(int, lost)),
            rows=rows,
            host={name: values[span] for name, values in bundle.host.items()},
            # the one copy, counted once
            transfer=None if index else bundle.transfer,
            transforms_ms=ms,
            launched=bundle.launched,
        )
