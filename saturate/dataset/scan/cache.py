"""Entries -> manifest: reads every header once, in parallel, and finds the result again; knows no pixels.

list   -> paths, offsets, labels on disk    one pass over the folders; from here on the total is known
parse  -> a record for each file            processes, 500 files at a time
keep   -> columns without the rejected      then sealed, renamed and made current

`remembered` (the life of a scan), `reading` (the errors of a source) and `each_file` (the processes) serve
the scans of images, of videos and of COCO's files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, TypeVar

import filelock

from saturate.contracts import UserError
from saturate.dataset.scan import file_tree, manifest
from saturate.dataset.scan.file_tree import Progress, Scan
from saturate.dataset.scan.manifest import Rejected, Rejects, S
from saturate.system import processes, storage

T = TypeVar("T")
P = TypeVar("P")


class Options(TypedDict, total=False):
    """How any data set is scanned."""

    cache: Required[Path]  # the folder where scans are kept
    rescan: bool  # make a new one
    max_pixels: int  # what claims more is left out
    workers: int  # processes that read headers; 0 = as fits the machine
    # files that no scan takes, each as dataset.scan.leave_out.place
    leave_out: frozenset[bytes]
    # called a few times a second
    progress: Progress | None


def remembered(
    table: type[S],
    data: Path,
    key: Sequence[object],
    fill: Callable[[Scan], Sequence[str]],
    root: Path,
    how: Options,
) -> S:
    """Return the scan that the cache holds under `key` (JSON values), or a new one if what it visited changed.

    `fill` writes the columns into the scan's folder, remembers what it visited, and returns the classes.
    `data` is what the user named, and names of files are below `root`. Of several processes that call this at
    once one scans and the others wait. Raises UserError.
    """
    cache = how["cache"]
    progress = _throttled(how.get("progress"))
    real = Path(os.path.realpath(data))
    # a name that people know again, and a digest that tells folders of one name apart
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()
    name = re.sub("[^A-Za-z0-9._-]", "_", real.name)[:40]
    home = Path(os.path.realpath(cache)) / f"{name}-{digest}"
    if home.is_relative_to(real):
        raise UserError(
            f"--manifest-dir {cache} lies inside the data {data}, which is never written to; "
            "choose a folder elsewhere"
        )
    try:
        home.mkdir(parents=True, exist_ok=True)
        # before the lock: a scan that another process makes while this one waits is new enough for `rescan`
        old = manifest.newest(home) if how.get("rescan") else None
        lock = filelock.FileLock(home / "lock")
        # a rank that reads what is there has the lock for less than a second
        try:
            lock.acquire(timeout=1.0)
        except filelock.Timeout:
            progress(0, 0, "waiting for another process's scan")
            lock.acquire()
        try:
            reopened = _reopen(table, home, root, old)
            return (
                reopened
                if reopened is not None
                else _scan(table, home, root, fill, progress)
            )
        finally:
            lock.release()
    except OSError as error:
        # another folder would not help
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise storage.fault(error, str(home), storage.SCAN_AGAIN) from error
        raise UserError(
            f"the manifest cannot be written to {cache}: {error.strerror or error}; "
            "choose another folder with --manifest-dir"
        ) from error


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Raise an OSError of the body, which reads a source, as a StorageFault that names the data.

    What the body cannot write stays a NotWritten, which `remembered` tells of the manifest.
    """
    try:
        yield
    except manifest.NotWritten:
        raise
    except OSError as error:
        raise storage.end_scan(error, str(what)) from error


def _reopen(table: type[S], home: Path, root: Path, old: Path | None) -> S | None:
    """Return the current scan if it is whole, is not the `old` one, and no folder changed."""
    folder = manifest.newest(home)
    if folder is None or folder == old:
        return None
    with suppress(OSError, ValueError, TypeError, LookupError, manifest.NoManifest):
        seen = json.loads((folder / "visited.json").read_text())
        if all(
            file_tree.still_so(os.fsencode(root), visit) for visit in seen["folders"]
        ):
            return table.open(folder)
    return None


