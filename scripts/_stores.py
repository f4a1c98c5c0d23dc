"""Stores that `scripts.pack` writes: an LMDB, tar shards, Arrow files, folders."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np

from contracts import UserError
from dataset.scan.manifest import printable
from dataset.stores.arrow import END as END_OF_STREAM
from dataset.stores.lmdb import ABOUT, LONGEST_KEY, samples_of
from dataset.stores.tar import IMAGES

FIRST_MAP = 1 << 28
"""Bytes of an LMDB; doubled whenever they are full."""


def place_of(form: str, split: str) -> str:
    """Return the name of the file or folder that holds a split."""
    return f"{split}.lmdb" if form == "lmdb" else split


class Packed(NamedTuple):
    """A sample to write."""

    name: bytes
    label: int
    content: bytes


class Writer:
    """A store of one split, under way in a folder."""

    def __init__(self, work: Path, split: str) -> None:
        self.store = work / split
        self.store.mkdir()

    def write(self, batch: Sequence[Packed]) -> None:
        """Write samples behind those before."""
        raise NotImplementedError

    def finish(self, names: Sequence[bytes], columns: Any) -> None:
        """Complete the store of these samples, of these names, and bring it to the disk."""

    def close(self) -> None:
        """Let go of what is open."""


class Lmdb(Writer):
    """train.lmdb, a file: name -> bytes, and the list of the samples with their labels."""

    def __init__(self, work: Path, split: str) -> None:
        try:
            import lmdb
        except ImportError:
            raise UserError(
                "--format lmdb needs the package lmdb: pip install lmdb"
            ) from None
        self.store = work / place_of("lmdb", split)
        self._lmdb = lmdb
        try:
            self._opened: Any = lmdb.open(
                str(self.store), subdir=False, map_size=FIRST_MAP
            )
        except lmdb.Error as error:
            raise OSError(errno.EIO, str(error)) from None

    def write(self, batch: Sequence[Packed]) -> None:
        self._put({sample.name: sample.content for sample in batch})

    def _put(self, entries: Mapping[bytes, bytes]) -> None:
        """Write entries in one transaction; the map grows as it must."""
        while True:
            try:
                with self._opened.begin(write=True) as transaction:
                    for key, value in entries.items():
                        transaction.put(key, value)
                return
            except self._lmdb.MapFullError:
                self._opened.set_mapsize(2 * self._opened.info()["map_size"])
            except self._lmdb.Error as error:
                # LMDB calls a write that the disk cut short an input/output error
                raise OSError(errno.EIO, f"{error}: is the disk full?") from None

    def finish(self, names: Sequence[bytes], columns: Any) -> None:
        self._put(samples_of(names, np.asarray(columns.label), columns.classes))
        self.close()
        Path(f"{self.store}-lock").unlink(missing_ok=True)

    def close(self) -> None:
        self._opened.close()


class Shards(Writer):
    """Files of 1 GiB, 000000.tar and so on."""

    SHARD = 1 << 30
    """Bytes behind which a new shard begins."""
    NAME: ClassVar[str]
    BEGIN: bytes = b""
    END: ClassVar[bytes]

    def __init__(self, work: Path, split: str) -> None:
        super().__init__(work, split)
        self._shard = 0
        self._file: BinaryIO | None = None

    def _append(self, pieces: Iterable[bytes]) -> None:
        """Write whole samples behind those before."""
        for piece in pieces:
            if self._file is None:
                name = self.NAME.format(self._shard)
                self._file = open(self.store / name, "wb")  # noqa: SIM115
                self._file.write(self.BEGIN)
            self._file.write(piece)
            if self._file.tell() >= self.SHARD:
                self._end()

    def _end(self) -> None:
        """Complete the shard that is open."""
        if self._file is not None:
            self._file.write(self.END)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._shard += 1

    def finish(self, names: Sequence[bytes], columns: Any) -> None:
        self._end()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Tar(Shards):
    """train/*.tar: an image under its name, and .cls beside it; classes.txt names the numbers in .cls."""

    NAME = "{:06d}.tar"
    END = bytes(1024)

    def write(self, batch: Sequence[Packed]) -> None:
        self._append(
            _member(sample.name, sample.content)
            + _member(_stem(sample.name) + b".cls", b"%d" % sample.label)
            for sample in batch
        )

    def finish(self, names: Sequence[bytes], columns: Any) -> None:
        super().finish(names, columns)
        text = "".join(f"{name}\n" for name in columns.classes)
        (self.store / "classes.txt").write_bytes(os.fsencode(text))


def _stem(name: bytes) -> bytes:
    """Return the key of a sample: its name up to the first dot of the last part."""
    folder, slash, last = name.rpartition(b"/")
    return folder + slash + last.partition(b".")[0]


def _member(name: bytes, content: bytes) -> bytes:
    member = tarfile.TarInfo(os.fsdecode(name))
    member.size = len(content)
    header = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


class Arrow(Shards):
    """train/*.arrow as datasets.Dataset.save_to_disk writes them: structs of bytes and path, and labels."""

    NAME = "data-{:05d}.arrow"
    END = END_OF_STREAM

    def __init__(self, work: Path, split: str) -> None:
        super().__init__(work, split)
        try:
            import pyarrow
        except ImportError:
            raise UserError(
                "--format arrow needs the package pyarrow: pip install pyarrow"
            ) from None
        image = pyarrow.struct(
            [("bytes", pyarrow.binary()), ("path", pyarrow.string())]
        )
        self._schema = pyarrow.schema([("image", image), ("label", pyarrow.int64())])
        self._batch = pyarrow.record_batch
        self.BEGIN = self._schema.serialize().to_pybytes()

    def write(self, batch: Sequence[Packed]) -> None:
        images = [
            {"bytes": sample.content, "path": sample.name.decode()} for sample in batch
        ]
        columns = {"image": images, "label": [sample.label for sample in batch]}
        message = self._batch(columns, self._schema).serialize()
        self._append([message.to_pybytes()])

    def finish(self, names: Sequence[bytes], columns: Any) -> None:
        super().finish(names, columns)
        files = sorted(path.name for path in self.store.glob("*.arrow"))
        state: dict[str, Any] = {
            "_data_files": [{"filename": name} for name in files],
            "_fingerprint": "packed",
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        features = {
            "image": {"_type": "Image"},
            "label": {"_type": "ClassLabel", "names": [*columns.classes]},
        }
        (self.store / "state.json").write_text(json.dumps(state))
        info = self.store / "dataset_info.json"
        info.write_text(json.dumps({"features": features}))


class Folder(Writer):
    """train/<class>/*, files."""

    def write(self, batch: Sequence[Packed]) -> None:
        for sample in batch:
            path = self.store / os.fsdecode(sample.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sample.content)

    def finish(self, names: Sequence[bytes], columns: Any) -> None:
        os.sync()


FORMATS: dict[str, type[Writer]] = {
    "lmdb": Lmdb,
    "tar": Tar,
    "arrow": Arrow,
    "folder": Folder,
}
"""--format -> its writer; the source that reads it has the same name."""
NAMES = {
    "lmdb": f"keys have {LONGEST_KEY} bytes at most, and are none of its own",
    "tar": "names end as images' do, are not hidden, and differ before their first dot; a class is one line",
    "arrow": "names are UTF-8",
    "folder": "names begin with their class and a slash, and ascend",
}
"""--format -> what it asks of names and classes."""


def require(form: str, names: Sequence[bytes], columns: Any) -> None:
    """Raise UserError for a name or a class that a store of this form cannot hold."""
    for name in _refused(form, names, columns):
        raise UserError(
            f"--format {form} cannot hold '{printable(name)}': {NAMES[form]}; take --format "
            f"{'tar' if form == 'lmdb' else 'lmdb'}"
        )


def _refused(form: str, names: Sequence[bytes], columns: Any) -> Iterator[bytes]:
    if form == "tar":
        for folder in map(os.fsencode, columns.classes):
            if folder != folder.strip() or len(folder.splitlines()) != 1:
                yield folder
    known: dict[bytes, bytes] = {}
    for place, name in enumerate(names):
        if form == "lmdb":
            fits = name not in ABOUT and len(name) <= LONGEST_KEY
        elif form == "tar":
            # two of one key would be one sample
            fits = known.setdefault(_stem(name), name) == name
            fits = fits and name.rpartition(b".")[2].lower() in IMAGES
            fits = fits and b"/." not in b"/" + name
        elif form == "arrow":
            fits = name.decode(errors="ignore").encode() == name
        else:
            folder, *rest = name.split(b"/")
            fits = folder == os.fsencode(columns.classes[columns.label[place]])
            fits = fits and bool(rest) and not {b"", b".", b".."} & {*rest}
            # read again they are in the order of their names, each once
            fits = fits and (not place or names[place - 1] < name)
        if not fits:
            yield name
