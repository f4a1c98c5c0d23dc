"""The manifest: what is known of every sample, as memory-mapped columns; must not know how a scan finds it.

home/                     one for each data folder and list of classes
    lock                  held while one process scans
    current               name of the newest scan
    scan-<id>/            never changed once it has this name
        manifest.json     version, classes, fingerprint, and size, date and digest of each column
        <column>.npy      COLUMNS
        visited.json      the folders seen and their dates
        rejected.txt      what was left out, and why
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

import numpy as np

from contracts import Array, escaped, one_line

_URL = re.compile(rb"[a-z][a-z0-9+.-]+://")
_QUERY = re.compile(r"\b([a-z][a-z0-9+.-]+)(://[^\s?]*)\?[^\s,;'\"]*")
BUCKETS = ("s3", "gs", "gcs")
"""Protocols whose URLs have no query: a ? is a letter of an object's key."""


class Rejected(Exception):
    """Why a file is no sample, in words for rejected.txt."""


class NotWritten(OSError):
    """A file of a scan under way could not be written: an error of the cache, and of no source."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Tell errors of the body apart from those of the source that is read around it: raise NotWritten."""
    try:
        yield
    except OSError as error:
        raise NotWritten(error.errno, error.strerror or str(error)) from error


# raw files of a scan under way: bytes, [n + 1], [n]
FILE_LIST = {"paths": np.uint8, "offsets": np.int64, "labels": np.int32}


class NoManifest(Exception):
    """The folder holds no manifest of this version, or a damaged one. Not for users: a scan makes it anew."""


S = TypeVar("S", bound="Manifest")


@dataclass(frozen=True, eq=False, kw_only=True)
class Manifest:
    """Columns on disk that a scan has left. Pickled as its folder's name, and mapped again where it arrives.

    While one is open, in any process, its folder is not removed by a newer scan.
    """

    VERSION: ClassVar[
        str
    ]  # of the columns' names and meaning: what another version has left is made anew
    COLUMNS: ClassVar[dict[str, np.dtype[Any]]]
    # the columns that the fingerprint is a digest of, beside the classes
    FINGERPRINT: ClassVar[tuple[str, ...]]
    RAGGED: ClassVar[
        dict[str, tuple[str, ...]]
    ]  # offsets [n + 1] -> the columns that they cut into pieces
    LATER: ClassVar[frozenset[str]] = (
        frozenset()
    )  # columns that are still written to after `seal`

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
            f"{self.rejected} left out, named in {self.folder / 'rejected.txt'}"
            if self.rejected
            else ""
        )

    def files(self, samples: Any) -> Any:
        """Return the file that each sample is in, for one id or an array of them."""
        return samples

    def entry(self, sample: int) -> bytes:
        """Return the name by which the source has listed the sample; any byte but 0 may occur.

        The name of a file is its path below root, or an absolute one.
        """
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        file = int(self.files(sample))
        return self.path_bytes[
            self.path_offsets[file] : self.path_offsets[file + 1]
        ].tobytes()

    def path(self, sample: int) -> bytes:
        """Return the absolute path of the sample's file, for a source whose samples are files."""
        return os.path.join(
            os.fsencode(self.root), self.entry(sample)
        )  # an absolute name stays one

    def paths(self, samples: Array) -> Array:
        """Return uint8 [B, L], the absolute paths of samples, each padded with at least one NUL.

        There is no Python loop over them.
        """
        prefix = np.frombuffer(os.fsencode(self.root) + b"/", np.uint8)
        files = self.files(samples)
        begins = self.path_offsets[files]
        lengths = self.path_offsets[files + 1] - begins
        width = int(lengths.max(initial=0)) + 1
        # axes: [B, width]
        places = np.arange(width)
        inside = places < lengths[:, None]
        names = np.where(
            inside, self.path_bytes[np.where(inside, begins[:, None] + places, 0)], 0
        )
        paths = np.concatenate(
            [np.broadcast_to(prefix, (len(samples), len(prefix))), names],
            axis=1,
            dtype=np.uint8,
        )
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
        """Map the columns of a scan. Raises NoManifest when anything about them is not as it was written."""
        hold = _hold(folder)
        try:
            about = json.loads((folder / "manifest.json").read_text())
            if about["version"] != cls.VERSION:
                raise NoManifest(f"version {about['version']}, not {cls.VERSION}")
            columns = {
                name: _column(
                    folder,
                    name,
                    dtype,
                    about["columns"][name],
                    sealed=name not in cls.LATER,
                )
                for name, dtype in cls.COLUMNS.items()
            }
            if len(columns["size"]) != about["samples"]:
                raise NoManifest(
                    f"{len(columns['size'])} sizes of {about['samples']} samples"
                )
            for offsets, cut in cls.RAGGED.items():
                if any(columns[offsets][-1] != len(columns[name]) for name in cut):
                    raise NoManifest(f"{offsets} does not fit {' and '.join(cut)}")
            opened = cls(
                folder=folder,
                root=Path(about["root"]),
                fingerprint=about["fingerprint"],
                classes=tuple(about["classes"]),
                rejected=about["rejected"],
                **columns,
            )
        except (OSError, ValueError, LookupError, TypeError, EOFError) as error:
            os.close(hold)
            raise NoManifest(f"{folder}: {error}") from error
        except BaseException:
            os.close(hold)
            raise
        weakref.finalize(
            opened, os.close, hold
        )  # until then `sweep` leaves the folder alone
        return opened

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self.folder,)


