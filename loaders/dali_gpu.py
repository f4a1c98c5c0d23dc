"""`dali-gpu`: DALI reads the files and decodes, resizes and normalises on the GPU; batches come out in the step's dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from contracts import Batch, Feed, Mistake, Rows
from loaders._dali import DEPTH, GpuOutputs, PathPreparer, Prepared, Runner, build, import_dali, release_memory
from loaders._staging import Ahead, Staged, Stager, hand_over


class DaliGpu:
    """contracts.Loader. Our plan is DALI's sampler; DALI holds its own buffers on the GPU until `close`."""

    def __init__(self, feed: Feed) -> None:
        if feed.device.type != "cuda":
            raise Mistake(
                "--loader dali-gpu needs an NVIDIA GPU and none is here; dali-cpu and dali-fed run on this machine, as does torchvision"
            )
        import_dali()
        self._feed = feed
        self._prepare = PathPreparer(feed)
        self._gpu = GpuOutputs(feed, Stager(feed, ahead=1))
        self._ahead: Ahead | None = None
        self._runner = Runner(
            lambda: build(
                batch_size=feed.plan.batch_size,
                threads=max(feed.workers, 1),
                device=feed.device,
                reads=True,
                pixels=feed.pixels,
                read_delay_s=feed.source.read_delay_s,
            ),
            warm=self._prepare.nothing(),
            diagnose=self._prepare.diagnose,
            again=lambda batch, bad: self._prepare(batch.rows, bad),
            output_stream=self._gpu.raw_stream,
        )
        self.in_flight = DEPTH + 1

    def __enter__(self) -> DaliGpu:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self._stop()
        rows = self._feed.plan.rows(epoch, first)
        self._ahead = Ahead(lambda: self._staged(rows), depth=1, device=self._feed.device)
        return hand_over(iter(self._ahead))

    def close(self) -> None:
        self._stop()
        self._gpu.close()
        self._runner.close()
        self._prepare.close()
        release_memory()

    def _staged(self, rows: Sequence[Rows]) -> Iterator[Staged]:
        for (images, sizes), batch in self._runner.run(self._prepared(rows)):
            self._prepare.check(batch, np.asarray(sizes.as_tensor())[:, 0])
            yield self._gpu.stage(images, batch)

    def _prepared(self, rows: Sequence[Rows]) -> Iterator[Prepared]:
        return (self._prepare(one, self._runner.bad) for one in rows)

    def _stop(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


def open(feed: Feed) -> DaliGpu:
    return DaliGpu(feed)
