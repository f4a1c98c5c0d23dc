"""Where the samples of tar shards lie: an index, written once, found again while no shard has changed.

A shard is a tar of samples as WebDataset has them: the members of one sample have one key, the name up to the
first dot of its last part, wherever in the shard they are. Must not know formats or plans.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

import processes
import storage
from contracts import Array
from dataset import walk
from dataset.beside import beside
from dataset.manifest import Manifest, Rejects
from dataset.scan import Progress, reading, remembered
from dataset.tar_members import Member, Ranges, members, require_unpacked
from machine import cores
from user_files import open_bytes

IMAGES = frozenset(
    b"jpg jpeg jpe jfif png gif bmp webp tif tiff ppm pgm pbm pnm img image".split()  # as WebDataset and we
)
"""Endings of members that are images."""
LONGEST_LABEL = 4096
LONGEST_JSON = 16 << 20
"""Bytes of a label's member, at most."""
FEW = 64 << 20
"""Bytes of shards that threads have walked before processes have started."""
PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True, eq=False, kw_only=True)
class Index(Manifest):
    """n entries of the shards of one folder, in the order of their names' bytes. `classes` are the labels."""

    VERSION: ClassVar[str] = "tar 1"
    COLUMNS: ClassVar[dict[str, np.dtype[Any]]] = {
        "path_bytes": np.dtype("u1"),
        "path_offsets": np.dtype("i8"),
        "size": np.dtype("i8"),
        "offset": np.dtype("i8"),
        "shard": np.dtype("i4"),
        "label": np.dtype("i4"),
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
    shard_bytes: Array  # uint8 [bytes of all shards' names]
    shard_offsets: Array  # int64 [shards + 1]
    shard_size: Array  # int64 [shards], bytes
    shard_mtime: Array  # int64 [shards], ns since 1970

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
        """Return the absolute path of a shard."""
        begin, end = self.shard_offsets[shard : shard + 2].tolist()
        return os.fsencode(self.root) + b"/" + self.shard_bytes[begin:end].tobytes()


class _Entry(NamedTuple):
    """An image of a shard."""

    name: bytes
    offset: int
    size: int
    label: str | None


class _Shard(NamedTuple):
    """What the walk over one shard has found."""

    size: int
    mtime: int
    entries: list[_Entry]
    rejects: list[tuple[bytes, str]]  # (name of a member, why)


def shards_of(folder: Path) -> list[str]:
    """Return the sorted names of the tar files of a folder. Raises UserError for compressed ones, OSError."""
    names = sorted(os.listdir(folder))
    for name in names:
        if name.endswith(PACKED) and (".tar." in name or name.endswith(".tgz")):
            with open_bytes(folder / name) as file:
                require_unpacked(folder / name, file.read(8))
    return [name for name in names if name.endswith(".tar") and not name.startswith(".")]


def remember_shards(visits: list[walk.Visit], root: Path, folder: Path) -> list[str]:
    """Add what shows a change of a folder's shards, and return their names. Raises UserError."""
    below = os.fsencode(os.path.relpath(folder, root))
    walk.remember(visits, os.fsencode(root), below)
    with reading(folder):
        names = shards_of(folder)
    for name in names:
        walk.remember(visits, os.fsencode(root), os.path.join(below, os.fsencode(name)))
    return names


def open_index(
    folder: Path,
    *,
    samples: bool,
    label_key: str | None = None,
    cache: Path,
    rescan: bool = False,
    progress: Progress | None = None,
) -> Index:
    """Return the index of the shards in a folder, from `cache` when none has changed since.

    With `samples` an entry is the image of a sample, with its label: what .cls holds, or the value of
    `label_key` in .json. Without, entries are all images, without labels. The name of an entry is its
    member's, behind its shard's where two shards have samples of one name. Raises UserError.
    """
    real = Path(os.path.realpath(folder))

    def fill(made: Path, rejects: Rejects, visits: list[walk.Visit], say: Progress) -> Sequence[str]:
        shards = remember_shards(visits, real, real)
        walked = []
        paths = [real / name for name in shards]
        packed = beside(real.parent, real.name, "index", paths)
        if samples and not rescan and (taken := packed.taken(Index, made, lambda _: True)) is not None:
            dates = np.array([path.stat().st_mtime_ns for path in paths], np.int64)
            np.save(made / "shard_mtime.npy", dates)  # a copy's are others
            return taken
        work = partial(_walk, samples=samples, label_key=label_key)
        threads = sum(path.stat().st_size for path in paths) <= FEW
        workers = min(len(paths), 8 if threads else min(32, max(4 * int(cores()), 1)))
        with reading(real):
            for found in processes.results(work, paths, workers, threads=threads):
                walked.append(found)
                say(len(walked), len(paths), "reading shards")
        for name, shard in zip(shards, walked, strict=True):
            for member, why in shard.rejects:
                rejects(os.fsencode(real / name) + b":" + member, why)
        return _write(real, shards, walked, made, rejects, samples=samples)

    key = [str(real), "tar", samples, label_key]
    return remembered(Index, folder, key, fill, root=real, cache=cache, rescan=rescan, progress=progress)


def _write(
    real: Path,
    shards: list[str],
    walked: list[_Shard],
    made: Path,
    rejects: Rejects,
    *,
    samples: bool,
) -> list[str]:
    """Write the columns of all shards, and return the labels."""
    rows = [(entry.name, place, entry) for place, shard in enumerate(walked) for entry in shard.entries]
    rows.sort(key=lambda row: row[:2])
    twice = [later for earlier, later in pairwise(rows) if earlier[0] == later[0]]
    if twice and samples:
        rows = [(os.fsencode(shards[place]) + b"/" + name, place, entry) for name, place, entry in rows]
        rows.sort(key=lambda row: row[0])
    elif twice:
        for name, place, _ in twice:
            rejects(os.fsencode(real / shards[place]) + b":" + name, "another shard has this name already")
        again = {(name, place) for name, place, _ in twice}
        rows = [row for row in rows if row[:2] not in again]
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
        "shard_bytes": np.frombuffer(b"".join(map(os.fsencode, shards)), np.uint8),
        "shard_offsets": np.cumsum([0, *(len(os.fsencode(name)) for name in shards)]),
        "shard_size": [shard.size for shard in walked],
        "shard_mtime": [shard.mtime for shard in walked],
    }
    for column, dtype in Index.COLUMNS.items():
        np.save(made / f"{column}.npy", np.asarray(values[column], dtype))
    return list(number_of)


