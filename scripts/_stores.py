"""Stores that `scripts.pack` writes: an LMDB, tar shards, Arrow files, folders. Each goes on where its last
commit was."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from contracts import Array, UserError
from dataset.scan.manifest import printable
from dataset.stores.arrow import END as END_OF_STREAM
from dataset.stores.lmdb import ABOUT, samples_of
from dataset.stores.tar import IMAGES

LONGEST_KEY = 511
"""Bytes of a key, as LMDB is built."""
FIRST_MAP = 1 << 28
"""Bytes; doubled whenever they are full."""
GOES_ON = "once there is room the same command goes on"
END = bytes(1024)
"""The end mark of a tar."""


class Packed(NamedTuple):
    """A sample to write."""

    name: bytes
    label: int
    content: bytes


def require_order(names: Sequence[bytes], what: str) -> None:
    """Raise UserError where samples are not in the order of their names, as they would be read again."""
    for before, name in pairwise(names):
        if before >= name:
            raise UserError(
                f"{what} keeps samples in the order of their names, each once, and '{printable(name)}' comes "
                f"behind '{printable(before)}'; take --format lmdb"
            )


class Writer(Protocol):
    """A store of one split, under way in a folder."""

    store: Path  # the file or folder that will have its place in TO

    def write(self, batch: Sequence[Packed]) -> dict[str, int]:
        """Write samples, bring them to the disk, and return where the store now ends, for `Writer.of`."""

    def finish(
        self, names: Sequence[bytes], labels: Array, classes: Sequence[str]
    ) -> None:
        """Complete the store of these samples, in their order."""

    def files(self) -> list[Path]:
        """Return the files that the source which reads it knows by their looks, in its order."""

    def close(self) -> None:
        """Let go of what is open."""


class Lmdb:
    """train.lmdb, a file: name -> bytes, and the list of the samples with their labels."""

    def __init__(self, work: Path, split: str, ends: dict[str, int]) -> None:
        try:
            import lmdb
        except ImportError:
            raise UserError(
                "--format lmdb needs the package lmdb: pip install lmdb"
            ) from None
        self.store = work / self.place(split)
        self._full: type[Exception] = lmdb.MapFullError
        self._failed: type[Exception] = lmdb.Error
        size = max(
            FIRST_MAP, 2 * self.store.stat().st_size if self.store.exists() else 0
        )
        try:
            self._opened: Any = lmdb.open(str(self.store), subdir=False, map_size=size)
        except lmdb.Error as error:
            raise self._unwritable(error) from None

    @staticmethod
    def place(split: str) -> str:
        """Return the name of the store."""
        return f"{split}.lmdb"

    @staticmethod
    def require(
        names: Sequence[bytes], folders: Sequence[str], classes: Sequence[str]
    ) -> None:
        """Raise UserError for a name that no key can be."""
        for name in names:
            if name in ABOUT:
                raise UserError(
                    f"--format lmdb has an entry of its own called '{printable(name)}'; rename it"
                )
            if len(name) > LONGEST_KEY:
                raise UserError(
                    f"--format lmdb takes names of {LONGEST_KEY} bytes at most, and '{printable(name)}' has "
                    f"{len(name)}; take --format tar"
                )

    def write(self, batch: Sequence[Packed]) -> dict[str, int]:
        """Write samples."""
        self._put({sample.name: sample.content for sample in batch})
        return {}

    def _put(self, entries: Mapping[bytes, bytes]) -> None:
        """Write entries in one transaction; the map grows as it must."""
        while True:
            try:
                with self._opened.begin(write=True) as transaction:
                    for key, value in entries.items():
                        transaction.put(key, value)
                return
            except self._full:
                self._opened.set_mapsize(2 * self._opened.info()["map_size"])
            except self._failed as error:
                raise self._unwritable(error) from None

    def _unwritable(self, error: Exception) -> UserError:
        # LMDB calls a write that the disk cut short an input/output error
        return UserError(
            f"{self.store} cannot be written ({error}): is the disk full? {GOES_ON}"
        )

    def finish(
        self, names: Sequence[bytes], labels: Array, classes: Sequence[str]
    ) -> None:
        """Write the list of samples, close the environment, and remove its file of locks."""
        self._put(samples_of(names, labels, classes))
        self.close()
        Path(f"{self.store}-lock").unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """Return the files that the source which reads it knows by their looks, in its order."""
        return [self.store]

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
    def require(
        names: Sequence[bytes], folders: Sequence[str], classes: Sequence[str]
    ) -> None:
        """Raise UserError for a name that is no image to readers of tar shards, two of one sample, or a class
        that no line of classes.txt can be."""
        for own in classes:
            if own != own.strip() or not own or set(own) & {"\n", "\r"}:
                raise UserError(
                    f"--format tar: the class '{printable(os.fsencode(own))}' begins or ends with a blank, "
                    "or has an end of a line; rename it, or take --format lmdb"
                )
        keys: dict[bytes, bytes] = {}
        for name in names:
            folder, slash, last = name.rpartition(b"/")
            key = folder + slash + last.partition(b".")[0]
            if (
                last.rpartition(b".")[2].lower() not in IMAGES
                or name.startswith(b".")
                or b"/." in name
            ):
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
            for name, content in (
                (sample.name, sample.content),
                (stem + b".cls", b"%d" % sample.label),
            ):
                member = tarfile.TarInfo(os.fsdecode(name))
                member.size = len(content)
                self._file.write(
                    member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                )
                self._file.write(content + bytes(-len(content) % 512))
            self._end = self._file.tell()
            if self._end >= self.SHARD:
                self._end_shard(self._file)
        if self._file is not None:
            _to_disk(self._file)
        return {"shard": self._shard, "end": self._end}

    def finish(
        self, names: Sequence[bytes], labels: Array, classes: Sequence[str]
    ) -> None:
        """Close the last shard, and name the classes."""
        if self._end and self._file is None:
            self._file = self._opened()
        if self._file is not None:
            self._end_shard(self._file)
        (self.store / "classes.txt").write_text(
            "".join(f"{name}\n" for name in classes),
            encoding="utf-8",
            errors="surrogateescape",
        )

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

    def files(self) -> list[Path]:
        """Return the files that the source which reads it knows by their looks, in its order."""
        return sorted(self.store.glob("*.tar"))

    def close(self) -> None:
        """Close the shard under way."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _to_disk(file: io.BufferedRandom) -> None:
    file.flush()
    os.fsync(file.fileno())