def _hold(folder: Path) -> int:
    """Return a descriptor with a shared lock on a scan's folder; `sweep` leaves it alone while that lives."""
    try:
        descriptor = os.open(folder / "manifest.json", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NoManifest(f"{folder}: {error.strerror}") from None
    with contextlib.suppress(
        OSError
    ):  # a file system without locks; there `sweep` removes nothing
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _column(
    folder: Path,
    name: str,
    dtype: np.dtype[Any],
    expected: dict[str, Any],
    *,
    sealed: bool,
) -> Array:
    path = folder / f"{name}.npy"
    status = path.stat()
    if status.st_size != expected["bytes"]:
        raise NoManifest(f"{path} has {status.st_size} bytes, not {expected['bytes']}")
    # Reading every column would take a second for ten million samples, so only what was written to since, or
    # copied, is read.
    if (
        sealed
        and status.st_mtime_ns != expected["mtime_ns"]
        and _digest(path) != expected["digest"]
    ):
        raise NoManifest(f"{path} has other contents than were written")
    values = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    if values.dtype != dtype or values.shape[:1] != (expected["length"],):
        raise NoManifest(
            f"{path} holds {values.dtype} {values.shape}, not {expected['length']} of {dtype}"
        )
    return values


def create_column(
    folder: Path, name: str, dtype: np.dtype[Any], length: int, *inner: int
) -> Array:
    """Create a column [length, *inner] to be filled, on disk from the start."""
    made: Array = np.lib.format.open_memmap(
        folder / f"{name}.npy", mode="w+", dtype=dtype, shape=(length, *inner)
    )
    return made


def seal(
    folder: Path,
    table: type[Manifest],
    *,
    root: Path,
    classes: Sequence[str],
    rejected: int,
) -> None:
    """Describe the finished columns of a folder and bring everything in it to the disk."""
    columns = {}
    fingerprint = hashlib.blake2b(json.dumps(list(classes)).encode(), digest_size=16)
    for name in table.COLUMNS:
        path = folder / f"{name}.npy"
        _sync(
            path
        )  # before its date is read: writing back what was mapped may change it
        values = np.load(path, mmap_mode="r")
        status = path.stat()
        columns[name] = {
            "length": len(values),
            "bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "digest": _digest(path),
        }
        if name in table.FINGERPRINT:
            fingerprint.update(memoryview(values))
    about = {
        "version": table.VERSION,
        "root": str(root),
        "fingerprint": fingerprint.hexdigest(),
        "classes": list(classes),
        "rejected": rejected,
    }
    (folder / "manifest.json").write_text(
        json.dumps({**about, "samples": columns["size"]["length"], "columns": columns})
    )
    for path in [*folder.iterdir(), folder]:
        _sync(path)


def publish(home: Path, made: Path, name: str) -> Path:
    """Give a sealed folder its name and make it the current one; after a crash the old or the new one is."""
    folder = home / name
    os.rename(made, folder)
    # replaced in one step: who reads `current` finds the old name or the new one
    pointer = home / f"tmp-{name}.current"
    pointer.write_text(name)
    _sync(pointer)
    os.replace(pointer, home / "current")
    _sync(home)  # a folder's names are on the disk only once it is synced itself
    return folder


def sweep(home: Path, keep: Path | None) -> None:
    """Remove scans that nobody has open, and what interrupted ones left. Only for the holder of the lock."""
    for path in home.iterdir():
        if path == keep or not path.name.startswith(("scan-", "tmp-")):
            continue
        with contextlib.suppress(OSError):
            if not path.is_dir():
                path.unlink()
            elif not (path / "manifest.json").exists():
                shutil.rmtree(path)
            else:
                # NFS: an exclusive lock needs write access
                descriptor = os.open(path / "manifest.json", os.O_RDWR | os.O_CLOEXEC)
                try:
                    # fails while somebody has the scan open: see _hold
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
                finally:
                    os.close(descriptor)


def is_url(name: str | bytes) -> bool:
    """Whether a name is a URL, and no path."""
    return bool(_URL.match(name if isinstance(name, bytes) else os.fsencode(name)))


def masked(text: str) -> str:
    """Return a text in which no URL has a password or a query, which may be a signature."""
    if "://" not in text:
        return text
    text = re.sub(r"://[^/\s@]*@", "://", text)
    return _QUERY.sub(
        lambda url: url[0] if url[1] in BUCKETS else f"{url[1]}{url[2]}?...", text
    )


def printable(path: bytes) -> str:
    """Return a path, or a masked URL, on one line: what is no printable UTF-8 is escaped."""
    return escaped(masked(path.decode("utf-8", "backslashreplace")))


BROKEN_LINK = "broken link"
MAY_COME_BACK = (BROKEN_LINK, f"cannot be read: {os.strerror(errno.EACCES)}")
"""Why files are left out that may be read later without any change of their folder: of a storage that is not
mounted, or by the rights that they have."""
LOOKED_AT_AGAIN = 100
"""Most of these that a later start looks at again: a storage that comes back brings all of its files."""


class Rejects:
    """rejected.txt: a line for each path that is left out, and why; `shut` are those of MAY_COME_BACK."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.count = 0
        self.first = ""
        self.shut: list[bytes] = []

    def __call__(self, path: bytes, why: str) -> None:
        line = f"{printable(path)}\t{one_line(why)}"
        with writing():
            self.file.write(line + "\n")
        self.count += 1
        self.first = self.first or line.replace("\t", ": ")
        if why in MAY_COME_BACK and len(self.shut) < LOOKED_AT_AGAIN:
            self.shut.append(path)


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
