"""Entries -> manifest: reads every header once, in parallel, and finds the result again; knows no pixels.

list   -> paths, offsets, labels on disk    one pass over the folders; from here on the total is known
parse  -> a record for each file            processes, 500 files at a time
keep   -> columns without the rejected      then sealed, renamed and made current

`remembered` (the life of a scan), `reading` (the errors of a source) and `each_file` (the processes) serve
the scans of images, of videos and of COCO's files.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import mimetypes
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np

from contracts import UserError
from dataset.scan import file_tree, manifest
from dataset.scan.manifest import FILE_LIST, Rejected, Rejects, S
from system import processes, storage

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
    # before the lock: a scan that another process finishes while this one waits is new enough for `rescan`
    called = time.time()
    say = _throttled(progress)
    real = Path(os.path.realpath(data))
    # a name that people know again, and a digest that tells folders of one name apart
    name = (
        re.sub("[^A-Za-z0-9._-]", "_", real.name)[:40]
        + "-"
        + hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()
    )
    home = Path(os.path.realpath(cache)) / name
    if home.is_relative_to(real):
        raise UserError(
            f"--manifest-dir {cache} lies inside the data {data}, which is never written to; "
            "choose a folder elsewhere"
        )
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home, say):
            found = _reopen(table, home, root, after=called if rescan else 0.0)
            return found if found is not None else _scan(table, home, root, fill, say)
    except OSError as error:
        raise _unwritten(error, cache, home) from error


def _unwritten(error: OSError, cache: Path, home: Path) -> UserError:
    """Return what ends a scan by an error that is no single file's: of the manifest, the data, the limits."""
    named = (
        os.fsencode(error.filename or b"")
        if isinstance(error.filename, str | bytes)
        else b""
    )
    if named and not named.startswith(os.fsencode(home)) and storage.failed(error):
        return storage.end_scan(error, manifest.printable(named))
    said = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return UserError(f"the scan cannot open its files: {said}; raise ulimit -n")
    return UserError(
        f"the manifest cannot be written to {cache}: {said}; choose another folder with --manifest-dir"
    )


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


def _locked(home: Path, say: Progress) -> AbstractContextManager[Any]:
    lock = filelock.FileLock(home / "lock")
    try:  # without waiting at first, to be able to say that it waits
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        say(0, 0, "waiting for another process's scan")
        return lock.acquire()


def _reopen(table: type[S], home: Path, real: Path, after: float) -> S | None:
    """Return the current scan if it is whole, newer than `after` (s since 1970), and no folder changed."""
    with suppress(OSError, ValueError, TypeError, LookupError, manifest.NoManifest):
        folder = _current(home)
        root = os.fsencode(real)
        seen = json.loads((folder / "visited.json").read_text())
        if seen["finished"] > after and all(
            file_tree.still_so(root, visit) for visit in seen["folders"]
        ):
            return table.open(folder)
    return None


def _current(home: Path) -> Path:
    """Return the folder of the scan that was finished last; `home` itself where there is none."""
    with suppress(OSError, ValueError):
        return home / (home / "current").read_text()
    return home


