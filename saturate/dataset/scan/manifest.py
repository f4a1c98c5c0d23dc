"""The manifest: what is known of every sample, as memory-mapped columns; must not know how a scan finds it.

home/                     one for each data folder and list of classes
    lock                  held while one process scans
    scan-<time>-<pid>/    never changed once it has this name; the newest one counts
        manifest.json     version, classes, fingerprint, and the length of each column
        <column>.npy      COLUMNS
        visited.json      the folders seen and their dates
        rejected.txt      what was left out, and why
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

import numpy as np

from saturate.contracts import Array, escaped, one_line
from saturate.system.urls import masked as masked

PIECE = 1 << 20
"""Names that are copied at once: bounds the memory."""
Name = str | bytes | os.PathLike[str]
_URL = re.compile(rb"[a-z][a-z0-9+.-]+://")


class Rejected(Exception):
    """Why a file is no sample, in words for rejected.txt."""


class NotWritten(OSError):
    """Writing a file of a scan under way failed; the data source is fine."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Tell errors of the body apart from those of the source that is read around it: raise NotWritten."""
    try:
        yield
    except OSError as error:
        raise NotWritten(error.errno, error.strerror or str(error)) from error


# raw files of a scan under way: bytes, [n + 1], [n]
FILE_LIST = {"paths": "u1", "offsets": "i8", "labels": "i4"}


def file_list(made: Path) -> tuple[Array, Array, Array]:
    """Map made/file_list.*: uint8 paths, int64 offsets [n + 1] and int32 labels [n]."""
    paths, offsets, labels = (
        mapped(made / f"file_list.{name}", dtype) for name, dtype in FILE_LIST.items()
    )
    return paths, offsets, labels


def mapped(path: Path, dtype: str) -> Array:
    """Map a raw file of a scan under way."""
    # an empty file cannot be mapped
    if not path.stat().st_size:
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))


class NoManifest(Exception):
    """The folder holds no manifest of this version, or a damaged one. Not for users: a scan makes it anew."""


S = TypeVar("S", bound="Manifest")
Samples = TypeVar("Samples", int, Array)


@dataclass(frozen=True, eq=False, kw_only=True)
class Manifest:
    """Columns on disk that a scan has left. Pickled as its folder's name, and mapped again where it arrives.

    A newer scan leaves its folder where it is, and the one after that removes it.
    """

    # of the columns' names and meaning: what another version has left is made anew
    VERSION: ClassVar[str]
    # name -> dtype, of what every table has, and of its own
    COLUMNS: ClassVar[dict[str, str]] = {"path_bytes": "u1", "path_offsets": "i8"}
    # the columns that the fingerprint is a digest of, beside the classes
    FINGERPRINT: ClassVar[tuple[str, ...]]

    folder: Path  # where the columns lie
    root: Path  # absolute: where the source lies; paths of files are relative to it
    fingerprint: str  # the same data elsewhere, or scanned again, has the same
    classes: tuple[str, ...]
    # lines of folder / rejected.txt: what was left out, and class folders of which nothing is left
    rejected: int
    path_bytes: Array  # uint8 [bytes of all paths]
    path_offsets: Array  # int64 [files + 1]
    size: Array  # int64 [n], bytes of the file

    def __len__(self) -> int:
        return len(self.size)

    @property
    def left_out(self) -> str:
        """Say how much the scan has left out, and where that is named; "" where nothing was."""
        return (
            f"left out: {self.rejected} (files, lines, empty classes), named in {self.folder / 'rejected.txt'}"
            if self.rejected
            else ""
        )

    def files(self, samples: Samples) -> Samples:
        """Return the file that each sample is in, for one id or an array of them."""
        return samples

    def entry(self, sample: int) -> bytes:
        """Return the name by which the source has listed the sample; any byte but 0 may occur.

        The name of a file is its path below root, or an absolute one.
        """
        file = int(self.files(sample))
        begin, end = self.path_offsets[file : file + 2]
        return self.path_bytes[begin:end].tobytes()

    def path(self, sample: int) -> bytes:
        """Return the absolute path of the sample's file, for a source whose samples are files."""
        # an absolute name stays one
        return os.path.join(os.fsencode(self.root), self.entry(sample))

    def paths(self, samples: Array) -> Array:
        """Return uint8 [B, L], the absolute paths of samples, each padded with at least one NUL.

        There is no Python loop over them.
        """
        prefix = np.frombuffer(os.fsencode(self.root) + b"/", np.uint8)
        files = self.files(samples)
        begins = self.path_offsets[files][:, None]
        ends = self.path_offsets[files + 1][:, None]
        width = int((ends - begins).max(initial=0)) + 1
        # axes: [B, width]
        places = begins + np.arange(width)
        inside = places < ends
        names = np.where(inside, self.path_bytes[np.where(inside, places, 0)], 0)
        paths = np.zeros((len(samples), len(prefix) + width), np.uint8)
        paths[:, : len(prefix)] = prefix
        paths[:, len(prefix) :] = names
        absolute = names[:, 0] == ord("/")
        if absolute.any():
            paths[absolute] = np.pad(names[absolute], ((0, 0), (0, len(prefix))))
        return paths

    @property
    def class_names(self) -> Sequence[str]:
        """Return the names of the classes that samples may have, in the order that `numbered` takes."""
        return self.classes

    @classmethod
    def open(cls: type[S], folder: Path) -> S:
        """Map the columns of a scan. Raises NoManifest where they are of another version, or have changed."""
        try:
            return cls._map(folder)
        except (OSError, ValueError, LookupError, TypeError, EOFError) as error:
            raise NoManifest(f"{folder}: {error}") from error

    @classmethod
    def _map(cls: type[S], folder: Path) -> S:
        about = json.loads((folder / "manifest.json").read_text())
        if about["version"] != cls.VERSION:
            raise ValueError(f"version {about['version']}, not {cls.VERSION}")
        columns = {}
        for name, dtype in cls.COLUMNS.items():
            column = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if column.dtype != dtype or len(column) != about["lengths"][name]:
                raise ValueError(f"{name}.npy is not what was written")
            columns[name] = np.asarray(column)
        return cls(
            folder=folder,
            root=Path(about["root"]),
            fingerprint=about["fingerprint"],
            classes=tuple(about["classes"]),
            rejected=about["rejected"],
            **columns,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self.folder,)


