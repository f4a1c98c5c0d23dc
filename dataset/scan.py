"""Folder -> manifest: reads every file's header once, in parallel, and finds the result again; must not know pixels, orders or ranks.

list   -> paths, offsets, labels on disk    one pass over the folders; from here on the total is known
parse  -> a record for each file            processes, 500 files at a time
keep   -> columns without the rejected      then sealed, renamed and made current

`remembered` (the life of a scan), `read_headers` and `each_file` (the processes) also serve the scans of videos and of COCO's files.
"""

from __future__ import annotations

import ctypes
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
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np

from contracts import Mistake, cores
from dataset import forked, manifest
from dataset.headers import Rejected
from dataset.manifest import COLUMNS, HEADER, LISTING, Array, Header, Manifest, Rejects, S, create_column
from dataset.sources import folder as source

CHUNK = 500  # files a task
FEW = 2_000  # files that threads have read before processes have started
PIECE = 1 << 20  # files by which a column is filled: bounds the memory
LEFT_OUT = Header(-1, 0, 0, 0, 0, 0)

Progress = Callable[[int, int, str], None]
Read = Callable[[bytes], Header]  # raises headers.Rejected
Fill = Callable[[Path, Rejects, "list[source.Visit]", Progress], Sequence[str]]


def open_folder(
    root: Path,
    *,
    cache: Path,
    classes: Sequence[str] | None = None,
    rescan: bool = False,
    workers: int = 0,
    progress: Progress | None = None,
) -> Manifest:
    """The manifest of root/<class>/**/*: from `cache` when no folder has changed since, else from a new scan.

    `classes` fixes the labels (validation has those of training); without it they are the sorted names of the folders that hold an image.
    Of several processes that call this at once one scans and the others wait. `workers` processes read headers; 0 = four a core, 32 at
    most, for they wait for the storage. `progress(done, total, what)` is called a few times a second; total is 0 while it is not known.
    Raises Mistake.
    """
    real = Path(os.path.realpath(root))
    if not real.is_dir():
        raise Mistake(f"--data: {root} {'is no folder' if real.exists() else 'does not exist'}; images are expected in {root}/<class>/")

    def fill(made: Path, rejects: Rejects, visits: list[source.Visit], say: Progress) -> Sequence[str]:
        source.remember(visits, os.fsencode(real))
        labels = source.labels(real, classes)
        total = source.list_files(real, labels, made, visits, rejects, say)
        records = read_headers(source.header, real, total, made, workers, rejects, say)
        used = _keep(real, labels, classes, records, made, rejects)
        return used if classes is None else classes

    key = [str(real), None if classes is None else list(classes)]
    return remembered(Manifest, root, key, fill, root=real, cache=cache, rescan=rescan, progress=progress)


def remembered(
    kind: type[S], data: Path, key: list[Any], fill: Fill, *, root: Path, cache: Path, rescan: bool, progress: Progress | None
) -> S:
    """The scan that `cache` holds under `key` (JSON values) when nothing visited has changed since; else a new one.

    `fill(made, rejects, visits, say)` writes the columns into the folder `made`, adds what it visited below `root`, and returns the
    classes; its files listing.* are removed. `data` is what the user named. Of several processes that call this at once one scans and
    the others wait. Raises Mistake.
    """
    called, say = time.time(), _throttled(progress)
    real = Path(os.path.realpath(data))
    name = re.sub("[^A-Za-z0-9._-]", "_", real.name)[:40] + "-" + hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()
    home = Path(os.path.realpath(cache)) / name
    if home.is_relative_to(real):
        raise Mistake(f"--manifest-dir {cache} lies inside the data {data}, which is never written to; choose a folder elsewhere")
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home, say):
            found = _reopen(kind, home, root, after=called if rescan else 0.0)
            return found if found is not None else _scan(kind, home, root, fill, say)
    except OSError as error:
        said = error.strerror or str(error)
        raise Mistake(f"the manifest cannot be written to {cache}: {said}; choose another folder with --manifest-dir") from error


