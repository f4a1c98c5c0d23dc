"""Images of a source -> columns: reads every header once, in parallel; must not know orders or ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from saturate.contracts import MAX_PIXELS, Array
from saturate.dataset.images.columns import COLUMNS, HEADER, Header, Images, Unread
from saturate.dataset.images.lazy_headers import Headers, checked_header, readers
from saturate.dataset.scan import file_tree
from saturate.dataset.scan.byte_ranges import Entries
from saturate.dataset.scan.cache import (
    Parser,
    Progress,
    each_file,
    nothing_found,
    reading,
    remembered,
)
from saturate.dataset.scan.manifest import Rejects, create_column, file_list

CHUNK = 500  # images a task
REMOTE_CHUNK = 16  # each of them waits for a server
FEW = 2_000  # images that threads have read before processes have started
PIECE = 1 << 20  # images by which a column is filled: bounds the memory
LEFT_OUT = Header(size=-1, height=0, width=0, format=0, depth=0, components=0)
FileLister = Callable[
    [Path, Rejects, "list[file_tree.Visit]", Progress], "dict[str, int]"
]
"""(made, rejects, visits, say) -> the label of each class name.

Writes made/file_list.*, by dataset.scan.file_tree.write_labelled, which sorts the names by their bytes, and
adds to `visits` what shows a change. Raises UserError, or OSError where the storage fails.
"""


def open_images(
    data: Path,
    entries: Entries,
    list_files: FileLister,
    *,
    key: list[object],
    where: str,
    cache: Path,
    root: Path | None = None,
    table: type[Images] = Images,
    classes: Sequence[str] | None = None,
    listed: bool | Callable[[], bool] = False,
    unread: bool = False,
    rescan: bool = False,
    max_pixels: int = MAX_PIXELS,
    workers: int = 0,
    progress: Progress | None = None,
) -> Images:
    """Return the columns of the images that `list_files` names and `entries` holds.

    They come from `cache` when nothing visited has changed since, else from a new scan.
    `data` is the file or folder that the source lies in, `key` (JSON values) what the scan depends on beside
    it, and `where` says where images are expected. Names of files are below `root`, or `data`. Of a `table`
    with more columns `list_files` writes those of `EXTRA` into made/file_list.<name>.npy, and the others into
    made/<name>.npy. `classes` fixes the labels (validation has those of training); without it they are those
    of `list_files` that have an image, or all where `listed`, asked after it, tells that a list names them.
    `unread` images are not opened before a plan draws them. Of several processes that call this at once one
    scans and the others wait. What claims more than `max_pixels` is left out. `workers` processes read headers;
    0 = four a core, 32 at most, for they wait for the storage. `progress(done, total, what)` is called a few
    times a second; total is 0 while it is not known. Raises UserError.
    """
    real = Path(os.path.realpath(data))
    names = None if classes is None else list(classes)

    def fill(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> Sequence[str]:
        with reading(data):
            labels = list_files(made, rejects, visits, say)
        if unread:
            count = len(file_list(made)[2])
            headers: Array = np.broadcast_to(np.zeros((), HEADER), (count,))
        else:
            headers = read_headers(
                entries, made, workers, rejects, say, max_pixels=max_pixels
            )
        good = headers["size"] >= 0
        if not good.any():
            raise nothing_found("image", where, rejects)
        fixed = listed() if callable(listed) else listed
        counts, candidates = _counts(made, good, labels)
        for name, label in labels.items():
            # numbers of a list may have gaps
            if not counts[label] and (candidates[label] or not fixed):
                rejects(entries.shown(os.fsencode(name)), "class without an image")
        numbers = np.arange(len(counts))
        if not fixed and names is None:
            # one without an image has no label, and those behind it move up
            numbers = np.cumsum(counts > 0) - 1
        _write_columns(made, headers, good, numbers, table.EXTRA)
        used = [name for name, label in labels.items() if fixed or counts[label]]
        return used if names is None else names

    columns = remembered(
        Unread if unread else table,
        data,
        [str(real), names, *key, max_pixels, *(["unread"] if unread else [])],
        fill,
        root=root or real,
        cache=cache,
        rescan=rescan,
        progress=progress,
    )
    if not isinstance(columns, Unread):
        return columns
    return replace(columns, fetch=Headers(columns, entries, max_pixels, workers))


def read_headers(
    entries: Entries,
    made: Path,
    workers: int,
    rejects: file_tree.Reject,
    say: Progress,
    *,
    max_pixels: int = MAX_PIXELS,
) -> Array:
    """Return HEADER [n], one for each entry of made/file_list.*, size -1 where it is left out.

    `workers` and `max_pixels` are those of open_images.
    """
    total = len(file_list(made)[2])
    if not total:
        return np.zeros(0, HEADER)
    headers: Array = np.lib.format.open_memmap(
        made / "file_list.headers", mode="w+", dtype=HEADER, shape=(total,)
    )
    remote = getattr(entries, "remote", False)
    few = total <= FEW and not remote
    step = REMOTE_CHUNK if remote else CHUNK // 10 if few else CHUNK
    parser = Parser(
        partial(checked_header, entries, max_pixels),
        LEFT_OUT,
        partial(np.array, dtype=HEADER),
        entries.shown,
        made,
        step=step,
        by_index=getattr(entries, "by_index", False),
    )
    most = 32 if remote else 8 if few else readers(workers)
    count = min(most, -(-total // step))
    threads = few and not getattr(entries, "mapped", False)
    for first, rows in each_file(parser, total, count, rejects, say, threads=threads):
        headers[first : first + len(rows)] = rows
    return headers


def _counts(made: Path, good: Array, labels: dict[str, int]) -> tuple[Array, Array]:
    """Return how many images each label has, of the `good` ones, bool [n], and of all."""
    _, _, label = file_list(made)
    classes = max(labels.values()) + 1
    return (
        np.bincount(label[good], minlength=classes),
        np.bincount(label, minlength=classes),
    )


def _write_columns(
    made: Path, headers: Array, good: Array, numbers: Array, extra: Sequence[str]
) -> None:
    """Write the columns of the `good` images, bool [n]; label i of the list becomes numbers[i]."""
    paths, offsets, label = file_list(made)
    lengths = np.diff(offsets)
    samples = int(good.sum())
    columns = {
        name: create_column(made, name, dtype, samples)
        for name, dtype in COLUMNS.items()
        if not name.startswith("path")
    }
    path_offsets = create_column(made, "path_offsets", offsets.dtype, samples + 1)
    np.cumsum(lengths[good], out=path_offsets[1:])
    path_bytes = create_column(made, "path_bytes", paths.dtype, int(path_offsets[-1]))
    row = byte = 0
    for first in range(0, len(good), PIECE):
        part = slice(first, first + PIECE)
        kept = good[part]
        end = offsets[min(first + PIECE, len(good))]
        blob = paths[offsets[first] : end][np.repeat(kept, lengths[part])]
        rows = slice(row, row + int(kept.sum()))
        for name in Header._fields:
            columns[name][rows] = headers[name][part][kept]
        columns["label"][rows] = numbers[label[part][kept]]
        path_bytes[byte : byte + len(blob)] = blob
        row = rows.stop
        byte += len(blob)
    for name in extra:
        values = np.load(made / f"file_list.{name}.npy", "r")
        create_column(made, name, values.dtype, samples)[...] = values[good]
