"""Folders of image files, one a class: which files there are, and their bytes; must not know formats."""

from __future__ import annotations

import errno
import os
import stat
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from saturate.contracts import Array, Source, Split, UserError
from saturate.dataset.images.columns import Images
from saturate.dataset.images.scan import open_images
from saturate.dataset.scan import file_tree
from saturate.dataset.scan.byte_ranges import Files, ReadAt
from saturate.dataset.scan.cache import Options
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.manifest import Manifest, printable
from saturate.dataset.scan.names import is_media
from saturate.system import storage
from saturate.system.user_files import (
    NOT_REGULAR,
    is_no_file,
    open_bytes,
    read_bytes,
)

FILES = True
HOLDS = "a folder with train/<class>/* and val/<class>/*"
LABELS = ""
MEND = (
    "put it back and go on with --resume auto, "
    "or take the files as they are with --rescan, which begins a new run"
)


class StoredSource(Source):
    """A source of the samples that a manifest lists. A subclass reads them, and gives `shown`.

    A source is pickled into worker processes, and opens nothing before its first read.
    """

    noun: str  # of a sample, in messages

    def __init__(self, columns: Manifest, read_delay_s: float = 0.0) -> None:
        self.columns = columns
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.columns)

    @abstractmethod
    def shown(self, sample: int) -> bytes:
        """Return the place of the sample and its name, as bytes: a name may be no UTF-8."""

    def name(self, sample: int) -> str:
        """Return what `shown` does as printable text on one line."""
        return printable(self.shown(sample))

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""
        expected = int(self.columns.size[sample])
        if size != expected:
            changed = (
                f"{self.name(sample)} has {size} bytes, the manifest says {expected}"
            )
            raise UserError(f"{self.noun} of --data changed size: {changed}; {MEND}")


class Folder(StoredSource):
    """A contracts.FileSource over the files of a manifest: of images, videos or COCO's images."""

    files = True
    noun = "a file"

    def path(self, sample: int) -> bytes:
        """Return the absolute path of the sample's file, in the file system's encoding."""
        return self.columns.path(sample)

    shown = path

    def paths(self, samples: Array) -> Array:
        """Return uint8 [B, L], absolute paths, each padded with NUL."""
        return self.columns.paths(samples)

    def read(self, sample: int) -> bytes:
        """Return the file's bytes, `read_delay_s` later than the storage gave them.

        Raises UserError when the file is gone or its size is not the manifest's, OSError when the storage
        fails.
        """
        expected = int(self.columns.size[sample])
        try:
            # one byte more: a file that grew shows itself
            data = read_bytes(self.path(sample), expected + 1)
            if len(data) < expected:
                self.check(sample, len(data))
            elif len(data) > expected:
                self.check(sample, max(len(data), os.stat(self.path(sample)).st_size))
        except OSError as error:
            if storage.failed(error):
                raise
            raise changed(self.path(sample), error) from None
        if self.read_delay_s:
            time.sleep(self.read_delay_s)
        return data

    @contextmanager
    def opened(self, sample: int) -> Iterator[tuple[int, ReadAt]]:
        """Open the sample's file; --read-delay-ms is waited for behind its reads. Raises UserError and OSError."""
        with open_bytes(self.path(sample)) as file:
            number = file.fileno()
            size = os.fstat(number).st_size
            self.check(sample, size)
            yield size, lambda offset, length: os.pread(number, length, offset)
        if self.read_delay_s:
            time.sleep(self.read_delay_s)


def changed(path: bytes, error: OSError) -> UserError:
    """Return the line for a file that was there when it was scanned, and is gone or locked."""
    how = f"cannot be read any more ({error.strerror})"
    if isinstance(error, FileNotFoundError):
        how = "is gone"
    elif is_no_file(error):
        how = "is no regular file any more"
    return UserError(f"a file of --data {how}: {printable(path)}; {MEND}")


def require_regular(status: os.stat_result, path: bytes) -> None:
    """Raise UserError where a pipe, or another such thing that may be waited for, is in a file's place."""
    if not stat.S_ISREG(status.st_mode):
        raise changed(path, OSError(errno.EINVAL, NOT_REGULAR))


def missing(data: Path, split: str) -> str:
    """Return what is not there: a folder of that name, or folders and images in it."""
    folder = data / split
    if not os.path.lexists(folder):
        return f"{split}/ folder"
    if not folder.is_dir():
        return f"folder {split}/, but a file of that name"
    others = False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir() or is_media(entry.name, "image"):
                    return ""
                others = True
    except OSError:
        return ""  # the scan will say why, and also of an empty folder
    return f"class folders in {split}/" if others else ""


def open(
    data: Path,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    unwanted: Mapping[str, str] | None = None,
    chosen: bool = False,
    read_delay_s: float = 0.0,
    **how: Unpack[Options],
) -> Split[Images]:
    """Open the images of data/split/<class>/, as dataset.stores.SourceModule says. Raises UserError.

    `unwanted` folders, name -> why, are no classes; `chosen`: the others are, by --classes.
    """
    columns = open_folder(
        data / split, classes=classes, unwanted=unwanted, chosen=chosen, **how
    )
    return Split(columns=columns, source=Folder(columns, read_delay_s))


def open_folder(
    root: Path,
    *,
    classes: Sequence[str] | None = None,
    unwanted: Mapping[str, str] | None = None,
    chosen: bool = False,
    **how: Unpack[Options],
) -> Images:
    """Return the columns of root/<class>/**/*, from the cache when no folder has changed since.

    The classes are the sorted names of the folders that hold an image; the rest is as in
    dataset.images.scan.open_images. Raises UserError.
    """
    real = Path(os.path.realpath(root))
    if not file_tree.is_folder(real):
        raise UserError(
            f"--data: {root} {'is no folder' if real.exists() else 'does not exist'}; "
            f"images are expected in {root}/<class>/"
        )

    def list_files(scan: Scan) -> dict[str, int]:
        scan.remember("")
        labels = file_tree.labels(scan, classes, unwanted=unwanted, chosen=chosen)
        file_tree.list_files(scan, labels)
        return labels

    return open_images(
        root,
        Files(real),
        list_files,
        key=[*sorted(unwanted or ()), *["/"] * chosen],
        where=f"{real}/<class>/",
        classes=classes,
        **how,
    )