def _locked(home: Path, say: Progress) -> AbstractContextManager[Any]:
    lock = filelock.FileLock(home / "lock")
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        say(0, 0, "waiting for another process's scan")
        return lock.acquire()


def _reopen(kind: type[S], home: Path, real: Path, after: float) -> S | None:
    """The current scan when it is whole, was finished after that time (s since 1970), and no folder has changed since."""

    with suppress(OSError, ValueError, TypeError, LookupError, manifest.Unusable):
        folder, root = _current(home), os.fsencode(real)
        seen = json.loads((folder / "visited.json").read_text())
        if seen["finished"] > after and all(list(source.visit(root, os.fsencode(visit[0]))[0]) == visit for visit in seen["folders"]):
            return kind.open(folder)
    return None


def _current(home: Path) -> Path:
    """The scan that was finished last; `home` itself where there is none."""
    with suppress(OSError, ValueError):
        return home / (home / "current").read_text()
    return home


def _scan(kind: type[S], home: Path, root: Path, fill: Fill, say: Progress) -> S:
    manifest.sweep(home, keep=_current(home))  # it stays until there is another: this scan may be interrupted
    stamp = f"{time.time_ns():x}-{os.getpid()}"
    made = home / f"tmp-{stamp}"
    made.mkdir()
    try:
        visits: list[source.Visit] = []
        with open(made / "rejected.txt", "w", encoding="utf-8") as file:
            rejects = Rejects(file)
            classes = fill(made, rejects, visits, say)
        (made / "visited.json").write_text(json.dumps({"finished": time.time(), "folders": visits}))
        for path in made.glob("listing.*"):
            path.unlink()
        manifest.seal(made, kind, root=root, classes=classes, rejected=rejects.count)
        folder = manifest.publish(home, made, f"scan-{stamp}")
    except BaseException:  # Ctrl-C too: nothing half is left
        shutil.rmtree(made, ignore_errors=True)
        raise
    opened = kind.open(folder)
    manifest.sweep(home, keep=folder)
    return opened


class Parser:
    """What `read` makes of one listed file after the other; what a worker process has. `what` it reads: headers, videos."""

    def __init__(
        self,
        read: Callable[[bytes], Any],
        left_out: Any,
        pack: Callable[[list[Any]], Any],
        root: Path,
        made: Path,
        *,
        step: int,
        what: str = "headers",
    ) -> None:
        self.read, self.left_out, self.pack = read, left_out, pack
        self.root, self.step, self.what = os.fsencode(root) + b"/", step, what
        self.paths, self.offsets, _ = (np.memmap(made / f"listing.{name}", dtype, "r") for name, dtype in LISTING.items())
        self.stop = multiprocessing.get_context("fork").RawValue(ctypes.c_bool, False)  # seen by every process: end after this file

    def __call__(self, first: int) -> tuple[Any, list[tuple[bytes, str]]]:
        offsets = self.offsets[first : first + self.step + 1]
        blob = self.paths[offsets[0] : offsets[-1]].tobytes()
        rows, bad = [], []
        for start, end in pairwise((offsets - offsets[0]).tolist()):
            if self.stop.value:
                break
            path = self.root + blob[start:end]
            try:
                rows.append(self.read(path))
            except Rejected as why:
                rows.append(self.left_out)
                bad.append((path, str(why)))
        return self.pack(rows), bad


