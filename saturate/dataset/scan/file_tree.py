"""Which files lie below a folder, and if a folder has changed; must not know formats, orders or pixels."""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from saturate.contracts import Array, UserError
from saturate.dataset.scan import names as named
from saturate.dataset.scan.manifest import (
    BROKEN_LINK,
    FILE_LIST,
    Name,
    Rejects,
    printable,
    writing,
)
from saturate.system import storage
from saturate.system.user_files import open_bytes

T = TypeVar("T")
# a path below the root (os.fsdecode), its mtime and its ctime in ns, its inode, of a file its `_look`
Visit = tuple[str, int, int, int, int]
BEGINNING = 1 << 14
"""Bytes of a file that tell of a change beside its size and date."""
PIECE = 10_000
"""Files that `walk` yields at once: bounds the memory, and progress is told of as often."""
Reject = Callable[[bytes, str], None]  # absolute path, reason
Progress = Callable[[int, int, str], None]
"""(done, total, what is read): total is 0 while it is not known."""
NO_DATA = "belongs to the storage, and not to the data"
ARTICLE = {"image": "an", "video": "a"}


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A scan under way."""

    root: Path  # absolute: names of files are below it
    made: Path  # its folder: columns, and file_list.*, which are removed in the end
    rejects: Rejects
    progress: Progress
    # folders and files that show a later change
    visits: list[Visit] = field(default_factory=list)

    def remember(self, *names: Name) -> None:
        """Add folders and files, by paths below the root or absolute ones. Raises UserError."""
        root = os.fsencode(self.root)
        for name in names:
            try:
                self.visits.append(visit(root, os.fsencode(name))[0])
            except OSError as error:
                path = printable(self.root / os.fsdecode(name))
                raise storage.end_scan(error, path) from None
            settle(max(self.visits[-1][1:3]))

    def remember_folders(self, files: Iterable[bytes]) -> None:
        """Add the folders of listed files, where one that is missing may appear. Raises UserError."""
        parents = set[bytes]()
        for folder in {os.path.dirname(file) for file in files}:
            # of one that is missing the folder that it would be put into
            name = folder
            while name and not is_folder(os.path.join(os.fsencode(self.root), name)):
                name = os.path.dirname(name)
            # above the root anything may change
            if name in (folder, b"") or name.strip(b"./"):
                parents.add(name)
        self.remember(*sorted(parents))


def labels(
    scan: Scan,
    classes: Sequence[str] | None,
    wanted: Literal["image", "video"] = "image",
    unwanted: Mapping[str, str] | None = None,
    chosen: bool = False,
) -> dict[str, int]:
    """Return the label of each class folder (or link to one) in the root of a scan.

    It is the place in `classes`, else among the sorted names, as in ImageFolder. What lies beside the class
    folders is rejected, and so are `unwanted` folders, with the reason, and a folder without a file that
    none of the `classes` is; such folders are remembered. Raises UserError, also where one
    folder has those of all other classes, as a copy of the set within itself, and none was `chosen` by --classes.
    """
    root, reject = scan.root, scan.rejects
    known = named.place_of(classes or ())
    try:
        names = [name for name in names_below(root) if not name.startswith(".")]
    except OSError as error:
        raise UserError(f"--data: {root} cannot be listed: {error.strerror}") from None
    class_folders = []
    for name in names:
        path = os.fsencode(root / name)
        if named.of_the_storage(name):
            reject(path, NO_DATA)
        elif why := (unwanted or {}).get(name):
            reject(path, why)
        elif is_folder(path):
            if (
                classes is not None
                and named.find(name, known) is None
                and not _holds_file(root, name, scan.visits)
            ):
                reject(path, f"class without {ARTICLE[wanted]} {wanted}")
            else:
                class_folders.append(name)
        elif os.path.islink(path) and not os.path.exists(path):
            reject(path, BROKEN_LINK)
        elif named.is_media(name, wanted):
            reject(path, "lies in no class folder")
    if not class_folders:
        raise UserError(
            f"--data: {root} has no class folders; {wanted}s are expected in {root}/<class>/"
        )
    if classes is None and not chosen and (copy := _copy_of_all(root, class_folders)):
        flag = ", or name the classes, or all, with --classes" * (wanted == "image")
        raise UserError(
            f"--data: {root}/{printable(copy)} has a folder of the name of each other class, and may be "
            f"a copy of the set: move it elsewhere{flag}"
        )
    return numbered(class_folders, classes, f"{root} has class folder", f"{wanted}s")


def _copy_of_all(root: Path, class_folders: Sequence[str]) -> str:
    """Return the one folder that has folders of the names of all others; "" for none, and where several have."""
    copies = [
        name
        for name in class_folders
        if all(
            is_folder(root / name / other) for other in class_folders if other != name
        )
    ]
    return copies[0] if len(copies) == 1 < len(class_folders) - 1 else ""


def names_below(folder: Path) -> list[str]:
    """Return the sorted names in a folder. Raises OSError, and StorageFault."""
    return sorted(_asked(partial(os.listdir, folder), os.fsencode(folder)))


def _holds_file(root: Path, name: str, visits: list[Visit]) -> bool:
    """Whether any file lies below a folder, as far as it can be listed. A file that comes later is seen."""
    files = walk(os.fsencode(root), os.fsencode(name), [], visits, lambda *_: None)
    return next(files, None) is not None


def is_folder(path: str | bytes | Path) -> bool:
    """Whether a path is a folder, or a link to one. Raises StorageFault: no answer is not a no."""
    path = os.fsencode(path)
    try:
        return stat.S_ISDIR(_asked(partial(os.stat, path), path).st_mode)
    except OSError:
        return False


def _asked(call: Callable[[], T], path: bytes) -> T:
    """Return what a call of the storage does. Raises OSError, and StorageFault where it does not answer."""
    return storage.in_scan(call, partial(printable, path))


def numbered(
    names: Sequence[str], classes: Sequence[str] | None, has: str, files: str = "images"
) -> dict[str, int]:
    """Return the label of each class name: its place in `classes`, else among the names, which are sorted.

    `has` begins the message of the UserError for a class that is none of `classes`.
    """
    known = names if classes is None else classes
    places = named.place_of(known)
    numbers = {name: named.find(name, places) for name in names}
    unknown = [name for name in names if numbers[name] is None]
    if unknown:
        raise UserError(
            f"--data: {has} '{printable(unknown[0])}' ({len(unknown)} such), "
            f"which is none of the {len(known)} classes of the training data; "
            f"remove or rename it, or add one of that name there, with {files} that can be read"
        )
    return {name: number for name, number in numbers.items() if number is not None}


def list_files(scan: Scan, labels: dict[str, int]) -> None:
    """Write path, end and label of every candidate below class folders to made/file_list.*.

    They are in the order of the paths' bytes.
    """
    root = scan.root
    # a link to one of these leads back to itself: it would be followed for ever
    above = [visit(os.fsencode(folder))[1] for folder in (root, *root.parents)]

    def pieces() -> Iterator[tuple[list[bytes], Array]]:
        total = 0
        # with the slash, as the paths of their files sort: a-b/ comes before a/
        for name in sorted(labels, key=lambda name: os.fsencode(name) + b"/"):
            for files in walk(
                os.fsencode(root), os.fsencode(name), above, scan.visits, scan.rejects
            ):
                yield files, np.full(len(files), labels[name])
                total += len(files)
                scan.progress(total, 0, "listing files")

    write_file_list(scan.made, pieces())


def write_file_list(
    made: Path, pieces: Iterable[tuple[Sequence[bytes], Sequence[int] | Array]]
) -> None:
    """Write made/file_list.*: the names of entries and their labels, a piece at a time, and where each name ends."""
    end = 0
    with ExitStack() as stack:
        with writing():
            paths, offsets, of_classes = (
                stack.enter_context((made / f"file_list.{name}").open("wb"))
                for name in FILE_LIST
            )
            offsets.write(np.zeros(1, "i8").tobytes())
        for names, labels in pieces:
            ends = end + np.cumsum([*map(len, names)], dtype="i8")
            end = ends[-1] if names else end
            with writing():
                paths.write(b"".join(names))
                offsets.write(ends.tobytes())
                of_classes.write(np.asarray(labels, "i4").tobytes())
        with writing():
            stack.close()


def visit(root: bytes, name: bytes = b"") -> tuple[Visit, tuple[int, int]]:
    """Return how a folder or file looks from outside, and which it is (device, inode).

    Raises OSError, and StorageFault.
    """
    # an absolute name is one of a list
    path = os.path.join(root, name) if name else root
    status = _asked(partial(os.stat, path), path)
    look = 0
    if stat.S_ISREG(status.st_mode):
        look = _asked(partial(_look, path, status.st_size), path)
    # the system alone sets the ctime: a date that was put back has a new one
    dates = status.st_mtime_ns, status.st_ctime_ns
    return (os.fsdecode(name), *dates, status.st_ino, look), (
        status.st_dev,
        status.st_ino,
    )


def _look(path: bytes, size: int) -> int:
    """Return a checksum of a file's size and beginning, where an LMDB has its last transaction.

    What is written through a mapping need not change the date. Raises OSError.
    """
    with open_bytes(path) as file:
        return zlib.crc32(file.read(BEGINNING), size & 0xFFFFFFFF)


def still_so(root: bytes, seen: Sequence[object]) -> bool:
    """Whether a folder or a file looks as it did when it was visited. Raises OSError."""
    try:
        return list(visit(root, os.fsencode(str(seen[0])))[0]) == seen
    except (FileNotFoundError, PermissionError):
        return False


def settle(changed_ns: int) -> None:
    """Sleep one tick of the file system's clock, so that a later change gets a new mtime."""
    # whole seconds: a coarse file system
    tick_ns = 2_000_000_000 if changed_ns % 1_000_000_000 == 0 else 20_000_000
    left_ns = changed_ns + tick_ns - time.time_ns()
    if 0 < left_ns <= tick_ns:
        time.sleep(left_ns / 1e9)