def _scan(table: type[S], home: Path, root: Path, fill: Fill, say: Progress) -> S:
    manifest.sweep(
        home, keep=_current(home)
    )  # it stays until there is another: this scan may be interrupted
    stamp = f"{time.time_ns():x}-{os.getpid()}"
    made = home / f"tmp-{stamp}"
    made.mkdir()
    try:
        visits: list[file_tree.Visit] = []
        with open(made / "rejected.txt", "w", encoding="utf-8") as file:
            rejects = Rejects(file)
            classes = fill(made, rejects, visits, say)
        file_tree.remember_shut(visits, rejects.shut)
        (made / "visited.json").write_text(
            json.dumps({"finished": time.time(), "folders": visits})
        )
        for path in made.glob("file_list.*"):
            path.unlink()
        manifest.seal(made, table, root=root, classes=classes, rejected=rejects.count)
        folder = manifest.publish(home, made, f"scan-{stamp}")
    except BaseException:  # Ctrl-C too: nothing half is left
        shutil.rmtree(made, ignore_errors=True)
        raise
    opened = table.open(folder)
    manifest.sweep(home, keep=folder)
    return opened


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
        self.paths, self.offsets, _ = (
            np.memmap(made / f"file_list.{name}", dtype, "r")
            for name, dtype in FILE_LIST.items()
        )
        # seen by every process: end after this file
        self.stop = multiprocessing.get_context("fork").RawValue(ctypes.c_bool, False)

    def __call__(self, first: int) -> tuple[Any, list[tuple[bytes, str]]]:
        offsets = self.offsets[first : first + self.step + 1]
        blob = self.paths[offsets[0] : offsets[-1]].tobytes()
        rows = []
        bad = []
        for index, (start, end) in enumerate(
            pairwise((offsets - offsets[0]).tolist()), first
        ):
            if self.stop.value:
                break
            key = index if self.by_index else blob[start:end]
            called = partial(self._called, key)
            try:
                rows.append(storage.in_scan(partial(self.read, key), called))
            except Rejected as why:
                rows.append(self.left_out)
                bad.append((self.shown(key), str(why)))
            except (
                OSError
            ) as error:  # of a folder that may not be entered, and not the entry's
                raise storage.end_scan(error, called()) from error
        return self.pack(rows), bad

    def _called(self, key: Any) -> str:
        return manifest.printable(self.shown(key))


ANY_FILE = 1 << 24
"""Pixels that a file of any size may have: each thread that decodes so many takes 200 MB at most."""
A_BYTE = 1032
"""Pixels beyond ANY_FILE for each byte of the file: as many grey ones as a byte of deflate can hold. A blank
WebP or fax can hold more, and then some hundred bytes take a gigabyte in each thread that decodes them."""


def most_pixels(size: Any, max_pixels: int) -> Any:
    """Return how many pixels files of `size` bytes, one or an array of them, may claim."""
    return np.minimum(max_pixels, ANY_FILE + A_BYTE * size)


def require_few(width: int, height: int, size: int, max_pixels: int) -> None:
    """Raise Rejected for an image or video of `size` bytes that may take all memory when it is decoded."""
    claimed = f"claims {width} x {height} pixels"
    if width * height > max_pixels:
        raise Rejected(f"{claimed}, more than --max-pixels {max_pixels}")
    if width * height > most_pixels(size, max_pixels):
        raise Rejected(
            f"{claimed} in {size} bytes, which is blank or a trap: save it smaller"
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
    try:
        for first, (packed, bad) in zip(firsts, made, strict=True):
            yield first, packed
            for path, why in bad:
                rejects(path, why)
            say(min(first + parser.step, total), total, f"reading {parser.what}")
    except BrokenProcessPool:
        raise UserError(
            f"a process that reads {parser.what} was killed: {processes.KILLED}; mend that, and start again"
        ) from None
    finally:
        # first: who is in the middle of a part then ends after its file
        parser.stop.value = True
        made.close()


class NothingFound(UserError):
    """No file of a set can be read. `why` says what was left out."""

    def __init__(self, told: str, why: str) -> None:
        super().__init__(f"{told}{why}")
        self.why = why


def nothing_found(
    wanted: Literal["image", "video"], where: str, rejects: Rejects
) -> NothingFound:
    """Return the error that no `wanted` is there. The first file's name may tell which --task reads it."""
    if not rejects.count:
        return NothingFound(f"--data: no {wanted} in {where}", ": no file is there")
    why = f"; left out: {rejects.count}, first {rejects.first}"
    medium = (
        mimetypes.guess_type(rejects.first.partition(": ")[0])[0] or ""
    ).partition("/")[0]
    other = {
        "image": "; images are read without --task video",
        "video": "; videos are read with --task video",
    }
    why += other.get(medium, "") if medium != wanted else ""
    return NothingFound(f"--data: no {wanted} in {where}", why)


def _throttled(progress: Progress | None) -> Progress:
    """Pass on at most ten calls a second, and the last one."""
    last = 0.0

    def say(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if progress is not None and (now - last >= 0.1 or done == total):
            last = now
            progress(done, total, what)

    return say
