"""Stores that `scripts.pack` writes: an LMDB, tar shards, Arrow files, folders."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import lmdb
import numpy as np
import pyarrow

from saturate.contracts import LabelColumns, UserError
from saturate.dataset.scan.manifest import printable
from saturate.dataset.stores.bucket import ORDER
from saturate.dataset.stores.lmdb import ABOUT, LONGEST_KEY, samples_of
from saturate.dataset.stores.tar import IMAGES
from saturate.system.user_files import below, create, is_foreign

FIRST_MAP = 1 << 28
"""Bytes of an LMDB; doubled whenever they are full."""


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

    def finish(self, names: Sequence[bytes], columns: LabelColumns) -> None:
        """Complete the store of these samples, of these names, and bring it to the disk."""

    def close(self) -> None:
        """Let go of what is open."""


class Lmdb(Writer):
    """train.lmdb, a file: name -> bytes, and the list of the samples with their labels."""

    def __init__(self, work: Path, split: str) -> None:
        self.store = work / f"{split}.lmdb"
        try:
            self._opened = lmdb.open(str(self.store), subdir=False, map_size=FIRST_MAP)
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
            except lmdb.MapFullError:
                self._opened.set_mapsize(2 * self._opened.info()["map_size"])
            except lmdb.Error as error:
                # LMDB calls a write that the disk cut short an input/output error
                raise OSError(errno.EIO, f"{error}: is the disk full?") from None

    def finish(self, names: Sequence[bytes], columns: LabelColumns) -> None:
        self._put(samples_of(names, np.asarray(columns.label), columns.classes))
        self.close()
        Path(f"{self.store}-lock").unlink(missing_ok=True)

    def close(self) -> None:
        self._opened.close()


class Tar(Writer):
    """train/*.tar: an image under its name, and .cls beside it; classes.txt names the numbers in .cls."""

    SHARD = 1 << 30
    """Bytes behind which a new shard begins."""

    def __init__(self, work: Path, split: str) -> None:
        super().__init__(work, split)
        self._shard = 0
        self._file: BinaryIO | None = None

    def write(self, batch: Sequence[Packed]) -> None:
        for sample in batch:
            if self._file is None:
                name = f"{self._shard:06d}.tar"
                self._file = open(self.store / name, "wb")  # noqa: SIM115
            self._file.write(_member(sample.name, sample.content))
            label = b"%d" % sample.label
            self._file.write(_member(_stem(sample.name) + b".cls", label))
            if self._file.tell() >= self.SHARD:
                self._end()

    def _end(self) -> None:
        """Complete the shard that is open."""
        if self._file is not None:
            self._file.write(bytes(1024))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._shard += 1

    def finish(self, names: Sequence[bytes], columns: LabelColumns) -> None:
        self._end()
        text = "".join(f"{name}\n" for name in columns.classes)
        (self.store / "classes.txt").write_bytes(os.fsencode(text))
        _keep_order(self.store, names)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _keep_order(store: Path, names: Sequence[bytes]) -> None:
    """Say beside shards that their samples are not in the order of their names, where they are not."""
    if any(name >= following for name, following in pairwise(names)):
        (store / ORDER).write_text("samples are in the order of the shards\n")


def _stem(name: bytes) -> bytes:
    """Return the key of a sample: its name up to the first dot of the last part."""
    folder, slash, last = name.rpartition(b"/")
    return folder + slash + last.partition(b".")[0]


def _member(name: bytes, content: bytes) -> bytes:
    member = tarfile.TarInfo(os.fsdecode(name))
    member.size = len(content)
    header = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


class Arrow(Writer):
    """train/data-00000.arrow as datasets.Dataset.save_to_disk writes it: structs of bytes and path, and labels."""

    NAME = "data-00000.arrow"

    def __init__(self, work: Path, split: str) -> None:
        super().__init__(work, split)
        image = pyarrow.struct(
            [("bytes", pyarrow.binary()), ("path", pyarrow.string())]
        )
        self._schema = pyarrow.schema([("image", image), ("label", pyarrow.int64())])
        self._file = open(self.store / self.NAME, "wb")  # noqa: SIM115
        self._stream = pyarrow.ipc.new_stream(self._file, self._schema)

    def write(self, batch: Sequence[Packed]) -> None:
        images = [
            {"bytes": sample.content, "path": sample.name.decode()} for sample in batch
        ]
        columns = {"image": images, "label": [sample.label for sample in batch]}
        self._stream.write_batch(pyarrow.record_batch(columns, self._schema))

    def finish(self, names: Sequence[bytes], columns: LabelColumns) -> None:
        self._stream.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        state: dict[str, Any] = {
            "_data_files": [{"filename": self.NAME}],
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
        _keep_order(self.store, names)

    def close(self) -> None:
        self._file.close()


class Folder(Writer):
    """train/<class>/*, files."""

    def write(self, batch: Sequence[Packed]) -> None:
        for sample in batch:
            path = below(self.store, os.fsdecode(sample.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            with create(path) as file:
                file.write(sample.content)

    def finish(self, names: Sequence[bytes], columns: LabelColumns) -> None:
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
    "folder": "names begin with their class and a slash, and ascend; no part of them is empty or hidden, or leads "
    "elsewhere",
}
"""--format -> what it asks of names and classes."""


def require(form: str, names: Sequence[bytes], columns: LabelColumns) -> None:
    """Raise UserError for a name or a class that a store of this form cannot hold."""
    for name in _refused(form, names, columns):
        raise UserError(
            f"--format {form} cannot hold '{printable(name)}': {NAMES[form]}; take --format "
            f"{'tar' if form == 'lmdb' else 'lmdb'}"
        )


def _refused(
    form: str, names: Sequence[bytes], columns: LabelColumns
) -> Iterator[bytes]:
    if form == "tar":
        for folder in map(os.fsencode, columns.classes):
            if folder != folder.strip() or len(folder.splitlines()) != 1:
                yield folder
    known: dict[bytes, int] = {}
    for place, name in enumerate(names):
        if form == "lmdb":
            fits = name not in ABOUT and len(name) <= LONGEST_KEY
        elif form == "tar":
            # two of one key would be one sample
            fits = known.setdefault(_stem(name), place) == place
            fits = fits and name.rpartition(b".")[2].lower() in IMAGES
            fits = fits and b"/." not in b"/" + name
        elif form == "arrow":
            fits = name.decode(errors="ignore").encode() == name
        else:
            folder, *rest = name.split(b"/")
            fits = folder == os.fsencode(columns.classes[columns.label[place]])
            fits = fits and bool(rest) and not is_foreign(os.fsdecode(name))
            # read again they are in the order of their names, each once
            fits = fits and (not place or names[place - 1] < name)
        if not fits:
            yield name
