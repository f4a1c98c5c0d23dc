"""`dali-fed`: DataLoader workers read the files' bytes, DALI decodes them, on the GPU if there is one.

For storage with latency: as many reads wait at once as there are workers, and none of DALI's threads waits
with them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, pairwise

import numpy as np

from saturate.contracts import Array, Batch, Feed, ImageColumns, Rows
from saturate.dataset.images.headers import JPEG, parse
from saturate.dataset.scan.manifest import Rejected
from saturate.loaders import Undecodable
from saturate.loaders._dali import import_dali, release_memory
from saturate.loaders._read_retry import Reads
from saturate.loaders._stages import lap
from saturate.loaders._staging import Staged, Staging
from saturate.loaders._workers import PART, Work, Workers
from saturate.loaders.images._dali_rows import (
    Known,
    Prepared,
    blank_rows,
    encoded,
    numbers,
    placeholder,
    plain,
    whole_image,
)
from saturate.loaders.images._pipeline import DEPTH, Outputs, Runner, build
from saturate.plan.bundles import rows_of_part

REPEATED = 2
"""Batches that DALI decodes again and again, where it is measured alone."""
UNKNOWN_BYTES = 1 << 17
"""Taken for the mean size of files that nobody has opened yet; ImageNet's is 110 KiB."""