def _scan(
    table: type[S],
    home: Path,
    root: Path,
    fill: Callable[[Scan], Sequence[str]],
    progress: Progress,
) -> S:
    stamp = f"{time.time_ns():x}-{os.getpid()}"
    made = home / f"tmp-{stamp}"
    made.mkdir()
    try:
        with open(made / "rejected.txt", "w", encoding="utf-8") as file:
            scan = Scan(root=root, made=made, rejects=Rejects(file), progress=progress)
            classes = fill(scan)
        (made / "visited.json").write_text(json.dumps({"folders": scan.visits}))
        for path in made.glob("file_list.*"):
            path.unlink()
        rejected = scan.rejects.count
        manifest.seal(made, table, root=root, classes=classes, rejected=rejected)
        folder = manifest.publish(home, made, f"scan-{stamp}")
    except BaseException:  # Ctrl-C too: nothing half is left
        shutil.rmtree(made, ignore_errors=True)
        raise
    manifest.sweep(home)
    return table.open(folder)


def require_few(width: int, height: int, max_pixels: int) -> None:
    """Raise Rejected for an image or video that may take all memory when it is decoded."""
    if width * height > max_pixels:
        raise Rejected(
            f"claims {width} x {height} pixels, more than --max-pixels {max_pixels}"
        )


def each_file(
    scan: Scan,
    reject: file_tree.Reject,
    read: Callable[[Any], T],
    left_out: T,
    pack: Callable[[list[T]], P],
    shown: Callable[[Any], bytes],
    *,
    step: int,
    workers: int,
    what: str = "headers",
    by_index: bool = False,
    threads: bool = False,
) -> Iterator[tuple[int, P]]:
    """Yield (first, what `pack` makes of the records of the `step` listed names from there on), in order.

    `read` makes a record of a name, or raises Rejected: it is then `left_out`. `shown` turns a name into what
    rejected.txt says, `what` is read for the user to see: headers, videos. With `by_index` both are given the
    number of an entry in place of its name. They are read by as many processes, or by threads of this one.
    """
    paths, offsets, _ = manifest.file_list(scan.made)
    total = len(offsets) - 1
    firsts = range(0, total, step)

    def key(index: int) -> bytes | int:
        begin, end = offsets[index : index + 2]
        return index if by_index else paths[begin:end].tobytes()

    def called(index: int) -> str:
        return manifest.printable(shown(key(index)))

    def parsed(first: int) -> tuple[P, list[tuple[bytes, str]]]:
        rows = []
        rejected = []
        for index in range(first, min(first + step, total)):
            name = key(index)
            row = left_out
            try:
                row = storage.in_scan(partial(read, name), partial(called, index))
            except Rejected as why:
                rejected.append((shown(name), str(why)))
            # of a folder that may not be entered, and not the entry's
            except OSError as error:
                raise storage.end_scan(error, called(index)) from error
            rows.append(row)
        return pack(rows), rejected

    if not firsts:
        return
    made = processes.results(parsed, firsts, min(workers, len(firsts)), threads=threads)
    done = 0
    try:
        for first, (packed, bad) in zip(firsts, made, strict=True):
            yield first, packed
            for path, why in bad:
                reject(path, why)
            done = min(first + step, total)
            scan.progress(done, total, f"reading {what}")
    except BrokenProcessPool:
        raise UserError(
            f"--data: a process that reads {what}, of {called(done)} or what follows, was killed: "
            f"{processes.KILLED}; mend that, and start again"
        ) from None
    finally:
        made.close()


class NothingFound(UserError):
    """No image, or video, of a set can be read. `why` says what was left out."""

    def __init__(
        self, wanted: Literal["image", "video"], where: str, rejects: Rejects
    ) -> None:
        self.why = ": no file is there"
        if rejects.first:
            self.why = f"; left out: {rejects.count}, first {rejects.first}"
        super().__init__(f"--data: no {wanted} in {where}{self.why}")


def _throttled(progress: Progress | None) -> Progress:
    """Pass on at most ten calls a second, and the last one."""
    last = 0.0

    def limited(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if progress and (now - last >= 0.1 or done == total):
            last = now
            progress(done, total, what)

    return limited