def walk(
    root: bytes,
    folder: bytes,
    above: Sequence[tuple[int, int]],
    visits: list[Visit],
    reject: Reject,
) -> Iterator[list[bytes]]:
    """Yield the files below root/folder, relative to root, in the order of their bytes, a piece at a time.

    Follows links, but not to a folder that the link lies in, or a second time to the same one, since links
    that lead to links would be followed for ever; `above` are those above root/folder. Hidden files and
    folders are passed over. What is no file, and folders that are gone by now, go to `reject`; every folder
    seen is added to `visits`. Raises StorageFault for a folder that may not be listed.
    """
    inside = [*above]
    entered: list[Iterator[bytes]] = []
    linked = set[tuple[int, int]]()

    def enter(folder: bytes) -> None:
        """List a folder, whose names then come next, or give it to `reject`."""
        path = os.path.join(root, folder)
        try:
            seen, identity = visit(root, folder)
            if identity in inside:
                reject(path, "link to a folder that it lies in")
                return
            if os.path.islink(path):
                if identity in linked:
                    reject(path, "link to a folder that another link has led to")
                    return
                linked.add(identity)
            visits.append(seen)
            settle(max(seen[1:3]))
            names, others = _asked(partial(_names_in, path), path)
        except OSError as error:
            if storage.lost(error, folder=True):
                raise storage.end_scan(error, printable(path)) from None
            reject(path, f"folder cannot be listed: {error.strerror}")
            return
        for other, why in others:
            reject(other, why)
        inside.append(identity)
        entered.append(os.path.join(folder, name) for name in names)

    # a stack and no recursion: folders lie in one another as deep as a path is long
    enter(folder)
    files: list[bytes] = []
    while entered:
        for name in entered[-1]:
            is_dir = name.endswith(b"/")
            if not is_dir:
                files.append(name)
            if files and (is_dir or len(files) == PIECE):
                yield files
                files = []
            if is_dir:
                enter(name[:-1])
                break
        else:
            entered.pop()
            inside.pop()
    if files:
        yield files


def _names_in(folder: bytes) -> tuple[list[bytes], list[tuple[bytes, str]]]:
    """Return the names in a folder, and what is no file, with the reason.

    Names of folders end in a slash, and so sort as their files' paths do. Raises OSError.
    """
    names = []
    others: list[tuple[bytes, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                continue
            if named.of_the_storage(os.fsdecode(entry.name)):
                others.append((entry.path, NO_DATA))
                continue
            try:
                if entry.is_dir():
                    names.append(entry.name + b"/")
                # a broken link is rejected, by name, when it is opened
                elif entry.is_file() or entry.is_symlink():
                    names.append(entry.name)
                else:
                    others.append((entry.path, "no regular file"))
            # for example a link to itself
            except OSError as error:
                if storage.failed(error):
                    raise
                others.append((entry.path, f"cannot be read: {error.strerror}"))
    return sorted(names), others
