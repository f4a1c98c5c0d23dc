"""Headers of images that nobody has opened yet, read in worker processes ahead of the plan that draws them.

    plan     draws these | and says which come next: some thousand, in its order
    workers                [header][header][header] ...  -> the columns, as files that all processes map

Must not know orders or windows: it is told sample ids.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from saturate.contracts import Array, UserError, counted
from saturate.dataset.images import headers
from saturate.dataset.images.columns import Header, Unread
from saturate.dataset.scan.byte_ranges import Entries
from saturate.dataset.scan.cache import require_few
from saturate.dataset.scan.manifest import Rejected, printable
from saturate.system import storage
from saturate.system.processes import KILLED, Pool
from saturate.system.resources import cores

TOGETHER = 64
"""Samples of a task."""
PATIENCE_S = 60.0
"""Seconds that a plan waits for one header: storage that takes longer does not answer."""
UNREADABLE = Header(
    size=0, height=1, width=1, format=0, depth=0, components=0, whole=False
)
"""Stands for a header that cannot be read: a size for the plan, and no components, which no image has."""


def readers(asked: int) -> int:
    """Return how many processes read headers where so many are asked for; 0: four a core, 32 at most."""
    return asked or min(32, max(int(4 * cores()), 1))


def checked_header(entries: Entries, max_pixels: int, name: bytes) -> Header:
    """Return the header of an entry. Raises Rejected, and OSError where the storage fails."""
    digest = hashlib.blake2b(digest_size=8)
    with entries.opened(name) as (size, read_at):

        def digested(offset: int, length: int) -> bytes:
            data = read_at(offset, length)
            digest.update(data)
            return data

        header = headers.read_header(size, digested)
    require_few(header.width, header.height, max_pixels)
    return header._replace(digest=int.from_bytes(digest.digest(), "little"))


@dataclass(eq=False)
class Headers:
    """Fills the columns of `Unread` images: a contracts.Fetch. It starts processes when the first is missing.

    A header that is there stays there: for other epochs, other runs and other ranks of this machine.
    """

    columns: Unread
    entries: Entries
    max_pixels: int
    workers: int  # as for `readers`
    _pool: Pool[Array, None] | None = None
    # by id, until a plan has come by
    _asked: dict[int, Future[None]] = field(default_factory=dict)
    # loaders of two epochs may overlap for a moment
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, now: Array, coming: Array) -> None:
        """Return when the headers of samples `now` are in the columns; ask for those of `coming` meanwhile.

        Both are int64, and are read in their order. Raises UserError where processes or storage fail.
        """
        with self._lock:
            self._ask(np.concatenate([now, coming]))
            waited = {
                sample: self._asked[sample]
                for sample in now.tolist()
                if sample in self._asked
            }
        for sample, reading in waited.items():
            try:
                reading.result(PATIENCE_S)
            except TimeoutError:
                name = printable(self.entries.shown(self.columns.entry(sample)))
                raise UserError(
                    f"the storage has not answered for {PATIENCE_S:g} s: {name} is waited for; "
                    "go on with --resume auto"
                ) from None
            except BrokenProcessPool:
                raise UserError(
                    f"a process that reads headers was killed: {KILLED}; mend that, and go on with "
                    "--resume auto"
                ) from None
        with self._lock:
            for sample in waited:
                self._asked.pop(sample, None)

    def _ask(self, samples: Array) -> None:
        missing = [
            sample
            for sample in samples[self.columns.height[samples] == 0].tolist()
            if sample not in self._asked
        ]
        if missing and self._pool is None:
            work = Reading(self.columns.folder, self.entries, self.max_pixels)
            workers = readers(self.workers)
            self._pool = Pool(
                work, workers, f"{counted(workers, 'process')} for headers"
            )
        for first in range(0, len(missing), TOGETHER):
            part = missing[first : first + TOGETHER]
            assert self._pool is not None
            self._asked.update(dict.fromkeys(part, self._pool.submit(np.array(part))))


@dataclass(eq=False)
class Reading:
    """A worker process's work: read headers of samples, and write them into the columns of a folder."""

    folder: Path
    entries: Entries
    max_pixels: int
    _columns: Unread | None = None
    _written: dict[str, Array] = field(default_factory=dict)

    def __call__(self, samples: Array) -> None:
        # here, and not before the fork
        if self._columns is None:
            self._columns = Unread.open(self.folder)
            # the height is the last one: it says that the others are there
            names = sorted(Header._fields, key="height".__eq__)
            self._written = {
                name: np.load(self.folder / f"{name}.npy", "r+") for name in names
            }
        for sample in samples.tolist():
            header = self._header(self._columns.entry(sample))
            for name, column in self._written.items():
                column[sample] = getattr(header, name)

    def _header(self, name: bytes) -> Header:
        """Return the header of an entry; where the storage fails it is tried again, as other reads are."""

        def called() -> str:
            return f"--data: {printable(self.entries.shown(name))}"

        try:
            return storage.patiently(
                partial(checked_header, self.entries, self.max_pixels, name), called
            )
        except Rejected:
            return UNREADABLE
        # of a folder that may not be entered
        except OSError as error:
            raise storage.fault(error, called(), storage.GO_ON) from None