def write_column(folder: Path, name: str, dtype: str, values: Array) -> None:
    """Write a column on disk."""
    np.lib.format.open_memmap(
        folder / f"{name}.npy", mode="w+", dtype=dtype, shape=values.shape
    )[...] = values


def write_paths(made: Path, good: Array) -> None:
    """Write the columns of paths: the names of the `good` entries, bool [n], of made/file_list.*."""
    paths, offsets, _ = file_list(made)
    lengths = np.diff(offsets)
    good_offsets = np.lib.format.open_memmap(
        made / "path_offsets.npy", "w+", offsets.dtype, (int(good.sum()) + 1,)
    )
    np.cumsum(lengths[good], out=good_offsets[1:])
    path_bytes = np.lib.format.open_memmap(
        made / "path_bytes.npy", "w+", paths.dtype, (int(good_offsets[-1]),)
    )
    end = 0
    for first in range(0, len(good), PIECE):
        part = slice(first, first + PIECE)
        names = paths[offsets[first] : offsets[min(part.stop, len(good))]]
        good_names = names[np.repeat(good[part], lengths[part])]
        path_bytes[end : end + len(good_names)] = good_names
        end += len(good_names)


def offsets_of(counts: Array | Sequence[int]) -> Array:
    """Return int64 [n + 1], where each of n pieces of so many values begins, and the end."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def seal(
    folder: Path,
    table: type[Manifest],
    *,
    root: Path,
    classes: Sequence[str],
    rejected: int,
) -> None:
    """Describe the finished columns of a folder and bring everything in it to the disk."""
    lengths = {}
    fingerprint = hashlib.blake2b(json.dumps(list(classes)).encode(), digest_size=16)
    for name in table.COLUMNS:
        values = np.load(folder / f"{name}.npy", mmap_mode="r")
        lengths[name] = len(values)
        if name in table.FINGERPRINT:
            fingerprint.update(memoryview(values))
    about = {
        "version": table.VERSION,
        "root": str(root),
        "fingerprint": fingerprint.hexdigest(),
        "classes": list(classes),
        "rejected": rejected,
        "lengths": lengths,
    }
    (folder / "manifest.json").write_text(json.dumps(about))
    for path in [*folder.iterdir(), folder]:
        _sync(path)


def publish(home: Path, made: Path, name: str) -> Path:
    """Give a sealed folder its name, the last one of `newest`."""
    folder = home / name
    os.rename(made, folder)
    _sync(home)  # a folder's names are on the disk only once it is synced itself
    return folder


def newest(home: Path) -> Path | None:
    """Return the scan that was finished last; names begin with the time. None: there is none."""
    return max(home.glob("scan-*"), default=None)


def sweep(home: Path) -> None:
    """Remove what interrupted scans left, and all scans but the two newest: a worker of a run may start late.

    Only for the holder of the lock.
    """
    for path in [*home.glob("tmp-*"), *sorted(home.glob("scan-*"))[:-2]]:
        shutil.rmtree(path, ignore_errors=True)


def is_url(name: str | bytes) -> bool:
    """Whether a name is a URL, and no path."""
    return bool(_URL.match(os.fsencode(name)))


def printable(path: Name) -> str:
    """Return a path, or a masked URL, on one line: what is no printable UTF-8 is escaped."""
    return escaped(masked(os.fsencode(path).decode("utf-8", "backslashreplace")))


BROKEN_LINK = "broken link"


@dataclass
class Rejects:
    """rejected.txt: a line for each path that is left out, and why."""

    file: TextIO
    count: int = 0
    first: str = ""

    def __call__(self, path: Name, why: str, *, is_mistake: bool = True) -> None:
        """Name what is left out; `first` is the first that is a mistake, as the heading of a list is not."""
        line = f"{printable(path)}\t{one_line(why)}"
        with writing():
            self.file.write(line + "\n")
        self.count += 1
        if is_mistake:
            self.first = self.first or line.replace("\t", ": ")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
