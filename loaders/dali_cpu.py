"""`dali-cpu`: DALI reads, decodes and resizes in threads on the CPU; uint8 goes to the device and is normalised there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from contracts import Batch, Feed, Rows
from loaders._dali import DEPTH, PathPreparer, Prepared, Runner, build, import_dali
from loaders._staging import Ahead, Staged, Stager, hand_over


class DaliCpu:
    """contracts.Loader. DALI holds no memory of the GPU."""

    def __init__(self, feed: Feed) -> None:
        import_dali()
        self._feed = feed
        self._prepare = PathPreparer(feed)
        self._stager = Stager(feed)
        self._runner = Runner(
            lambda: build(
                batch_size=feed.plan.batch_size,
                threads=max(feed.workers, 1),
                device=None,
                reads=True,
                read_delay_s=feed.source.read_delay_s,
            ),
            warm=self._prepare.nothing(),
            diagnose=self._prepare.diagnose,
            again=lambda batch, bad: self._prepare(batch.rows, bad),
        )
        self._ahead: Ahead | None = None
        self.in_flight = DEPTH + 2

    def __enter__(self) -> DaliCpu:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self._stop()
        rows = self._feed.plan.rows(epoch, first)
        self._ahead = Ahead(lambda: self._staged(rows), depth=2, device=self._feed.device)
        return hand_over(iter(self._ahead))

    def close(self) -> None:
        self._stop()
        self._stager.close()
        self._runner.close()
        self._prepare.close()

    def _staged(self, rows: Sequence[Rows]) -> Iterator[Staged]:
        for (images, sizes), batch in self._runner.run(self._prepared(rows)):
            self._prepare.check(batch, np.asarray(sizes.as_tensor())[:, 0])
            yield self._stager.stage(torch.from_dlpack(images.as_tensor()), batch.rows, batch.failed)

    def _prepared(self, rows: Sequence[Rows]) -> Iterator[Prepared]:
        return (self._prepare(one, self._runner.bad) for one in rows)

    def _stop(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


def open(feed: Feed) -> DaliCpu:
    return DaliCpu(feed)