def read_headers(read: Read, root: Path, total: int, made: Path, workers: int, rejects: source.Reject, say: Progress) -> Array:
    """HEADER [total], one for each file of made/listing.*, size -1 where it is left out. `workers` as for open_folder."""
    if not total:
        return np.zeros(0, HEADER)
    records: Array = np.lib.format.open_memmap(made / "listing.records", mode="w+", dtype=HEADER, shape=(total,))
    few = total <= FEW
    parser = Parser(read, LEFT_OUT, partial(np.array, dtype=HEADER), root, made, step=CHUNK // 10 if few else CHUNK)
    count = 8 if few else workers or min(32, max(int(4 * cores()), 1))
    for first, rows in each_file(parser, total, count, rejects, say, threads=few):
        records[first : first + len(rows)] = rows
    return records


def each_file(
    parser: Parser, total: int, workers: int, rejects: source.Reject, say: Progress, *, threads: bool = False
) -> Iterator[tuple[int, Any]]:
    """(first, what parser.pack made of the files from there), in order; read by so many processes, or by threads of this one."""
    firsts = range(0, total, parser.step)
    made = forked.results(parser, firsts, workers, threads=threads)
    try:
        for first, (packed, bad) in zip(firsts, made, strict=True):
            yield first, packed
            for path, why in bad:
                rejects(path, why)
            say(min(first + parser.step, total), total, f"reading {parser.what}")
    except BrokenProcessPool:
        raise Mistake(
            f"a process that reads {parser.what} was killed, as the system does when memory is short: free some, and start again"
        ) from None
    finally:
        parser.stop.value = True
        made.close()


def nothing(wanted: Literal["image", "video"], where: str, rejects: Rejects) -> Mistake:
    """That not one `wanted` is there; what the first file that was left out is, by its name, says which --task takes it."""
    if not rejects.count:
        return Mistake(f"--data: no {wanted} in {where}: no file is there")
    told = f"--data: no {wanted} in {where}; left out: {rejects.count}, first {rejects.first}"
    kind = (mimetypes.guess_type(rejects.first.partition(": ")[0])[0] or "").partition("/")[0]
    other = {"image": "; images are read without --task video", "video": "; videos are read with --task video"}
    return Mistake(told + (other.get(kind, "") if kind != wanted else ""))


def _keep(root: Path, labels: dict[str, int], classes: Sequence[str] | None, records: Array, made: Path, rejects: Rejects) -> list[str]:
    """Write the columns without what is left out; returns the classes that have an image."""
    good = records["size"] >= 0
    samples = int(good.sum())
    if not samples:
        raise nothing("image", f"{root}/<class>/", rejects)
    paths, offsets, old = (np.memmap(made / f"listing.{name}", dtype, "r") for name, dtype in LISTING.items())
    counts = np.bincount(old[good], minlength=max(labels.values()) + 1)
    for name, label in labels.items():
        if not counts[label]:
            rejects(os.fsencode(root / name), "class folder without an image")
    # without given classes, a folder without an image has no label: those behind it move up
    renumbered = np.arange(len(counts)) if classes is not None else np.cumsum(counts > 0) - 1
    lengths = np.diff(offsets)
    length_of = {"path_bytes": int(lengths[good].sum()), "path_offsets": samples + 1}
    columns = {name: create_column(made, name, dtype, length_of.get(name, samples)) for name, dtype in COLUMNS.items()}
    np.cumsum(lengths[good], out=columns["path_offsets"][1:])
    row = byte = 0
    for first in range(0, len(good), PIECE):
        part = slice(first, first + PIECE)
        rows, length = records[part][good[part]], lengths[part]
        blob = paths[offsets[first] : offsets[first] + length.sum()][np.repeat(good[part], length)]
        for name in Header._fields:
            columns[name][row : row + len(rows)] = rows[name]
        columns["label"][row : row + len(rows)] = renumbered[old[part][good[part]]]
        columns["path_bytes"][byte : byte + len(blob)] = blob
        row, byte = row + len(rows), byte + len(blob)
    return [name for name, label in labels.items() if counts[label]]


def _throttled(progress: Progress | None) -> Progress:
    """At most ten calls a second, and the last one."""
    last = 0.0

    def say(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if progress is not None and (now - last >= 0.1 or done == total):
            last = now
            progress(done, total, what)

    return say
