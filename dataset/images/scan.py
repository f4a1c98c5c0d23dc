"""Images of a source -> columns: reads every header once, in parallel; must not know orders or ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from contracts import MAX_PIXELS, Array
from dataset.images.columns import COLUMNS, HEADER, RECORD, Header, Images, Unread
from dataset.images.lazy_headers import Headers, tagged_header
from dataset.scan import file_tree
from dataset.scan.byte_ranges import Entries
from dataset.scan.cache import (
    Parser,
    Progress,
    each_file,
    most_pixels,
    nothing_found,
    reading,
    remembered,
)
from dataset.scan.manifest import FILE_LIST, Rejects, create_column
from dataset.scan.packed_columns import Beside
from system.resources import cores

CHUNK = 500  # images a task
REMOTE_CHUNK = 16  # each of them waits for a server
FEW = 2_000  # images that threads have read before processes have started
PIECE = 1 << 20  # images by which a column is filled: bounds the memory
LEFT_OUT = (*Header(-1, 0, 0, 0, 0, 0), 0)
TAGS = "file_list.tags"
"""int64 [n] in the folder of a scan: RECORD's tags, of entries behind URLs alone."""
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
    key: list[Any],
    where: str,
    cache: Path,
    root: Path | None = None,
    table: type[Images] = Images,
    classes: Sequence[str] | None = None,
    listed: bool | Callable[[], bool] = False,
    unread: bool = False,
    beside: Beside | None = None,
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
    `unread` images are not opened before a plan draws them. The columns `beside` a packed store are taken in
    place of a scan, where they fit. Of several processes that call this at once one scans and the others
    wait. What claims more than `max_pixels` is left out. `workers` processes read headers; 0 = four a core,
    32 at most, for they wait for the storage. `progress(done, total, what)` is called a few times a second;
    total is 0 while it is not known. Raises UserError.
    """
    real = Path(os.path.realpath(data))

    def fits(found: Images) -> bool:
        pixels = found.height.astype(np.int64) * found.width
        few = bool((pixels <= most_pixels(found.size, max_pixels)).all())
        return few and (classes is None or found.classes == tuple(classes))

    def fill(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> Sequence[str]:
        if (
            beside is not None
            and not rescan
            and (taken := beside.taken(table, made, fits)) is not None
        ):
            entries.remember(visits, [])
            return taken
        with reading(data):
            labels = list_files(made, rejects, visits, say)
        if unread:
            records = _no_headers(made, remote=getattr(entries, "remote", False))
        else:
            records = read_headers(
                entries, made, workers, rejects, say, max_pixels=max_pixels
            )
        fixed = listed() if callable(listed) else listed
        used = _keep(
            entries,
            where,
            labels,
            classes,
            records,
            made,
            rejects,
            table=table,
            listed=fixed,
        )
        return used if classes is None else classes

    names = None if classes is None else list(classes)
    key = [str(real), names, *key, max_pixels]
    how: dict[str, Any] = {
        "root": root or real,
        "cache": cache,
        "rescan": rescan,
        "progress": progress,
    }
    if not unread:
        return remembered(table, data, key, fill, **how)
    columns = remembered(Unread, data, [*key, "unread"], fill, **how)
    return replace(columns, fetch=Headers(columns, entries, max_pixels, workers))


def _no_headers(made: Path, *, remote: bool) -> Array:
    """Return HEADER [n] of zeros, one for each entry of made/file_list.*."""
    if remote:
        _tags(made)
    return np.broadcast_to(np.zeros((), HEADER), (_listed(made),))


def _listed(made: Path) -> int:
    """Return the number of entries of made/file_list.*."""
    return (made / "file_list.offsets").stat().st_size // np.dtype(
        FILE_LIST["offsets"]
    ).itemsize - 1


def _tags(made: Path) -> Array:
    """Create made/TAGS, of zeros."""
    found: Array = np.lib.format.open_memmap(
        made / TAGS, mode="w+", dtype=np.int64, shape=(_listed(made),)
    )
    return found


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
    total = _listed(made)
    if not total:
        return np.zeros(0, HEADER)
    records: Array = np.lib.format.open_memmap(
        made / "file_list.records", mode="w+", dtype=HEADER, shape=(total,)
    )
    few = total <= FEW
    remote = getattr(entries, "remote", False)
    step = REMOTE_CHUNK if remote else CHUNK // 10 if few else CHUNK
    pack = partial(np.array, dtype=RECORD)
    tags = _tags(made) if remote else None
    parser = Parser(
        partial(_header, entries, max_pixels),
        LEFT_OUT,
        pack,
        entries.shown,
        made,
        step=step,
        by_index=getattr(entries, "by_index", False),
    )
    count = 8 if few and not remote else workers or min(32, max(int(4 * cores()), 1))
    count = min(32, -(-total // step)) if remote else count
    for first, rows in each_file(
        parser, total, count, rejects, say, threads=few and not remote
    ):
        records[first : first + len(rows)] = rows[list(Header._fields)]
        if tags is not None:
            tags[first : first + len(rows)] = rows["tag"]
    return records


def _header(entries: Entries, max_pixels: int, name: Any) -> tuple[Any, ...]:
    """Return a RECORD."""
    header, tag = tagged_header(entries, name, max_pixels)
    return *header, tag


def _keep(
    entries: Entries,
    where: str,
    labels: dict[str, int],
    classes: Sequence[str] | None,
    records: Array,
    made: Path,
    rejects: Rejects,
    *,
    table: type[Images],
    listed: bool,
) -> list[str]:
    """Write the columns without what is left out; returns the classes that have an image, or all `listed`."""
    good = records["size"] >= 0
    samples = int(good.sum())
    if not samples:
        raise nothing_found("image", where, rejects)
    paths, offsets, old = (
        np.memmap(made / f"file_list.{name}", dtype, "r")
        for name, dtype in FILE_LIST.items()
    )
    counts = np.bincount(old[good], minlength=max(labels.values()) + 1)
    candidates = np.bincount(old, minlength=len(counts))
    for name, label in labels.items():
        if not counts[label] and (
            candidates[label] or not listed
        ):  # numbers of a list may have gaps
            rejects(entries.shown(os.fsencode(name)), "class without an image")
    # classes of folders: one without an image has no label, and those behind it move up
    fixed = listed or classes is not None
    renumbered = np.arange(len(counts)) if fixed else np.cumsum(counts > 0) - 1
    lengths = np.diff(offsets)
    length_of = {"path_bytes": int(lengths[good].sum()), "path_offsets": samples + 1}
    columns = {
        name: create_column(made, name, dtype, length_of.get(name, samples))
        for name, dtype in COLUMNS.items()
    }
    np.cumsum(lengths[good], out=columns["path_offsets"][1:])
    row = byte = 0
    for first in range(0, len(good), PIECE):
        part = slice(first, first + PIECE)
        rows = records[part][good[part]]
        length = lengths[part]
        blob = paths[offsets[first] : offsets[first] + length.sum()][
            np.repeat(good[part], length)
        ]
        for name in Header._fields:
            columns[name][row : row + len(rows)] = rows[name]
        columns["label"][row : row + len(rows)] = renumbered[old[part][good[part]]]
        columns["path_bytes"][byte : byte + len(blob)] = blob
        row += len(rows)
        byte += len(blob)
    for name in table.EXTRA:
        values = np.load(made / f"file_list.{name}.npy", "r")
        create_column(made, name, table.COLUMNS[name], samples)[...] = values[good]
    if (made / TAGS).exists():
        create_column(made, "tag", np.dtype(np.int64), samples)[...] = np.load(
            made / TAGS, "r"
        )[good]
    return [name for name, label in labels.items() if listed or counts[label]]
