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
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import filelock

from saturate.contracts import UserError
from saturate.dataset.scan import file_tree, manifest
from saturate.dataset.scan.manifest import Rejected, Rejects, S
from saturate.system import processes, storage

Progress = Callable[[int, int, str], None]
Fill = Callable[[Path, Rejects, "list[file_tree.Visit]", Progress], Sequence[str]]


def remembered(
    table: type[S],
    data: Path,
    key: list[Any],
    fill: Fill,
    *,
    root: Path,
    cache: Path,
    rescan: bool,
    progress: Progress | None,
) -> S:
    """Return the scan that `cache` holds under `key` (JSON values), or a new one if what it visited changed.

    `fill(made, rejects, visits, say)` writes the columns into the folder `made`, adds what it visited below
    `root`, and returns the classes; its files file_list.* are removed. `data` is what the user named. Of
    several processes that call this at once one scans and the others wait. Raises UserError.
    """
    say = _throttled(progress)
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
        old = manifest.newest(home) if rescan else None
        lock = filelock.FileLock(home / "lock")
        # a rank that reads what is there has the lock for less than a second
        try:
            lock.acquire(timeout=1.0)
        except filelock.Timeout:
            say(0, 0, "waiting for another process's scan")
            lock.acquire()
        try:
            found = _reopen(table, home, root, old)
            return found if found is not None else _scan(table, home, root, fill, say)
        finally:
            lock.release()
    except OSError as error:
        path = error.filename
        if isinstance(path, str | bytes) and storage.failed(error):
            path = os.fsencode(path)
            if not path.startswith(os.fsencode(home)):
                raise storage.end_scan(error, manifest.printable(path)) from error
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


def _scan(table: type[S], home: Path, root: Path, fill: Fill, say: Progress) -> S:
    stamp = f"{time.time_ns():x}-{os.getpid()}"
    made = home / f"tmp-{stamp}"
    made.mkdir()
    try:
        visits: list[file_tree.Visit] = []
        with open(made / "rejected.txt", "w", encoding="utf-8") as file:
            rejects = Rejects(file)
            classes = fill(made, rejects, visits, say)
        (made / "visited.json").write_text(json.dumps({"folders": visits}))
        for path in made.glob("file_list.*"):
            path.unlink()
        manifest.seal(made, table, root=root, classes=classes, rejected=rejects.count)
        folder = manifest.publish(home, made, f"scan-{stamp}")
    except BaseException:  # Ctrl-C too: nothing half is left
        shutil.rmtree(made, ignore_errors=True)
        raise
    manifest.sweep(home)
    return table.open(folder)


class Parser:
    """A worker process's work: `read` makes a record of each listed name in turn, or raises Rejected.

    `shown` turns a name into what rejected.txt says, `what` is read for the user to see: headers, videos.
    With `by_index` both are given the number of an entry in place of its name.
    """

    def __init__(
        self,
        read: Callable[[Any], Any],
        left_out: Any,
        pack: Callable[[list[Any]], Any],
        shown: Callable[[Any], bytes],
        made: Path,
        *,
        step: int,
        what: str = "headers",
        by_index: bool = False,
    ) -> None:
        self.read = read
        self.by_index = by_index
        self.left_out = left_out
        self.pack = pack
        self.shown = shown
        self.step = step
        self.what = what
        self.paths, self.offsets, _ = manifest.file_list(made)

    def __call__(self, first: int) -> tuple[Any, list[tuple[bytes, str]]]:
        offsets = self.offsets[first : first + self.step + 1].tolist()
        rows = []
        rejected = []
        for index, (begin, end) in enumerate(pairwise(offsets), first):
            key = index if self.by_index else self.paths[begin:end].tobytes()
            try:
                row = storage.in_scan(
                    partial(self.read, key), partial(self._called, key)
                )
            except Rejected as why:
                row = self.left_out
                rejected.append((self.shown(key), str(why)))
            # of a folder that may not be entered, and not the entry's
            except OSError as error:
                raise storage.end_scan(error, self._called(key)) from error
            rows.append(row)
        return self.pack(rows), rejected

    def first_of(self, index: int) -> str:
        """Return what messages call the entry of that number."""
        begin, end = self.offsets[index : index + 2]
        path = self.paths[begin:end].tobytes()
        return self._called(index if self.by_index else path)

    def _called(self, key: Any) -> str:
        return manifest.printable(self.shown(key))


def require_few(width: int, height: int, max_pixels: int) -> None:
    """Raise Rejected for an image or video that may take all memory when it is decoded."""
    if width * height > max_pixels:
        raise Rejected(
            f"claims {width} x {height} pixels, more than --max-pixels {max_pixels}"
        )


def each_file(
    parser: Parser,
    total: int,
    workers: int,
    rejects: file_tree.Reject,
    say: Progress,
    *,
    threads: bool = False,
) -> Iterator[tuple[int, Any]]:
    """Yield (first, what parser.pack made of the files from there), in order.

    They are read by so many processes, or by threads of this one.
    """
    firsts = range(0, total, parser.step)
    made = processes.results(parser, firsts, workers, threads=threads)
    done = 0
    try:
        for first, (packed, bad) in zip(firsts, made, strict=True):
            yield first, packed
            for path, why in bad:
                rejects(path, why)
            done = min(first + parser.step, total)
            say(done, total, f"reading {parser.what}")
    except BrokenProcessPool:
        raise UserError(
            f"--data: a process that reads {parser.what}, of {parser.first_of(done)} or what follows, was killed: "
            f"{processes.KILLED}; mend that, and start again"
        ) from None
    finally:
        made.close()


class NothingFound(UserError):
    """No file of a set can be read. `why` says what was left out."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(f"{message}{why}")
        self.why = why


def nothing_found(
    wanted: Literal["image", "video"], where: str, rejects: Rejects
) -> NothingFound:
    """Return the error that no `wanted` is there."""
    message = f"--data: no {wanted} in {where}"
    if not rejects.first:
        return NothingFound(message, ": no file is there")
    why = f"; left out: {rejects.count}, first {rejects.first}"
    return NothingFound(message, why)


def _throttled(progress: Progress | None) -> Progress:
    """Pass on at most ten calls a second, and the last one."""
    last = 0.0

    def say(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if progress and (now - last >= 0.1 or done == total):
            last = now
            progress(done, total, what)

    return say
