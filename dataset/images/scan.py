"""A folder of images -> manifest: reads every file's header once, in parallel; must not know pixels, orders or ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from contracts import Array, UserError
from dataset import walk
from dataset.images import headers
from dataset.images.columns import COLUMNS, HEADER, Header, Images
from dataset.manifest import FILE_LIST, Rejects, create_column
from dataset.scan import Parser, Progress, each_file, nothing, remembered
from machine import cores

CHUNK = 500  # files a task
FEW = 2_000  # files that threads have read before processes have started
PIECE = 1 << 20  # files by which a column is filled: bounds the memory
LEFT_OUT = Header(-1, 0, 0, 0, 0, 0)
Read = Callable[[bytes], Header]  # raises headers.Rejected


def open_folder(
    root: Path,
    *,
    cache: Path,
    classes: Sequence[str] | None = None,
    rescan: bool = False,
    workers: int = 0,
    progress: Progress | None = None,
) -> Images:
    """The manifest of root/<class>/**/*: from `cache` when no folder has changed since, else from a new scan.

    `classes` fixes the labels (validation has those of training); without it they are the sorted names of the folders that hold an image.
    Of several processes that call this at once one scans and the others wait. `workers` processes read headers; 0 = four a core, 32 at
    most, for they wait for the storage. `progress(done, total, what)` is called a few times a second; total is 0 while it is not known.
    Raises UserError.
    """
    real = Path(os.path.realpath(root))
    if not real.is_dir():
        raise UserError(f"--data: {root} {'is no folder' if real.exists() else 'does not exist'}; images are expected in {root}/<class>/")

    def fill(made: Path, rejects: Rejects, visits: list[walk.Visit], say: Progress) -> Sequence[str]:
        walk.remember(visits, os.fsencode(real))
        labels = walk.labels(real, classes)
        total = walk.list_files(real, labels, made, visits, rejects, say)
        records = read_headers(headers.header, real, total, made, workers, rejects, say)
        used = _keep(real, labels, classes, records, made, rejects)
        return used if classes is None else classes

    key = [str(real), None if classes is None else list(classes)]
    return remembered(Images, root, key, fill, root=real, cache=cache, rescan=rescan, progress=progress)


def read_headers(read: Read, root: Path, total: int, made: Path, workers: int, rejects: walk.Reject, say: Progress) -> Array:
    """HEADER [total], one for each file of made/file_list.*, size -1 where it is left out. `workers` as for open_folder."""
    if not total:
        return np.zeros(0, HEADER)
    records: Array = np.lib.format.open_memmap(made / "file_list.records", mode="w+", dtype=HEADER, shape=(total,))
    few = total <= FEW
    parser = Parser(read, LEFT_OUT, partial(np.array, dtype=HEADER), root, made, step=CHUNK // 10 if few else CHUNK)
    count = 8 if few else workers or min(32, max(int(4 * cores()), 1))
    for first, rows in each_file(parser, total, count, rejects, say, threads=few):
        records[first : first + len(rows)] = rows
    return records


def _keep(root: Path, labels: dict[str, int], classes: Sequence[str] | None, records: Array, made: Path, rejects: Rejects) -> list[str]:
    """Write the columns without what is left out; returns the classes that have an image."""
    good = records["size"] >= 0
    samples = int(good.sum())
    if not samples:
        raise nothing("image", f"{root}/<class>/", rejects)
    paths, offsets, old = (np.memmap(made / f"file_list.{name}", dtype, "r") for name, dtype in FILE_LIST.items())
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