def _room(feed: Feed[ImageColumns], rows: int) -> int:
    """Return the bytes for this many files: of mean size, four standard errors more, and a large file."""
    sizes = feed.columns.size[:: max(len(feed.columns) // 65536, 1)]
    sizes = sizes[sizes > 0] if (sizes > 0).any() else np.array([UNKNOWN_BYTES])
    return int(
        rows * sizes.mean() + 4 * rows**0.5 * sizes.std() + np.quantile(sizes, 0.999)
    )


def intact(data: bytes) -> bool:
    """Return whether DALI can be given what a scan has found plain: storage may answer with zeros by now.

    A PNG is followed to its end. Of a JPEG its first bytes must do, for speed.
    """
    try:
        return data.startswith(JPEG) or parse(data, len(data)).whole
    except Rejected:
        return False


class Reading(Work):
    """In a worker, puts the files' bytes of rows into a part of a slot, one after the other.

    It returns (where each begins [rows + 1], failed ids). Nothing is decoded but what only PIL can. Bytes
    that do not fit there are returned instead, by row.
    """

    def __init__(self, feed: Feed[ImageColumns]) -> None:
        self._reads = Reads(feed.source)
        self._columns = feed.columns

    def ask(self, samples: Array) -> None:
        self._reads.ask(samples)

    def __call__(
        self, rows: Rows, slot: Array
    ) -> tuple[Array, tuple[int, ...], dict[int, bytes]]:
        begins = np.zeros(len(rows) + 1, np.int64)
        failed = []
        spilled = {}
        end = 0
        for i, (sample, valid) in enumerate(zip(rows.ids, rows.valid, strict=True)):
            data = b""
            try:
                if valid:
                    data = self._bytes(int(sample))
                    lap("parse")
            except Undecodable:
                failed.append(int(sample))
            if end + len(data) <= len(slot):
                slot[end : end + len(data)] = np.frombuffer(data, np.uint8)
                end += len(data)
            else:
                # it goes through the DataLoader's pipe, which is slower
                spilled[i] = data
            begins[i + 1] = end
        return begins, tuple(failed), spilled

    def _bytes(self, sample: int) -> bytes:
        """Return the sample's file, or what stands for one that DALI cannot take. Raises Undecodable."""
        data = self._reads.read(sample)
        lap("read")
        if plain(self._columns, np.array([sample]))[0] and intact(data):
            return data
        return encoded(whole_image(data, self._columns, sample))


class DaliFed(Staging[ImageColumns]):
    """contracts.Loader."""

    def __init__(self, feed: Feed[ImageColumns]) -> None:
        import_dali()
        super().__init__(feed)
        self._repeats = False
        self._gpu = feed.device.type == "cuda"
        self._placeholder = np.frombuffer(placeholder(), np.uint8)
        size = feed.plan.batches.rows
        self._workers = Workers(
            lambda: Reading(feed),
            workers=feed.workers,
            batch_size=size,
            part_rows=rows_of_part(feed.plan, feed.workers, PART),
            part_bytes=lambda rows: _room(feed, rows),
            name_of=feed.source.name,
            stages=self.stages,
        )
        self._outputs = Outputs(feed, self._stager, gpu=self._gpu)
        nothing = blank_rows(size, feed.plan.batches.sample_shape[-2:])
        device = feed.device if self._gpu else None
        self._runner = Runner(
            partial(build, feed, device=device, reads=False),
            warm=self._prepare(nothing, [self._placeholder] * size, Known()),
            diagnose=self._diagnose,
            again=lambda batch, known: self._prepare(
                batch.rows, batch.data, known, batch.failed
            ),
            output_stream=self._outputs.raw_stream,
        )
        self.in_flight = self._workers.in_flight + DEPTH + 2

    def decoded_again(self, epoch: int) -> Generator[Batch]:
        """Yield batches without an end: DALI decodes an epoch's first ones again and again, and no worker reads."""
        self._repeats = True
        try:
            yield from self.batches(epoch, 0)
        finally:
            self._repeats = False

    def close(self) -> None:
        super().close()
        if self._gpu:
            release_memory()

    def _let_go(self) -> None:
        self._runner.close()

    def _staged(self, rows: Sequence[Rows]) -> Generator[Staged]:
        prepared = self._repeated(rows) if self._repeats else self._prepared(rows)
        for (images, _), batch in self.stages.waited(
            self._runner.run(prepared), "dali"
        ):
            yield self._outputs.stage(images, batch)

    def _repeated(self, rows: Sequence[Rows]) -> Iterator[Prepared]:
        with closing(self._prepared(rows)) as prepared:
            # workers write their memory anew
            saved = [
                replace(batch, data=[piece.copy() for piece in batch.data])
                for batch in islice(prepared, REPEATED)
            ]
        yield from cycle(saved)

    def _prepared(self, rows: Sequence[Rows]) -> Generator[Prepared]:
        for slot, its_rows, parts in self.stages.waited(self._workers.run(rows)):
            data: list[Array] = []
            failed: list[int] = []
            for part, (begins, its_failed, spilled) in enumerate(parts):
                buffer = slot[part * self._workers.part_bytes :]
                pieces = [buffer[a:b] for a, b in pairwise(begins.tolist())]
                for i, piece in spilled.items():
                    pieces[i] = np.frombuffer(piece, np.uint8)
                data += pieces
                failed += its_failed
            yield self._prepare(its_rows, data, self._runner.known, failed)

    def _prepare(
        self,
        rows: Rows,
        data: Array | Sequence[Array],
        known: Known,
        failed: Sequence[int] = (),
    ) -> Prepared:
        lost = np.isin(rows.ids, [*known.bad, *failed]) & rows.valid
        absent = ~rows.valid | lost
        given = [self._placeholder if absent[i] else data[i] for i in range(len(rows))]
        for i in np.flatnonzero(np.isin(rows.ids, list(known.odd)) & ~absent):
            sample = int(rows.ids[i])
            pixels = whole_image(given[i].tobytes(), self._feed.columns, sample)
            given[i] = np.frombuffer(encoded(pixels), np.uint8)
        arrays = numbers(rows, absent, placed=not self._feed.plan.batches.filled)
        return Prepared(rows, given, **arrays, failed=tuple(rows.ids[lost].tolist()))

    def _diagnose(self, batch: Prepared) -> set[int]:
        undecodable = set()
        for sample, data in zip(batch.rows.ids.tolist(), batch.data, strict=True):
            try:
                if data is not self._placeholder:
                    whole_image(data.tobytes(), self._feed.columns, sample)
            except Undecodable:
                undecodable.add(sample)
        return undecodable


def open(feed: Feed[ImageColumns]) -> DaliFed:
    return DaliFed(feed)
