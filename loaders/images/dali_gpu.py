"""`dali-gpu`: DALI reads files, decodes, resizes, places and normalises on the GPU, in the step's dtype.

DaliFiles is also `dali-cpu`, which does the same on the CPU.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from saturate.contracts import Feed, ImageColumns, Rows, UserError
from saturate.loaders._dali import import_dali, release_memory
from saturate.loaders._staging import Staged, Staging
from saturate.loaders.images._dali_rows import PathPreparer, Prepared, largest_rows
from saturate.loaders.images._pipeline import DEPTH, Outputs, Runner, build


class DaliFiles(Staging[ImageColumns]):
    """contracts.Loader. Our plan is DALI's sampler; DALI holds its own buffers until `close`."""

    def __init__(self, feed: Feed[ImageColumns], *, gpu: bool) -> None:
        import_dali()
        # on a GPU DALI has batches ready itself
        depth = 1 if gpu else 2
        super().__init__(feed, depth=depth)
        self._gpu = gpu
        self._prepare = PathPreparer(feed)
        self._outputs = Outputs(feed, self._stager, gpu=gpu)
        self._runner = Runner(
            partial(build, feed, device=feed.device if gpu else None, reads=True),
            warm=self._prepare.blank(),
            diagnose=self._prepare.diagnose,
            again=lambda batch, known: self._prepare(batch.rows, known),
            output_stream=self._outputs.raw_stream,
        )
        self.in_flight = DEPTH + depth
        try:
            if gpu:
                self._grow()
        except BaseException:
            self.close()
            raise

    def _grow(self) -> None:
        """Have DALI take the memory that large images need: it runs out now or never, and no step is slow
        for it later.
        """
        rows = largest_rows(self._feed, max(self._feed.workers, 1))
        if rows is not None:
            for _ in self._runner.run(self._prepared([rows] * DEPTH)):
                pass

    def close(self) -> None:
        super().close()
        self._runner.close()
        self._prepare.close()
        if self._gpu:
            release_memory()

    def _staged(self, rows: Sequence[Rows]) -> Generator[Staged]:
        for (images, sizes), batch in self.stages.waited(
            self._runner.run(self._prepared(rows)), "dali"
        ):
            self._prepare.check(batch, np.asarray(sizes.as_tensor())[:, 0])
            yield self._outputs.stage(images, batch)

    def _prepared(self, rows: Iterable[Rows]) -> Iterator[Prepared]:
        thread = self.stages.thread
        thread.lap("dali")
        for one in rows:
            thread.lap("plan")
            yield self._prepare(one, self._runner.known)
            thread.lap("dali")


def open(feed: Feed[ImageColumns]) -> DaliFiles:
    if feed.device.type != "cuda":
        raise UserError(
            "--loader dali-gpu needs an NVIDIA GPU and none is here; "
            "dali-cpu and dali-fed run on this machine, as does torchvision"
        )
    return DaliFiles(feed, gpu=True)
