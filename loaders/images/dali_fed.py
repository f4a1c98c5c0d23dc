"""`dali-fed`: DataLoader workers read the files' bytes, DALI decodes them, on the GPU if there is one.

For storage with latency: as many reads wait at once as there are workers, and none of DALI's threads waits
with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from contracts import Array, Feed, Rows
from dataset.images.headers import JPEG, parse
from dataset.scan.manifest import Rejected
from loaders import Undecodable
from loaders._dali import import_dali, release_memory
from loaders._read_retry import Reads
from loaders._staging import Staged, Staging, without
from loaders._workers import PART, Workers
from loaders.images._dali_rows import (
    Known,
    Prepared,
    blank_rows,
    encoded,
    numbers,
    placeholder,
    plain,
    whole_image,
)
from loaders.images._pipeline import DEPTH, GpuOutputs, Runner, build, dali_normalises
from plan.bundles import rows_of_part

UNKNOWN_BYTES = 1 << 17
"""Taken for the mean size of files that nobody has opened yet; ImageNet's is 110 KiB."""


def _room(feed: Feed, rows: int) -> int:
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


class Reading:
    """In a worker, puts the files' bytes of rows into a part of a slot, one after the other.

    It returns (where each begins [rows + 1], failed ids). Nothing is decoded but what only PIL can. Bytes
    that do not fit there are returned instead, by row.
    """

    def __init__(self, feed: Feed) -> None:
        self._reads = Reads(feed.source)
        self.ask = self._reads.ask
        self._columns = feed.columns

    def __call__(
        self, rows: Rows, slot: Array
    ) -> tuple[Array, tuple[int, ...], dict[int, bytes]]:
        begins = np.zeros(len(rows) + 1, np.int64)
        failed = []
        spilled = {}
        end = 0
        for i in range(len(rows)):
            data = b""
            if rows.valid[i]:
                sample = int(rows.ids[i])
                try:
                    data = self._reads.read(sample)
                    if not plain(self._columns, rows.ids[i : i + 1])[0] or not intact(
                        data
                    ):
                        data = encoded(whole_image(data, self._columns, sample))
                except Undecodable:
                    data = b""
                    failed.append(sample)
            if end + len(data) <= len(slot):
                slot[end : end + len(data)] = np.frombuffer(data, np.uint8)
                end += len(data)
            else:
                # it goes through the DataLoader's pipe, which is slower
                spilled[i] = data
            begins[i + 1] = end
        return begins, tuple(failed), spilled


class DaliFed(Staging):
    """contracts.Loader."""

    def __init__(self, feed: Feed) -> None:
        import_dali()
        super().__init__(feed)
        self._placeholder = np.frombuffer(placeholder(), np.uint8)
        self._workers = Workers(
            lambda: Reading(feed),
            workers=feed.workers,
            batch_size=feed.plan.batch_size,
            part_rows=rows_of_part(feed.plan, feed.workers, PART),
            part_bytes=lambda rows: _room(feed, rows),
            name_of=feed.source.name,
        )
        self._gpu = (
            GpuOutputs(feed, self._stager) if feed.device.type == "cuda" else None
        )
        self._placed = not feed.plan.filled
        self._runner = Runner(
            partial(
                build,
                batch_size=feed.plan.batch_size,
                threads=feed.threads or max(feed.workers, 1),
                device=feed.device if self._gpu else None,
                reads=False,
                pixels=feed.pixels if dali_normalises(feed.plan) else None,
                placed=self._placed,
                interpolation=feed.pixels.interpolation,
            ),
            warm=self._prepare(
                blank_rows(feed.plan.batch_size, feed.plan.sample_shape[-2:]),
                [b""] * feed.plan.batch_size,
                Known(),
            ),
            diagnose=self._diagnose,
            again=lambda batch, known: self._prepare(
                batch.rows, batch.data, known, batch.failed
            ),
            output_stream=self._gpu.raw_stream if self._gpu else None,
        )
        self.in_flight = self._workers.in_flight + DEPTH + 2

    def awaited(self) -> str:
        return self._workers.awaited()

    def close(self) -> None:
        self._workers.stop()
        super().close()
        self._runner.close()
        self._workers.close()
        if self._gpu:
            release_memory()

    def _staged(self, rows: Sequence[Rows]) -> Iterator[Staged]:
        for (images, _), batch in self._runner.run(self._prepared(rows)):
            if self._gpu:
                yield self._gpu.stage(images, batch)
            else:
                yield self._stager.stage(
                    torch.from_dlpack(images.as_tensor()),
                    batch.rows,
                    without(batch.rows, batch.failed),
                )

    def _prepared(self, rows: Sequence[Rows]) -> Iterator[Prepared]:
        for slot, its_rows, parts in self._workers.run(rows):
            data: list[Array] = []
            failed = list[int]()
            for part, (begins, its_failed, spilled) in enumerate(parts):
                its = slot[part * self._workers.part_bytes :]
                pieces = [its[a:b] for a, b in pairwise(begins.tolist())]
                for i, piece in spilled.items():
                    pieces[i] = np.frombuffer(piece, np.uint8)
                data += pieces
                failed += its_failed
            yield self._prepare(its_rows, data, self._runner.known, failed)

    def _prepare(
        self, rows: Rows, data: Sequence[Any], known: Known, failed: Sequence[int] = ()
    ) -> Prepared:
        gone = np.isin(rows.ids, [*known.bad, *failed]) & rows.valid
        absent = ~rows.valid | gone
        given = [self._placeholder if absent[i] else data[i] for i in range(len(rows))]
        for i in np.flatnonzero(np.isin(rows.ids, list(known.odd)) & ~absent):
            pixels = whole_image(
                given[i].tobytes(), self._feed.columns, int(rows.ids[i])
            )
            given[i] = np.frombuffer(encoded(pixels), np.uint8)
        return Prepared(
            rows,
            given,
            **numbers(rows, absent, placed=self._placed),
            failed=tuple(int(sample) for sample in rows.ids[gone]),
        )

    def _diagnose(self, batch: Prepared) -> set[int]:
        undecodable = set()
        for sample, data in zip(batch.rows.ids, batch.data, strict=True):
            try:
                if data is not self._placeholder:
                    whole_image(data.tobytes(), self._feed.columns, int(sample))
            except Undecodable:
                undecodable.add(int(sample))
        return undecodable


def open(feed: Feed) -> DaliFed:
    return DaliFed(feed)
