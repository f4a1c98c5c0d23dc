"""Folders of image files, one a class: which files there are, and their bytes; must not know formats."""

from __future__ import annotations

import mimetypes
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from saturate.contracts import MAX_PIXELS, Array, Source, Split, UserError
from saturate.dataset.images.columns import Images
from saturate.dataset.images.scan import open_images
from saturate.dataset.scan import file_tree
from saturate.dataset.scan.byte_ranges import Files
from saturate.dataset.scan.cache import Progress
from saturate.dataset.scan.manifest import Manifest, Rejects, printable
from saturate.system import storage

FILES = True
HOLDS = "a folder with train/<class>/* and val/<class>/*"
MEND = (
    "put it back and go on with --resume auto, "
    "or take the files as they are with --rescan, which begins a new run"
)


class Folder(Source):
    """A contracts.FileSource over the files of a manifest: of images, videos or COCO's images."""

    files = True

    def __init__(self, manifest: Manifest, read_delay_s: float = 0.0) -> None:
        self.manifest = manifest
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.manifest)

    def name(self, sample: int) -> str:
        """Return the absolute path of the sample's file, on one line."""
        return printable(self.path(sample))

    def path(self, sample: int) -> bytes:
        """Return the absolute path of the sample's file, in the file system's encoding."""
        return self.manifest.path(sample)

    def paths(self, samples: Array) -> Array:
        """Return uint8 [B, L], absolute paths, each padded with NUL."""
        return self.manifest.paths(samples)

    def read(self, sample: int) -> bytes:
        """Return the file's bytes, `read_delay_s` later than the storage gave them.

        Raises UserError when the file is gone or its size is not the manifest's, OSError when the storage
        fails.
        """
        expected = int(self.manifest.size[sample])
        try:
            # not blocking: a pipe in its place must not stop the run
            file = os.open(
                self.path(sample), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            )
        except OSError as error:
            if storage.failed(error):
                raise
            raise changed(self.path(sample), error) from None
        try:
            require_regular(os.fstat(file), self.path(sample))
            # one byte more: a file that grew shows itself
            data = os.read(file, expected + 1)
            while len(data) < expected and (
                piece := os.read(file, expected + 1 - len(data))
            ):
                data += piece
            if len(data) != expected:
                self.check(sample, os.fstat(file).st_size)
        finally:
            os.close(file)
        if self.read_delay_s:
            time.sleep(self.read_delay_s)
        return data

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""
        require_size("a file", self.name, self.manifest, sample, size)


def require_size(
    what: str, name: Callable[[int], str], columns: Any, sample: int, size: int
) -> None:
    """Raise UserError when `size` bytes is not what the columns recorded of a sample."""
    expected = int(columns.size[sample])
    if size != expected:
        changed = f"{name(sample)} has {size} bytes, the manifest says {expected}"
        raise UserError(f"{what} of --data changed size: {changed}; {MEND}")


def changed(path: bytes, error: OSError) -> UserError:
    """Return the line for a file that was there when it was scanned, and is gone or locked."""
    how = (
        "is gone"
        if isinstance(error, FileNotFoundError)
        else f"cannot be read any more ({error.strerror})"
    )
    return UserError(f"a file of --data {how}: {printable(path)}; {MEND}")


def require_regular(status: os.stat_result, path: bytes) -> None:
    """Raise UserError where a pipe, or another such thing that may be waited for, is in a file's place."""
    if not stat.S_ISREG(status.st_mode):
        raise UserError(
            f"a file of --data is no regular file any more: {printable(path)}; {MEND}"
        )


def missing(data: Path, split: str) -> str:
    """Return what is not there: a folder of that name, or folders and images in it."""
    folder = data / split
    if not os.path.lexists(folder):
        return f"{split}/ folder"
    if not folder.is_dir():
        return f"folder {split}/, but a file of that name"
    others = False
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.is_dir() or (
                    mimetypes.guess_type(entry.name)[0] or ""
                ).startswith("image/"):
                    return ""
                others = True
    except OSError:
        return ""  # the scan will say why, and also of an empty folder
    return f"class folders in {split}/" if others else ""


def open(data: Path, split: str, *, read_delay_s: float = 0.0, **how: Any) -> Split:
    """Open the images of data/split/<class>/, as dataset.stores.SourceModule says. Raises UserError.

    `unwanted` folders, name -> why, are no classes; `chosen`: the others are, by --classes.
    """
    columns = open_folder(data / split, **how)
    return Split(columns=columns, source=Folder(columns, read_delay_s))


def open_folder(
    root: Path,
    *,
    cache: Path,
    classes: Sequence[str] | None = None,
    unwanted: Mapping[str, str] | None = None,
    chosen: bool = False,
    rescan: bool = False,
    max_pixels: int = MAX_PIXELS,
    workers: int = 0,
    progress: Progress | None = None,
) -> Images:
    """Return the columns of root/<class>/**/*, from `cache` when no folder has changed since.

    The classes are the sorted names of the folders that hold an image; the rest is as in
    dataset.images.scan.open_images. Raises UserError.
    """
    real = Path(os.path.realpath(root))
    if not file_tree.is_folder(real):
        raise UserError(
            f"--data: {root} {'is no folder' if real.exists() else 'does not exist'}; "
            f"images are expected in {root}/<class>/"
        )

    def list_files(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> dict[str, int]:
        file_tree.remember(visits, os.fsencode(real))
        labels = file_tree.labels(
            real, classes, visits, rejects, unwanted=unwanted, chosen=chosen
        )
        file_tree.list_files(real, labels, made, visits, rejects, say)
        return labels

    return open_images(
        root,
        Files(real),
        list_files,
        key=[*sorted(unwanted or ()), *["/"] * chosen],
        where=f"{real}/<class>/",
        classes=classes,
        cache=cache,
        rescan=rescan,
        max_pixels=max_pixels,
        workers=workers,
        progress=progress,
    )