def _walk(path: Path, *, samples: bool, label_key: str | None) -> _Shard:
    """Return what a shard holds. Raises UserError and OSError."""
    try:
        opened = open_bytes(path)
    except OSError as error:
        raise storage.end_scan(error, str(path)) from None
    with opened:
        status = os.fstat(opened.fileno())
        ranges = Ranges(opened.fileno())
        rejects: list[tuple[bytes, str]] = []
        found: dict[bytes, Member] = {}
        labels: dict[bytes, str] = {}  # name of a member -> the label that it holds
        for member in members(ranges, path):
            if member.name.startswith(b".") or b"/." in member.name:
                continue
            if member.name in found:
                rejects.append((member.name, "comes again in this shard; the last one is taken"))
            found[member.name] = member
            if samples and (told := _label(ranges, member, label_key)) is not None:
                labels[member.name] = told
        entries = list(
            _samples(found, labels, label_key, rejects)
            if samples
            else _images(found, path.parent.name, rejects)
        )
        return _Shard(status.st_size, status.st_mtime_ns, entries, rejects)


def _ending(name: bytes) -> bytes:
    return name.rpartition(b".")[2].lower()


def _label(ranges: Ranges, member: Member, label_key: str | None) -> str | None:
    """Return the label that a member holds; None where it holds none, and "" where it cannot be one."""
    ending = _ending(member.name)
    if ending == b"cls" and not member.unfit and member.size <= LONGEST_LABEL:
        text = ranges.read(member.offset, member.size).decode("utf-8", "replace").strip()
        return text if text.isprintable() else ""
    if ending == b"json" and label_key is not None and not member.unfit and member.size <= LONGEST_JSON:
        try:
            value = json.loads(ranges.read(member.offset, member.size))[label_key]
        except (ValueError, LookupError, TypeError):
            return None
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value).strip()
        return ""
    return None


def _images(found: dict[bytes, Member], folder: str, rejects: list[tuple[bytes, str]]) -> Iterator[_Entry]:
    """Yield the members that are images, without the name of the folder that they were packed from."""
    for name, member in found.items():
        if _ending(name) in IMAGES:
            if member.unfit:
                rejects.append((name, member.unfit))
            else:
                yield _Entry(name.removeprefix(os.fsencode(folder) + b"/"), member.offset, member.size, None)


def _samples(
    found: dict[bytes, Member],
    labels: dict[bytes, str],
    label_key: str | None,
    rejects: list[tuple[bytes, str]],
) -> Iterator[_Entry]:
    """Yield the image of each sample that has one, with its label."""
    of_key: dict[bytes, list[bytes]] = {}
    for name in found:
        folder, slash, last = name.rpartition(b"/")
        of_key.setdefault(folder + slash + last.partition(b".")[0], []).append(name)
    for key, names in of_key.items():
        images = [name for name in names if _ending(name) in IMAGES]
        # x.jpg beside x.mask.png is the image
        plain = [name for name in images if name.count(b".", len(key)) == 1]
        images = images if len(images) < 2 or len(plain) != 1 else plain
        told = sorted({labels[name] for name in names if name in labels and _ending(name) == b"cls"})
        told = told or sorted({labels[name] for name in names if name in labels})
        why = ""
        if not images:
            why = f"no image among its members: {_listed(names)}"
        elif len(images) > 1:
            why = f"{len(images)} images in one sample: {_listed(images)}"
        elif unfit := found[images[0]].unfit:
            why = unfit
        elif len(told) > 1:
            why = f"{len(told)} labels: '{told[0]}' and '{told[1]}'"
        elif told == [""]:
            why = "its label is neither a word nor a number of a class"
        if why:
            rejects.append((images[0] if len(images) == 1 else key, why))
        else:
            member = found[images[0]]
            yield _Entry(member.name, member.offset, member.size, told[0] if told else None)


def _listed(names: Sequence[bytes]) -> str:
    """Return the first of some names."""
    few = ", ".join(os.fsdecode(name).encode("unicode_escape").decode() for name in islice(sorted(names), 3))
    return few + (", ..." if len(names) > 3 else "")
