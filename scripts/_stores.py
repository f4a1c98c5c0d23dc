"""Stores that `scripts.pack` writes: an LMDB, and tar shards. Each goes on where its last commit was."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from contracts import UserError
from dataset.manifest import printable
from dataset.tar_index import IMAGES

LONGEST_KEY = 511
"""Bytes of a key, as LMDB is built."""
FIRST_MAP = 1 << 28
"""Bytes; doubled whenever they are full."""
END = bytes(1024)
"""The end mark of a tar."""


class Packed(NamedTuple):
    """A sample to write."""

    name: bytes
    label: int
    content: bytes


class Writer(Protocol):
    """A store of one split, under way in a folder."""

    store: Path  # the file or folder that will have its place in TO

    def write(self, batch: Sequence[Packed]) -> dict[str, int]:
        """Write samples, bring them to the disk, and return where the store now ends, for `Writer.of`."""

    def finish(self, classes: Sequence[str]) -> None:
        """Complete the store."""

    def close(self) -> None:
        """Let go of what is open."""


class Lmdb:
    """train.lmdb, a file: class/name -> bytes."""

    def __init__(self, work: Path, split: str, ends: dict[str, int]) -> None:
        try:
            import lmdb
        except ImportError:
            raise UserError("--format lmdb needs the package lmdb: pip install lmdb") from None
        self.store = work / self.place(split)
        self._full: type[Exception] = lmdb.MapFullError
        size = max(FIRST_MAP, 2 * self.store.stat().st_size if self.store.exists() else 0)
        self._opened: Any = lmdb.open(str(self.store), subdir=False, map_size=size)

    @staticmethod
    def place(split: str) -> str:
        """Return the name of the store."""
        return f"{split}.lmdb"

    @staticmethod
    def require(names: Sequence[bytes]) -> None:
        """Raise UserError for a name that no key can be."""
        for name in names:
            if len(name) > LONGEST_KEY:
                raise UserError(
                    f"--format lmdb takes names of {LONGEST_KEY} bytes at most, and '{printable(name)}' has "
                    f"{len(name)}; take --format tar"
                )

    def write(self, batch: Sequence[Packed]) -> dict[str, int]:
        """Write samples in one transaction; the map grows as it must."""
        while True:
            try:
                with self._opened.begin(write=True) as transaction:
                    for sample in batch:
                        transaction.put(sample.name, sample.content)
                return {}
            except self._full:
                self._opened.set_mapsize(2 * self._opened.info()["map_size"])

    def finish(self, classes: Sequence[str]) -> None:
        """Close the environment, and remove its file of locks."""
        self.close()
        Path(f"{self.store}-lock").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the environment."""
        self._opened.close()


class Tar:
    """train/*.tar: an image under its name, and .cls beside it; classes.txt names the numbers in .cls."""

    SHARD = 1 << 30
    """Bytes behind which a new shard begins."""

    def __init__(self, work: Path, split: str, ends: dict[str, int]) -> None:
        self.store = work / self.place(split)
        self.store.mkdir(exist_ok=True)
        self._shard = ends.get("shard", 0)
        self._end = ends.get("end", 0)
        self._file: io.BufferedRandom | None = None

    @staticmethod
    def place(split: str) -> str:
        """Return the name of the store."""
        return split

    @staticmethod
    def require(names: Sequence[bytes]) -> None:
        """Raise UserError for a name that is no image to readers of tar shards, or two of one sample."""
        keys: dict[bytes, bytes] = {}
        for name in names:
            folder, slash, last = name.rpartition(b"/")
            key = folder + slash + last.partition(b".")[0]
            if last.rpartition(b".")[2].lower() not in IMAGES or name.startswith(b".") or b"/." in name:
                raise UserError(
                    f"--format tar needs names that end as images' do, and are not hidden: "
                    f"'{printable(name)}' is not such; take --format lmdb"
                )
            if keys.setdefault(key, name) != name:
                raise UserError(
                    f"--format tar: '{printable(keys[key])}' and '{printable(name)}' would be one sample, "
                    "whose key ends at the first dot; take --format lmdb"
                )

    def write(self, batch: Sequence[Packed]) -> dict[str, int]:
        """Write samples behind those before."""
        for sample in batch:
            if self._file is None:
                self._file = self._opened()
            stem = sample.name[: sample.name.index(b".", sample.name.rfind(b"/") + 1)]
            for name, content in ((sample.name, sample.content), (stem + b".cls", b"%d" % sample.label)):
                member = tarfile.TarInfo(os.fsdecode(name))
                member.size = len(content)
                self._file.write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
                self._file.write(content + bytes(-len(content) % 512))
            self._end = self._file.tell()
            if self._end >= self.SHARD:
                self._end_shard(self._file)
        if self._file is not None:
            _to_disk(self._file)
        return {"shard": self._shard, "end": self._end}

    def finish(self, classes: Sequence[str]) -> None:
        """Close the last shard, and name the classes."""
        if self._end and self._file is None:
            self._file = self._opened()
        if self._file is not None:
            self._end_shard(self._file)
        (self.store / "classes.txt").write_text("".join(f"{name}\n" for name in classes), encoding="utf-8")

    def _opened(self) -> io.BufferedRandom:
        """Open the shard under way, without what an interrupted commit has left behind its end."""
        path = self.store / f"{self._shard:06d}.tar"
        file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
        file.truncate(self._end)
        file.seek(self._end)
        return file

    def _end_shard(self, file: io.BufferedRandom) -> None:
        file.write(END)
        _to_disk(file)
        self.close()
        self._shard += 1
        self._end = 0

    def close(self) -> None:
        """Close the shard under way."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _to_disk(file: io.BufferedRandom) -> None:
    file.flush()
    os.fsync(file.fileno())


FORMATS: dict[str, Any] = {"lmdb": Lmdb, "tar": Tar}
"""--format -> its writer; the source that reads it has the same name."""
