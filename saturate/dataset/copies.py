"""Finds samples whose bytes are the same, in one split or in two; must not know what a copy means for a run.

candidates   samples of one size, and of one digest of the header's bytes, which the scan has read
copies       those of them whose whole files have one digest; kept beside the columns of the last split
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import filelock
import numpy as np

from saturate.contracts import Array, Columns, FileSource, Source, Split, UserError
from saturate.dataset.images.lazy_headers import readers
from saturate.system import processes, storage

COPY = np.dtype([("split", "i8"), ("sample", "i8"), ("group", "i8")])
"""A sample that has copies: of which split, its number there, and what all of its copies have in common."""
MARKS = ("size", "digest", "first", "frames")
"""Columns that are alike in copies, of those that a table has. Of a video a segment is a sample."""
PIECE = 1 << 20
"""Samples that are sorted at once, of one part of all marks: bounds the memory."""
STEP = 64  # files a task


def why_not(split: Split[Any]) -> str:
    """Return why copies are not looked for in a split; "" where they are."""
    if split.columns.fetch is not None:
        return "--trust-list opens no file before training"
    return "the data lie behind a URL" if split.source.remote else ""


def find(splits: Sequence[Split[Any]]) -> Array:
    """Return COPY [k], of all samples of which another one has the same bytes, by their groups.

    A second link to a file is a copy of it. Whole files are read once: what was found is kept beside the columns
    of the last split. Raises UserError where the storage fails.
    """
    home = splits[-1].columns.folder
    tables = [f"{each.columns.folder}\n{each.columns.fingerprint}" for each in splits]
    digest = hashlib.blake2b("\n".join(tables).encode(), digest_size=8).hexdigest()
    path = home / f"copies-{digest}.npy"
    # the scan's own: of several ranks one looks
    with filelock.FileLock(home.parent / "lock"):
        with suppress(OSError, ValueError):
            return np.load(path)
        copies = _grouped(splits, _candidates([each.columns for each in splits]))
        # not kept, it is found again
        with suppress(OSError):
            np.save(made := path.with_name(f"tmp-{path.name}"), copies)
            os.replace(made, path)
    return copies


def _candidates(tables: Sequence[Columns]) -> Array:
    """Return COPY [k], samples with the same MARKS, of which a number is their `group`."""
    marks = [*map(_marks, tables)]
    parts = -(-sum(map(len, marks)) // PIECE)
    candidates = [np.zeros(0, COPY)]
    for part in range(parts):
        rows = []
        for split, mark in enumerate(marks):
            samples = np.flatnonzero(mark % np.uint64(parts) == part)
            own = np.full(len(samples), split, COPY)
            own["sample"] = samples
            own["group"] = mark[samples].view(np.int64)
            rows.append(own)
        candidates.append(_several(np.concatenate(rows)))
    return np.concatenate(candidates)


def _marks(columns: Columns) -> Array:
    """Return uint64 [n], the MARKS of each sample as one number."""
    mark = np.zeros(len(columns), np.uint64)
    for name in MARKS:
        if hasattr(columns, name):
            mark ^= getattr(columns, name).astype(np.uint64)
            mark *= np.uint64(0x9E3779B97F4A7C15)  # the golden ratio: mixes upwards
            mark ^= mark >> np.uint64(32)
    return mark


def _several(rows: Array) -> Array:
    """Return the rows whose `group` another one has, sorted by it."""
    rows = rows[np.argsort(rows["group"], kind="stable")]
    _, group, count = np.unique(rows["group"], return_inverse=True, return_counts=True)
    return rows[count[group] > 1]


def _grouped(splits: Sequence[Split[Any]], rows: Array) -> Array:
    """Return those of the candidates that are copies, with numbers of their groups from 0 on."""
    if not len(rows):
        return rows
    firsts = range(0, len(rows), STEP)
    workers = min(readers(0), len(firsts))
    work = partial(_digests, splits, rows)
    # of a store that this process has opened none may be forked
    here = workers == 1 and all(each.source.files for each in splits)
    read = map(work, firsts) if here else processes.results(work, firsts, workers)
    digests = np.concatenate([*read])
    _, group = np.unique(
        np.column_stack([rows["group"], digests]), axis=0, return_inverse=True
    )
    rows["group"] = group.reshape(-1)
    return _several(rows)


def _digests(splits: Sequence[Split[Any]], rows: Array, first: int) -> Array:
    """Return int64 [k, 2], a digest of all bytes of each of the STEP candidates from `first` on.

    One that cannot be read is a copy of none.
    """
    seen: dict[tuple[int, int], bytes] = {}  # links to one file are read once
    digests = []
    for row in rows[first : first + STEP]:
        source = splits[row["split"]].source
        sample = int(row["sample"])
        try:
            digest = storage.in_scan(
                partial(_digest, source, sample, seen), partial(source.name, sample)
            )
        except storage.StorageFault:
            raise
        except (UserError, OSError):
            digest = os.urandom(16)
        digests.append(np.frombuffer(digest, np.int64))
    return np.stack(digests)


def _digest(source: Source, sample: int, seen: dict[tuple[int, int], bytes]) -> bytes:
    if not source.files:
        return hashlib.blake2b(source.read(sample), digest_size=16).digest()
    with open(cast(FileSource, source).path(sample), "rb") as file:
        status = os.fstat(file.fileno())
        key = status.st_dev, status.st_ino
        if key not in seen:
            whole = hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16))
            seen[key] = whole.digest()
    return seen[key]


def warnings(splits: Mapping[str, Split[Any]]) -> list[str]:
    """Return a line for copies that training and validation share, and one for those with unlike labels."""
    names, each = list(splits), list(splits.values())
    rows = find(each)
    if not len(rows):
        return []
    split, sample, group = (rows[name] for name in COPY.names or ())

    def called(row: int) -> str:
        return str(each[split[row]].source.name(int(sample[row])))

    def pair(chosen: Array, other: Array) -> str:
        """Name the first of the `chosen` rows, and what it is a copy of among the `other` ones."""
        row = int(np.flatnonzero(chosen)[0])
        twin = int(np.flatnonzero(other & (group == group[row]))[0])
        return f"such as {called(row)} and {called(twin)}"

    lines = []
    shared = (split == 1) & np.isin(group, group[split == 0])
    if shared.any():
        lines.append(
            f"{shared.sum():,} of {len(each[1].columns):,} samples of {names[1]} are copies of {names[0]}'s, "
            f"{pair(shared, split == 0)}: what was trained on is validated"
        )
    labels = _labels(each, rows)
    # sorted by group: a label that is not that of its group's first row
    begins = np.searchsorted(group, group)
    other = labels != labels[begins]
    if other.any():
        unlike = np.isin(group, group[other])
        first = labels[begins] == labels
        lines.append(
            f"{unlike.sum():,} samples are copies of another class's, {pair(other, first)}"
        )
    return lines


def _labels(splits: Sequence[Split[Any]], rows: Array) -> Array:
    """Return int64 [k], which is the same for samples with the same label, or the same set of labels."""
    labels = np.zeros(len(rows), np.int64)
    known: dict[bytes, int] = {}
    for number, split in enumerate(splits):
        columns = split.columns
        own = rows["split"] == number
        if hasattr(columns, "label"):
            label = columns.label[rows["sample"][own]]
            if columns.several is not None:
                sets = (columns.several[one].tobytes() for one in label.tolist())
                label = [known.setdefault(one, len(known)) for one in sets]
            labels[own] = label
    return labels
