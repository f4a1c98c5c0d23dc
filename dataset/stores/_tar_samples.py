"""Where the samples of tar shards lie.

A shard is a tar of samples as WebDataset has them: the members of one sample have one key, the name up to the
first dot of its last part, wherever in the shard they are. But an image with a label of its own, x.5.png with
x.5.cls, is a sample, though x.png with x.cls has the same key: WebDataset would lose one of the two. Must not
know formats or plans.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from contracts import UserError
from dataset.scan import file_tree
from dataset.scan.cache import Progress, reading
from dataset.scan.manifest import is_url, masked, printable
from dataset.scan.packed_columns import Beside, Look, beside
from dataset.stores import _shard_index, bucket, remote
from dataset.stores._shard_index import Entry, Index, Shard
from dataset.stores._tar_headers import Member, Ranges, members, require_unpacked
from system.user_files import open_bytes

IMAGES = frozenset(
    # as WebDataset and we have them; a pair is of dataset.pairs.entry
    b"jpg jpeg jpe jfif png gif bmp webp tif tiff ppm pgm pbm pnm img image pair".split()
)
"""Endings of members that are images."""
LONGEST_LABEL = 4096
LONGEST_JSON = 16 << 20
"""Bytes of a label's member, at most."""
REMOTE_WINDOW = 1 << 20
"""Bytes that a walk asks of a server at once: an answer takes as long as some hundred KiB."""
PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst")


def shards_of(folder: Path) -> list[str]:
    """Return the sorted names of the tar files of a folder. Raises UserError for compressed ones, OSError."""
    names = file_tree.names_below(folder)
    for name in names:
        if name.endswith(PACKED) and (".tar." in name or name.endswith(".tgz")):
            with open_bytes(folder / name) as file:
                require_unpacked(folder / name, file.read(8))
    return [name for name in names if name.endswith(".tar") and not name.startswith(".")]


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The shards of a split: files in its folder, or those that its shards.txt names by their URLs."""

    folder: Path
    names: Sequence[str]  # below the folder, or URLs without a query
    urls: Mapping[str, str]  # name -> the whole URL; none of files
    heads: Mapping[str, remote.Head]  # of URLs
    looks: Sequence[Look]  # of URLs where columns lie beside them
    paths: Sequence[Path]  # of all that shows a change

    def listed(self, visits: list[file_tree.Visit]) -> list[str]:
        """Add what shows a change, and return the names. Raises UserError."""
        file_tree.remember_paths(visits, self.folder, self.paths)
        return [*self.names]

    def beside(self, what: str) -> Beside:
        """Return the place of the columns beside these shards."""
        files = [self.folder / name for name in self.names if not is_url(name)]
        return beside(self.folder.parent, self.folder.name, what, files, self.looks)

    def mtime_of(self, name: str) -> int:
        """Return what an index keeps of a shard, to see a change."""
        return self.heads[name].number if is_url(name) else os.stat(self.folder / name).st_mtime_ns


def shelf(folder: Path, cache: Path) -> Shelf:
    """Return the shards of a folder; heads of those behind URLs are asked for once. Raises UserError."""
    urls = urls_of(folder)
    if not urls:
        with reading(folder):
            names = shards_of(folder)
        paths = [folder, *(folder / name for name in names)]
        return Shelf(folder=folder, names=names, urls={}, heads={}, looks=(), paths=paths)
    columns = (folder.parent / f"{folder.name}.columns").exists()
    told, found = bucket.described([*urls.values()], cache, looks=columns)
    heads = {name: head for name, (head, _) in zip(urls, found, strict=True)}
    looks = [
        (name.rpartition("/")[2], head.size, look) for name, (head, look) in zip(urls, found, strict=True)
    ]
    return Shelf(
        folder=folder,
        names=[*urls],
        urls=urls,
        heads=heads,
        looks=looks if columns else (),
        paths=[folder, folder / bucket.SHARDS, told],
    )


def urls_of(folder: Path) -> dict[str, str]:
    """Return name -> URL of the shards in a folder's shards.txt; none without it. Raises UserError."""
    path = folder / bucket.SHARDS
    found: dict[str, str] = {}
    if not os.path.lexists(path):
        return found
    with reading(path), open_bytes(path) as file:
        lines = file.read()
    for number, content in bucket.shard_lines(lines):
        line = os.fsdecode(content)
        if not is_url(line):
            shown = printable(content)[:100]
            raise UserError(f"--data: {path} line {number} is '{shown}'; each line is the URL of a shard")
        if found.setdefault(remote.plain(line), line) != line:
            raise UserError(f"--data: {path} line {number} names {masked(line)} again")
    return found


def open_index(
    folder: Path,
    *,
    samples: bool,
    label_key: str | None = None,
    cache: Path,
    rescan: bool = False,
    progress: Progress | None = None,
) -> Index:
    """Return the index of the tar shards in a folder, from `cache` when none has changed since.

    With `samples` an entry is the image of a sample, with its label: what .cls holds, or with `label_key` its
    value in .json. Without, entries are all images, without labels. The name of an entry is its
    member's. Raises UserError.
    """
    real = Path(os.path.realpath(folder))
    own = shelf(real, cache)
    return _shard_index.open_index(
        real,
        own.listed,
        lambda name: _walk(own, name, samples=samples, label_key=label_key),
        key=["tar 2", samples, label_key],  # another number for another rule of what is a sample
        samples=samples,
        packed=own.beside("index") if samples else None,
        mtime_of=own.mtime_of,
        cache=cache,
        rescan=rescan,
        progress=progress,
    )


