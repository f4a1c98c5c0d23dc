"""Images of a source -> columns: reads every header once, in parallel; must not know orders or ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np

from saturate.contracts import MAX_PIXELS, Array
from saturate.dataset.images.columns import CODES, HEADER, Header, Images, Unread
from saturate.dataset.images.lazy_headers import Headers, checked_header, readers
from saturate.dataset.scan import file_tree, leave_out
from saturate.dataset.scan.byte_ranges import Entries
from saturate.dataset.scan.cache import (
    NothingFound,
    Options,
    each_file,
    reading,
    remembered,
)
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.manifest import (
    Rejected,
    file_list,
    write_column,
    write_paths,
)

CHUNK = 500  # images a task
REMOTE_CHUNK = 16  # each of them waits for a server
FEW = 2_000  # images that threads have read before processes have started
LEFT_OUT = Header(size=-1, height=0, width=0, format=0, depth=0, components=0)
FileLister = Callable[[Scan], "dict[str, int]"]
"""scan -> the label of each class name.

Writes made/file_list.*, by dataset.scan.file_tree.write_file_list, in the order of the names' bytes, and
remembers what shows a change. Raises UserError, or OSError where the storage fails.
"""


def open_images(
    data: Path,
    entries: Entries,
    list_files: FileLister,
    *,
    key: list[object],
    where: str,
    root: Path | None = None,
    table: type[Images] = Images,
    classes: Sequence[str] | None = None,
    listed: bool | Callable[[], bool] = False,
    unread: bool = False,
    **how: Unpack[Options],
) -> Images:
    """Return the columns of the images that `list_files` names and `entries` holds.

    They come from the cache when nothing visited has changed since, else from a new scan.
    `data` is the file or folder that the source lies in, `key` (JSON values) what the scan depends on beside
    it, and `where` says where images are expected. Names of files are below `root`, or `data`. Of a `table`
    with more columns `list_files` writes those of `EXTRA` into made/file_list.<name>.npy, and the others into
    made/<name>.npy. `classes` fixes the labels (validation has those of training); without it they are those
    of `list_files` that have an image, or all where `listed`, asked after it, tells that a list names them.
    `unread` images are not opened before a plan draws them. Of several processes that call this at once one
    scans and the others wait. `workers` of Options is by default four a core, 32 at most, for they wait for the
    storage. Raises UserError.
    """
    real = Path(os.path.realpath(data))
    names = None if classes is None else list(classes)
    max_pixels = how.get("max_pixels", MAX_PIXELS)
    workers = how.get("workers", 0)
    without = how.get("leave_out", frozenset())

    def fill(scan: Scan) -> Sequence[str]:
        made = scan.made
        with reading(data):
            labels = list_files(scan)
        label = file_list(made)[2]
        if unread:
            headers: Array = np.broadcast_to(np.zeros((), HEADER), len(label))
        else:
            headers = read_headers(
                entries, scan, scan.rejects, max_pixels, workers, without
            )
        good = headers["size"] >= 0
        if not good.any():
            raise NothingFound("image", where, scan.rejects)
        fixed = listed() if callable(listed) else listed
        candidates = np.bincount(label, minlength=max(labels.values()) + 1)
        counts = np.bincount(label[good], minlength=len(candidates))
        for name, number in labels.items():
            # numbers of a list may have gaps
            if not counts[number] and (candidates[number] or not fixed):
                path = entries.shown(os.fsencode(name))
                scan.rejects(path, "class without an image")
        numbers = np.arange(len(counts))
        if not fixed and names is None:
            # one without an image has no label, and those behind it move up
            numbers = np.cumsum(counts > 0) - 1
        write_paths(made, good)
        write_column(made, "label", "i4", numbers[label[good]])
        for column, code in CODES.items():
            write_column(made, column, code, headers[column][good])
        for column in table.EXTRA:
            values = np.load(made / f"file_list.{column}.npy", "r")
            write_column(made, column, table.COLUMNS[column], values[good])
        used = [name for name, number in labels.items() if fixed or counts[number]]
        return used if names is None else names

    columns = remembered(
        Unread if unread else table,
        data,
        [
            str(real),
            names,
            *key,
            max_pixels,
            unread,
            *map(os.fsdecode, sorted(without)),
        ],
        fill,
        root or real,
        how,
    )
    if not isinstance(columns, Unread):
        return columns
    return replace(columns, fetch=Headers(columns, entries, max_pixels, workers))


def read_headers(
    entries: Entries,
    scan: Scan,
    reject: file_tree.Reject,
    max_pixels: int,
    workers: int = 0,
    without: frozenset[bytes] = frozenset(),
) -> Array:
    """Return HEADER [n], one for each entry of made/file_list.*, size -1 where it is left out.

    `workers` and `max_pixels` are those of open_images, `without` is Options.leave_out.
    """

    def read(name: bytes) -> Header:
        if without and leave_out.place(entries.shown(name)) in without:
            raise Rejected(leave_out.WHY)
        return checked_header(entries, max_pixels, name)

    total = len(file_list(scan.made)[2])
    headers: Array = np.lib.format.open_memmap(
        scan.made / "file_list.headers", mode="w+", dtype=HEADER, shape=(total,)
    )
    few = total <= FEW and not entries.remote
    packed = each_file(
        scan,
        reject,
        read,
        LEFT_OUT,
        partial(np.array, dtype=HEADER),
        entries.shown,
        step=REMOTE_CHUNK if entries.remote else CHUNK // 10 if few else CHUNK,
        workers=32 if entries.remote else 8 if few else readers(workers),
        by_index=entries.by_index,
        threads=few and not entries.mapped,
    )
    for first, rows in packed:
        headers[first : first + len(rows)] = rows
    return headers
