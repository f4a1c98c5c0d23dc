"""`dali-gpu`: DALI reads files, decodes, resizes, places and normalises on the GPU, in the step's dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from contracts import Feed, Rows, UserError
from loaders._dali import import_dali, release_memory
from loaders._staging import Staged, Staging
from loaders.images._dali_rows import PathPreparer, Prepared, largest_rows
from loaders.images._pipeline import DEPTH, GpuOutputs, Runner, build, dali_normalises


class DaliGpu(Staging):
    """contracts.Loader. Our plan is DALI's sampler; DALI holds its own buffers on the GPU until `close`."""

    def __init__(self, feed: Feed) -> None:
        if feed.device.type != "cuda":
            raise UserError(
                "--loader dali-gpu needs an NVIDIA GPU and none is here; "
                "dali-cpu and dali-fed run on this machine, as does torchvision"
            )
        import_dali()
        super().__init__(feed, depth=1)
        self._prepare = PathPreparer(feed)
        self.notes = self._prepare.notes
        self._gpu = GpuOutputs(feed, self._stager)
        self._runner = Runner(
            partial(
                build,
                batch_size=feed.plan.batch_size,
                threads=max(feed.workers, 1),
                device=feed.device,
                reads=True,
                pixels=feed.pixels if dali_normalises(feed.plan) else None,
                read_delay_s=feed.source.read_delay_s,
                placed=self._prepare.placed,
                interpolation=feed.pixels.interpolation,
            ),
            warm=self._prepare.blank(),
            diagnose=self._prepare.diagnose,
            again=lambda batch, known: self._prepare(batch.rows, known),
            output_stream=self._gpu.raw_stream,
        )
        self.in_flight = DEPTH + 1
        try:
            self._grow()
        except BaseException:
            self.close()
            raise

    def _grow(self) -> None:
        """Have DALI take the memory that large images need: it runs out now or never, and no step is slow
        for it later.
        """
        rows = largest_rows(self._feed, max(self._feed.workers, 1))
        if rows is None:
            return
        for _ in self._runner.run(self._prepared([rows] * DEPTH)):
            pass

    def close(self) -> None:
        super().close()
        self._runner.close()
        self._prepare.close()
        release_memory()

    def _staged(self, rows: Sequence[Rows]) -> Iterator[Staged]:
        for (images, sizes), batch in self._runner.run(self._prepared(rows)):
            self._prepare.check(batch, np.asarray(sizes.as_tensor())[:, 0])
            yield self._gpu.stage(images, batch)

    def _prepared(self, rows: Sequence[Rows]) -> Iterator[Prepared]:
        return (self._prepare(one, self._runner.known) for one in rows)


def open(feed: Feed) -> DaliGpu:
    return DaliGpu(feed)
