"""`dali-cpu`: DALI reads, decodes and resizes in threads on the CPU; the device normalises uint8 levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from contracts import Feed, Rows
from loaders._dali import import_dali
from loaders._staging import Staged, Staging, without
from loaders.images._dali_rows import PathPreparer, Prepared
from loaders.images._pipeline import DEPTH, Runner, build


class DaliCpu(Staging):
    """contracts.Loader. DALI holds no memory of the GPU."""

    def __init__(self, feed: Feed) -> None:
        import_dali()
        super().__init__(feed)
        self._prepare = PathPreparer(feed)
        self.notes = self._prepare.notes
        self._runner = Runner(
            partial(
                build,
                batch_size=feed.plan.batch_size,
                threads=max(feed.workers, 1),
                device=None,
                reads=True,
                read_delay_s=feed.source.read_delay_s,
                placed=self._prepare.placed,
                interpolation=feed.pixels.interpolation,
            ),
            warm=self._prepare.blank(),
            diagnose=self._prepare.diagnose,
            again=lambda batch, known: self._prepare(batch.rows, known),
        )
        self.in_flight = DEPTH + 2

    def close(self) -> None:
        super().close()
        self._runner.close()
        self._prepare.close()

    def _staged(self, rows: Sequence[Rows]) -> Iterator[Staged]:
        for (images, sizes), batch in self._runner.run(self._prepared(rows)):
            self._prepare.check(batch, np.asarray(sizes.as_tensor())[:, 0])
            yield self._stager.stage(
                torch.from_dlpack(images.as_tensor()),
                batch.rows,
                without(batch.rows, batch.failed),
            )

    def _prepared(self, rows: Sequence[Rows]) -> Iterator[Prepared]:
        return (self._prepare(one, self._runner.known) for one in rows)


def open(feed: Feed) -> DaliCpu:
    return DaliCpu(feed)
