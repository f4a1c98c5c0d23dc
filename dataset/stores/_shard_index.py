"""Where the images of shards lie, files of many samples: an index, written once, found again while none has
changed.

Must not know how a kind of shard is walked: a `Walk` finds the entries of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from contracts import Array, UserError
from dataset.scan import file_tree
from dataset.scan.cache import Progress, reading, remembered
from dataset.scan.manifest import Manifest, Rejected, Rejects, is_url, printable
from dataset.scan.packed_columns import Beside
from system import processes, storage
from system.resources import cores
from system.user_files import open_bytes

FEW = 64 << 20
"""Bytes of shards that threads have walked before processes have started."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Index(Manifest):
    """n entries of the shards of one split, in the order of their names' bytes. `classes` are the labels."""

    VERSION: ClassVar[str] = "shards 1"
    COLUMNS: ClassVar[dict[str, np.dtype[Any]]] = {
        "path_bytes": np.dtype("u1"),
        "path_offsets": np.dtype("i8"),
        "size": np.dtype("i8"),
        "offset": np.dtype("i8"),
        "shard": np.dtype("i4"),
        "label": np.dtype("i4"),
        "row": np.dtype("i8"),
        "shard_bytes": np.dtype("u1"),
        "shard_offsets": np.dtype("i8"),
        "shard_size": np.dtype("i8"),
        "shard_mtime": np.dtype("i8"),
    }
    FINGERPRINT: ClassVar[tuple[str, ...]] = ("path_bytes", "path_offsets", "size", "label")
    RAGGED: ClassVar[dict[str, tuple[str, ...]]] = {
        "path_offsets": ("path_bytes",),
        "shard_offsets": ("shard_bytes",),
    }

    offset: Array  # int64 [n], of the entry's first byte in its shard
    shard: Array  # int32 [n]
    label: Array  # int32 [n], index into classes; -1 = none
    row: Array  # int64 [n], number in its shard; -1 = an entry is called by its name
    shard_bytes: Array  # uint8 [bytes of all shards' names]
    shard_offsets: Array  # int64 [shards + 1]
    shard_size: Array  # int64 [shards], bytes
    shard_mtime: Array  # int64 [shards], ns since 1970; of URLs dataset.stores.remote.Head.number

    def find(self, name: bytes) -> int:
        """Return the place of the entry of that name; -1 where there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle) < name:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self) and self.entry(low) == name else -1

    def shard_path(self, shard: int) -> bytes:
        """Return the absolute path of a shard, or its URL."""
        begin, end = self.shard_offsets[shard : shard + 2].tolist()
        return place_of(self.root, self.shard_bytes[begin:end].tobytes())


class Entry(NamedTuple):
    """An image of a shard."""

    name: bytes  # b"" where it has none
    offset: int  # of its first byte
    size: int  # bytes
    label: str | None
    row: int = -1  # its number in the shard, where that is what messages call it


class Shard(NamedTuple):
    """What the walk over one shard has found."""

    size: int  # bytes
    mtime: int  # ns since 1970; of a URL dataset.stores.remote.Head.number
    entries: list[Entry]
    rejects: list[tuple[bytes, str]]  # (name of a member, why)


Walk = Callable[[str], Shard]
"""Name of a shard -> what it holds. Raises UserError and OSError."""


_Row = tuple[bytes, int, Entry]
"""Name, place of its shard, entry."""


def place_of(root: Path, shard: bytes) -> bytes:
    """Return the path of a shard below `root`, or its URL."""
    return shard if is_url(shard) else os.fsencode(root) + b"/" + shard


def open_index(
    root: Path,
    names: Callable[[list[file_tree.Visit]], list[str]],
    walked: Walk,
    *,
    key: list[Any],
    samples: bool,
    mapped: bool = False,
    packed: Beside | None = None,
    mtime_of: Callable[[str], int] | None = None,
    cache: Path,
    rescan: bool = False,
    progress: Progress | None = None,
) -> Index:
    """Return the index of shards below `root`, from `cache` when none has changed since.

    `names(visits)` lists them, and adds what shows a change; `key` (JSON values) is what the walk depends on
    beside them. Entries are the images of `samples`, with their labels, or all images by their names. Where
    one has no name, or two samples have the same and other bytes, each is named by its shard and its own
    name, or its row.
    Shards that are `mapped` are walked in processes: the system ends one whose mapping cannot be read.
    The columns `packed` beside these shards are taken in place of a walk; `mtime_of` a shard's name is
    then what the index keeps of it. Raises UserError.
    """

    def fill(made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress) -> Sequence[str]:
        shards = names(visits)
        if packed is not None and mtime_of is not None and not rescan:
            taken = packed.taken(Index, made, lambda _: True)
            if taken is not None:  # a copy has other dates, and other names behind URLs
                _save(made, {"shard_mtime": list(map(mtime_of, shards)), **_names(shards)})
                return taken
        found = []
        # this process will fork again: what reads URLs is not to be started in it
        threads = not mapped and not any(map(is_url, shards)) and _bytes(root, shards) <= FEW
        workers = min(len(shards), 8 if threads else min(32, max(4 * int(cores()), 1)))
        work = partial(_walked, walked, root)
        try:
            with reading(root):
                for shard in processes.results(work, shards, workers, threads=threads):
                    found.append(shard)
                    say(len(found), len(shards), "reading shards")
        except BrokenProcessPool:
            raise UserError(
                f"--data: a process that reads the shards of {root} was killed: {processes.KILLED}; "
                "mend that, and start again"
            ) from None
        for name, shard in zip(shards, found, strict=True):
            for member, why in shard.rejects:
                rejects(place_of(root, os.fsencode(name)) + b":" + member, why)
        return _write(root, shards, found, made, rejects, samples=samples)

    return remembered(
        Index, root, [str(root), *key], fill, root=root, cache=cache, rescan=rescan, progress=progress
    )


def _walked(walked: Walk, root: Path, name: str) -> Shard:
    """Return what a shard holds; where the storage fails it is walked again. Raises UserError and OSError."""
    called = printable(place_of(root, os.fsencode(name)))
    try:
        return storage.in_scan(partial(walked, name), lambda: called)
    except Rejected as why:  # an object that is gone, or another one, since its head was asked for
        raise UserError(f"--data: {called}: {why}; start again") from None
    except OSError as error:
        raise storage.end_scan(error, called) from None


def _write(
    real: Path,
    shards: list[str],
    walked: list[Shard],
    made: Path,
    rejects: Rejects,
    *,
    samples: bool,
) -> list[str]:
    """Write the columns of all shards, and return the labels."""
    rows = [(entry.name, place, entry) for place, shard in enumerate(walked) for entry in shard.entries]
    rows.sort(key=lambda row: row[:2])
    twice = [pair for pair in pairwise(rows) if pair[0][0] == pair[1][0]]
    if samples and (
        not all(name for name, _, _ in rows) or not all(_same(real, shards, *pair) for pair in twice)
    ):
        bases = [name.rpartition("/")[2] for name in shards]  # of URLs too, unless two have the same
        own = bases if len({*bases}) == len(bases) else shards
        rows = [(_apart(own[place], entry), place, entry) for _, place, entry in rows]
        rows.sort(key=lambda row: row[0])
    elif twice and not samples:
        for _, (name, place, _) in twice:
            shard = place_of(real, os.fsencode(shards[place]))
            rejects(shard + b":" + name, "this name was there before")
        rows = [next(same) for _, same in groupby(rows, key=itemgetter(0))]
    number_of: dict[str, int] = {}
    labels = [
        -1 if row[2].label is None else number_of.setdefault(row[2].label, len(number_of)) for row in rows
    ]
    values: dict[str, Any] = {
        "path_offsets": np.cumsum([0, *(len(row[0]) for row in rows)]),
        "path_bytes": np.frombuffer(b"".join(row[0] for row in rows), np.uint8),
        "size": [row[2].size for row in rows],
        "offset": [row[2].offset for row in rows],
        "shard": [row[1] for row in rows],
        "label": labels,
        "row": [row[2].row for row in rows],
        **_names(shards),
        "shard_size": [shard.size for shard in walked],
        "shard_mtime": [shard.mtime for shard in walked],
    }
    _save(made, values)
    return list(number_of)


def _same(root: Path, shards: Sequence[str], one: _Row, other: _Row) -> bool:
    """Whether two rows have the same bytes, as where one file was packed twice: then one name will do."""
    contents = []
    for _, place, entry in (one, other):
        if entry.row < 0 or one[2].size != other[2].size:
            return False
        with reading(root / shards[place]), open_bytes(root / shards[place]) as file:
            file.seek(entry.offset)
            contents.append(file.read(entry.size))
    return contents[0] == contents[1]


def _bytes(root: Path, shards: Sequence[str]) -> int:
    return sum(os.path.getsize(root / name) for name in shards)


def _names(shards: Sequence[str]) -> dict[str, Any]:
    """Return the columns of the shards' names."""
    names = list(map(os.fsencode, shards))
    return {
        "shard_bytes": np.frombuffer(b"".join(names), np.uint8),
        "shard_offsets": np.cumsum([0, *map(len, names)]),
    }


def _save(made: Path, values: dict[str, Any]) -> None:
    for column, value in values.items():
        np.save(made / f"{column}.npy", np.asarray(value, Index.COLUMNS[column]))


def _apart(shard: str, entry: Entry) -> bytes:
    """Return a name that no entry of another shard has."""
    own = entry.name if entry.row < 0 else b"%09d" % entry.row
    return os.fsencode(shard) + b"/" + own