def _walk(own: Shelf, name: str, *, samples: bool, label_key: str | None) -> Shard:
    """Return what a shard holds. Raises UserError and OSError."""
    path = own.folder / name
    if is_url(name):
        head = own.heads[name]
        with remote.opened(own.urls[name], (head.size, head.number)) as (size, read_at):
            ranges = Ranges(read_at, size, REMOTE_WINDOW)
            return Shard(size, head.number, *_entries(ranges, name, own.folder.name, label_key, samples))
    with open_bytes(path) as opened:
        status = os.fstat(opened.fileno())
        ranges = Ranges(lambda offset, length: os.pread(opened.fileno(), length, offset), status.st_size)
        entries = _entries(ranges, path, own.folder.name, label_key, samples)
        return Shard(status.st_size, status.st_mtime_ns, *entries)


def _entries(
    ranges: Ranges, path: object, folder: str, label_key: str | None, samples: bool
) -> tuple[list[Entry], list[tuple[bytes, str]]]:
    """Return the images of a shard, and what is left out of it. Raises UserError and OSError."""
    rejects: list[tuple[bytes, str]] = []
    found: dict[bytes, Member] = {}
    labels: dict[bytes, str] = {}  # name of a member -> the label that it holds
    for member in members(ranges, path):
        if any(part.startswith(b".") and part != b".." for part in member.name.split(b"/")):
            continue
        if member.name in found:
            rejects.append((member.name, "comes again in this shard; the last one is taken"))
            labels.pop(member.name, None)
        found[member.name] = member
        if samples and (told := _label(ranges, member, label_key)) is not None:
            labels[member.name] = told
    images = _samples(found, labels, rejects) if samples else _images(found, folder, rejects)
    return list(images), rejects


def _ending(name: bytes) -> bytes:
    return name.rpartition(b".")[2].lower()


def _stem(name: bytes) -> bytes:
    """Return a name without its ending, with the dots before that."""
    return name.rpartition(b".")[0]


def _label(ranges: Ranges, member: Member, label_key: str | None) -> str | None:
    """Return the label that a member holds; None where it holds none, and "" where it cannot be one."""
    ending = _ending(member.name)
    if ending == b"cls" and label_key is None and not member.unfit and member.size <= LONGEST_LABEL:
        text = os.fsdecode(ranges.read(member.offset, member.size)).strip()
        return text if len(text.splitlines()) == 1 and "\0" not in text else ""
    if ending == b"json" and label_key is not None and not member.unfit and member.size <= LONGEST_JSON:
        try:
            value = json.loads(ranges.read(member.offset, member.size))[label_key]
        except (ValueError, LookupError, TypeError):
            return None
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value).strip()
        return ""
    return None


def _images(found: dict[bytes, Member], folder: str, rejects: list[tuple[bytes, str]]) -> Iterator[Entry]:
    """Yield the members that are images, without the name of the folder that they were packed from."""
    for name, member in found.items():
        if _ending(name) in IMAGES:
            if member.unfit:
                rejects.append((name, member.unfit))
            else:
                yield Entry(name.removeprefix(os.fsencode(folder) + b"/"), member.offset, member.size, None)


def _samples(
    found: dict[bytes, Member],
    labels: dict[bytes, str],
    rejects: list[tuple[bytes, str]],
) -> Iterator[Entry]:
    """Yield the image of each sample that has one, with its label."""
    of_key: dict[bytes, list[bytes]] = {}
    for name in found:
        folder, slash, last = name.rpartition(b"/")
        of_key.setdefault(folder + slash + last.partition(b".")[0], []).append(name)
    for key, members_of_key in of_key.items():
        for names in _parted(key, members_of_key, labels):
            images = [name for name in names if _ending(name) in IMAGES]
            plain = [name for name in images if _stem(name) == key]
            if len(images) > 1 and len(plain) == 1:
                # x.jpg is the image, and x.mask.png belongs to it, or has lost its label
                why = f"not read: the image of its sample is {_listed(plain)}"
                rejects += [(name, why) for name in images if name not in plain]
                images = plain
            told = sorted({labels[name] for name in names if name in labels})
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
                rejects += [(name, why) for name in images or [key]]
            else:
                member = found[images[0]]
                yield Entry(member.name, member.offset, member.size, told[0] if told else None)


def _parted(key: bytes, names: list[bytes], labels: dict[bytes, str]) -> Iterator[list[bytes]]:
    """Yield the members of each sample of one key: x.5.png with the label x.5.cls is one of its own."""
    labelled = {_stem(name) for name in names if name in labels}
    own = dict.fromkeys(_stem(name) for name in names if _ending(name) in IMAGES and _stem(name) in labelled)
    if [*own] in ([], [key]):
        yield names
        return
    for stem in own:
        yield [name for name in names if _stem(name) == stem]
    rest = [name for name in names if _stem(name) not in own]
    if any(_ending(name) in IMAGES for name in rest):
        yield rest


def _listed(names: Sequence[bytes]) -> str:
    """Return the first of some names."""
    few = ", ".join(os.fsdecode(name).encode("unicode_escape").decode() for name in islice(sorted(names), 3))
    return few + (", ..." if len(names) > 3 else "")