class Arrow:
    """train/*.arrow as datasets.Dataset.save_to_disk writes them: structs of bytes and path, and labels."""

    SHARD = 1 << 30
    """Bytes behind which a new shard begins."""

    def __init__(self, work: Path, split: str, ends: dict[str, int]) -> None:
        try:
            import pyarrow
        except ImportError:
            raise UserError(
                "--format arrow needs the package pyarrow: pip install pyarrow"
            ) from None
        self._arrow: Any = pyarrow
        self.store = work / self.place(split)
        self.store.mkdir(exist_ok=True)
        self._shard = ends.get("shard", 0)
        self._end = ends.get("end", 0)
        self._schema: Any = pyarrow.schema(
            [
                (
                    "image",
                    pyarrow.struct(
                        [("bytes", pyarrow.binary()), ("path", pyarrow.string())]
                    ),
                ),
                ("label", pyarrow.int64()),
            ]
        )

    @staticmethod
    def place(split: str) -> str:
        """Return the name of the store."""
        return split

    @staticmethod
    def require(
        names: Sequence[bytes], folders: Sequence[str], classes: Sequence[str]
    ) -> None:
        """Raise UserError for a name that is no text."""
        for name in names:
            try:
                name.decode()
            except UnicodeDecodeError:
                raise UserError(
                    f"--format arrow takes names in UTF-8, and '{printable(name)}' is none; "
                    "take --format lmdb"
                ) from None

    def _path(self, shard: int) -> Path:
        return self.store / f"data-{shard:05d}.arrow"

    def write(self, batch: Sequence[Packed]) -> dict[str, int]:
        """Write samples as one record batch behind those before."""
        images = [
            {"bytes": sample.content, "path": sample.name.decode()} for sample in batch
        ]
        columns = [self._arrow.array(images, self._schema.field("image").type)]
        columns.append(
            self._arrow.array([sample.label for sample in batch], self._arrow.int64())
        )
        message = self._arrow.record_batch(columns, self._schema).serialize()
        path = self._path(self._shard)
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(self._end)  # without what an interrupted commit has left
            file.seek(self._end)
            if not self._end:
                file.write(self._schema.serialize())
            file.write(message)
            self._end = file.tell()
            if self._end >= self.SHARD:
                file.write(END_OF_STREAM)
                self._shard += 1
                self._end = 0
            _to_disk(file)
        return {"shard": self._shard, "end": self._end}

    def finish(
        self, names: Sequence[bytes], labels: Array, classes: Sequence[str]
    ) -> None:
        """End the last shard, and say which shards there are, with which classes."""
        if self._end:
            with open(self._path(self._shard), "r+b") as file:
                file.truncate(self._end)
                file.seek(self._end)
                file.write(END_OF_STREAM)
                _to_disk(file)
        features: dict[str, Any] = {
            "image": {"_type": "Image"},
            "label": {"_type": "ClassLabel", "names": [*classes]},
        }
        files = [{"filename": path.name} for path in self.files()]
        state: dict[str, Any] = {
            "_data_files": files,
            "_fingerprint": "packed",
            "_format_columns": None,
        }
        state |= {
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        for name, told in (
            ("state.json", state),
            ("dataset_info.json", {"features": features}),
        ):
            (self.store / name).write_text(json.dumps(told), encoding="utf-8")

    def files(self) -> list[Path]:
        """Return the files that the source which reads it knows by their looks, in its order."""
        return sorted(self.store.glob("*.arrow"))

    def close(self) -> None:
        """Do nothing: no file stays open."""


class Folder:
    """train/<class>/*, files."""

    def __init__(self, work: Path, split: str, ends: dict[str, int]) -> None:
        self.store = work / self.place(split)
        self.store.mkdir(exist_ok=True)

    @staticmethod
    def place(split: str) -> str:
        """Return the name of the store."""
        return split

    @staticmethod
    def require(
        names: Sequence[bytes], folders: Sequence[str], classes: Sequence[str]
    ) -> None:
        """Raise UserError for a name that does not begin with its class, or leads out of the folder, and for
        another order than that of the names."""
        for name, folder in zip(names, folders, strict=True):
            own, *rest = name.split(b"/")
            if own != os.fsencode(folder) or not rest or {b"", b".", b".."} & {*rest}:
                raise UserError(
                    f"--format folder takes names that begin with their class, '{folder}/', and "
                    f"'{printable(name)}' does not; take --format tar"
                )
        require_order(names, "--format folder")

    def write(self, batch: Sequence[Packed]) -> dict[str, int]:
        """Write samples; those of an interrupted commit are written again."""
        for sample in batch:
            path = self.store / os.fsdecode(sample.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sample.content)
        os.sync()
        return {}

    def finish(
        self, names: Sequence[bytes], labels: Array, classes: Sequence[str]
    ) -> None:
        """Do nothing: the names of the folders are the classes."""

    def files(self) -> list[Path]:
        """Return the files that the source which reads it knows by their looks, none: it
        reads all headers anew."""
        return []

    def close(self) -> None:
        """Do nothing: no file stays open."""


FORMATS: dict[str, Any] = {"lmdb": Lmdb, "tar": Tar, "arrow": Arrow, "folder": Folder}
"""--format -> its writer; the source that reads it has the same name."""
