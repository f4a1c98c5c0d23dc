"""Images in tar shards, local or behind URLs: members, the samples that they form, labels and bytes.

A shard is a tar of samples as WebDataset has them: the members of one sample have one key, the name up to the
first dot of its last part, wherever in the shard they are. But an image with a label of its own, x.5.png with
x.5.cls, is a sample, though x.png with x.cls has the same key: WebDataset would lose one of the two. Must not
know formats of images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from contracts import Split, UserError
from dataset.scan import file_tree
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.cache import Progress, reading
from dataset.scan.file_tree import names_below
from dataset.scan.lists import class_names
from dataset.scan.manifest import is_url, masked, printable
from dataset.scan.packed_columns import Beside, Look, beside
from dataset.stores import bucket, remote, shards
from dataset.stores.bucket import SHARDS
from dataset.stores.shards import (
    Entry,
    Index,
    Labelled,
    Shard,
    Shards,
    Stored,
    StoredEntries,
    index_options,
    split_of,
)
from system.user_files import open_bytes

BLOCK = 512
WINDOW = 16 << 10
"""Bytes that a walk reads at once: a header, and the small members that follow."""
LONGEST = 1 << 20
"""Bytes of a name, or of an extended header, at most."""
REGULAR = (b"0", b"\0", b"7")
LINKS = (b"1", b"2")
WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")
PACKED = {
    b"\x1f\x8b": "gunzip -k",
    b"BZh": "bunzip2 -k",
    b"\xfd7zXZ": "unxz -k",
    b"\x28\xb5\x2f\xfd": "unzstd",
}
"""What a compressed file begins with -> the command that unpacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in a tar, or a link, which is `unfit`."""

    name: bytes
    offset: int  # of its first byte
    size: int  # bytes
    unfit: str = ""  # why its bytes are in no one range


class Ranges:
    """Reads ranges of an open shard of `end` bytes, at least a window at a time."""

    def __init__(self, read_at: ReadAt, end: int, window: int = WINDOW) -> None:
        self.end = end
        self._read_at = read_at
        self._least = window
        self._begin = 0
        self._window = b""

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range, fewer where the file ends before. Raises OSError."""
        at = offset - self._begin
        if at < 0 or at + length > len(self._window):
            self._window = self._read_at(offset, max(length, self._least))
            self._begin = offset
            at = 0
        return self._window[at : at + length]


def members(ranges: Ranges, path: object) -> Iterator[Member]:
    """Yield the members that are files or links, in their order.

    Raises UserError, in one line, for what is no tar, is compressed, cut short or still being written, and
    OSError.
    """
    offset = 0
    shared: dict[bytes, bytes] = {}  # what a global header says of all that follow
    said: dict[bytes, bytes] = {}  # what extended headers say of the next member
    while True:
        block = ranges.read(offset, BLOCK)
        if len(block) < BLOCK:
            raise _cut(path, ranges, "its end mark is missing")
        if not block.strip(b"\0"):
            _require_end(ranges, path, offset)
            return
        _require_header(block, path, offset)
        kind = block[156:157]
        size = _number(block[124:136])
        begin = offset + BLOCK
        if kind in b"xgLK" and size > LONGEST:
            raise UserError(f"--data: {path} is damaged at byte {offset:,}: a name of {size:,} bytes")
        if kind in (b"x", b"g"):
            found = _records(ranges.read(begin, size))
            (shared if kind == b"g" else said).update(found)
        elif kind in (b"L", b"K"):
            if kind == b"L":
                said[b"path"] = ranges.read(begin, size).rstrip(b"\0")
        else:
            told = {**shared, **said}
            said = {}
            size = int(told.get(b"size", size))
            if kind in WITHOUT_DATA:
                size = 0
            name = told.get(b"path") or _name(block)
            sparse = kind == b"S" or any(key.startswith(b"GNU.sparse") for key in told)
            name = told.get(b"GNU.sparse.name", name)
            if kind == b"S":
                begin = _behind_sparse(ranges, block, begin)
            if kind in (*REGULAR, *LINKS, b"S") and not name.endswith(b"/"):
                unfit = "a sparse file of the tar" if sparse else "a link" if kind in LINKS else ""
                # `tar cf x.tar .` and `tar cf x.tar data/.` name members ./x and data/./x
                plain = b"/".join(part for part in name.split(b"/") if part != b".")
                yield Member(name=plain, offset=begin, size=size, unfit=unfit)
        offset = begin + -(-size // BLOCK) * BLOCK
        if offset > ranges.end:
            raise _cut(path, ranges, f"a member ends at byte {offset:,}")


def require_unpacked(path: object, head: bytes) -> None:
    """Raise UserError, with the command that unpacks it, for a compressed file that begins with `head`."""
    for magic, command in PACKED.items():
        if head.startswith(magic):
            raise UserError(
                f"--data: {path} is compressed, so that no sample can be read without all before it; "
                f"unpack it, and move it elsewhere: {command} {path}"
            )


def _cut(path: object, ranges: Ranges, why: str) -> UserError:
    return UserError(
        f"--data: {path} is cut short, or still being written: {why}, and the file has {ranges.end:,} bytes; "
        "start when it is complete, or copy it again"
    )


def _require_header(block: bytes, path: object, offset: int) -> None:
    """Raise UserError unless a block has the checksum of a header; some tars sum signed bytes."""
    if offset == 0:
        require_unpacked(path, block)
    rest = block[:148] + b" " * 8 + block[156:]
    total = sum(rest)
    if _number(block[148:156]) not in (total, total - 256 * sum(byte > 127 for byte in rest)):
        what = f"is damaged at byte {offset:,}: no header of a member" if offset else "is no tar file"
        raise UserError(f"--data: {path} {what}; write or copy it again")


def _require_end(ranges: Ranges, path: object, offset: int) -> None:
    """Raise UserError for a second tar behind the end mark at `offset`: no tar would read it."""
    while block := ranges.read(offset, WINDOW):
        if rest := block.lstrip(b"\0"):
            raise UserError(
                f"--data: {path} goes on at byte {offset + len(block) - len(rest):,}, behind its end "
                "mark, as tars that were joined by cat do; join them by tar --concatenate, or keep them apart"
            )
        offset += len(block)


def _number(field: bytes) -> int:
    """Return a number of a header, octal or in base 256; -1 where it is none."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.split(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _name(block: bytes) -> bytes:
    name = block[:100].split(b"\0")[0]
    if block[257:263] == b"ustar\0" and (folder := block[345:500].split(b"\0")[0]):
        return folder + b"/" + name
    return name


def _records(block: bytes) -> dict[bytes, bytes]:
    """Return what an extended header says: lines 'length key=value', where values may hold ends of lines."""
    found = {}
    while block.strip(b"\0"):
        digits = block.partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        if length <= len(digits):
            break
        key, _, value = block[len(digits) + 1 : length - 1].partition(b"=")
        found[key] = value
        block = block[length:]
    return found


def _behind_sparse(ranges: Ranges, block: bytes, begin: int) -> int:
    """Return where the data of one of GNU's old sparse files begins: behind more blocks of its header."""
    goes_on = block[482]
    while goes_on:
        goes_on = (ranges.read(begin, BLOCK) + bytes(BLOCK))[504]
        begin += BLOCK
    return begin


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
ENDINGS_OF_PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst")


def shards_of(folder: Path) -> list[str]:
    """Return the sorted names of the tar files of a folder. Raises UserError for compressed ones, OSError."""
    names = file_tree.names_below(folder)
    for name in names:
        if name.endswith(ENDINGS_OF_PACKED) and (".tar." in name or name.endswith(".tgz")):
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
    return shards.open_index(
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


FILES = False
HOLDS = "a folder with tar shards, train/*.tar and val/*.tar, or train/shards.txt with their URLs"
LABELS = "label_key"


class TarShards(Shards):
    """The images of folder/*.tar by name; `how` is that of dataset.stores.tar.open_index."""

    def __init__(self, folder: Path, *, cache: Path, **how: Any) -> None:
        super().__init__(partial(open_index, folder, cache=cache, **how))
        self._folder = folder
        self._cache = cache

    @cached_property
    def urls(self) -> Mapping[str, str]:
        """Return the whole URL of each shard that lies behind one, by its name."""
        return urls_of(self._folder)

    @property
    def remote(self) -> bool:
        """Whether shards lie behind URLs."""
        return os.path.lexists(self._folder / SHARDS)

    def files(self) -> Sequence[Path]:
        """Return what shows a change of shards. Raises UserError."""
        return shelf(self._folder, self._cache).paths


def missing(data: Path, split: str) -> str:
    """Return what is not there: shards in a folder of that name; `open` refuses compressed ones."""
    names: list[str] = []
    with suppress(OSError):
        names = names_below(data / split)
    endings = (".tar", *(f".tar{ending}" for ending in ENDINGS_OF_PACKED), ".tgz")
    return "" if SHARDS in names or any(name.endswith(endings) for name in names) else f"{split}/*.tar"


def open(data: Path, split: str, *, labels: str | None = None, **how: Any) -> Split:
    """Open the images of data/<split>/*.tar, as dataset.stores.SourceModule says.

    `labels` is the key of a sample's .json that holds its label, which is else in .cls. Raises UserError.
    """
    real = Path(os.path.realpath(data))
    folder = real / split
    labelled = Labelled(
        shards=TarShards(folder, samples=True, label_key=labels, **index_options(how)),
        named=class_names(folder, real, real / "train"),
        expected="a label is the number of a class or its name, in .cls or by --label-key",
        without=f"no label: no {labels} in its .json" if labels else "no label: no .cls beside it",
    )
    return labelled.open(
        real,
        split,
        key=["tar 2", split, labels],  # as the index has it
        where=f"{folder}/*.tar",
        beside=shelf(folder, how["cache"]).beside("images"),
        **how,
    )


def entries(data: Path, cache: Path) -> StoredEntries:
    """Return the images of COCO's annotations: train2017/<file_name> is a member of train2017/*.tar."""
    return StoredEntries(
        data,
        lambda split: TarShards(data / split, samples=False, cache=cache),
        remote=any((folder / SHARDS).exists() for folder in data.iterdir()),
    )


def source(columns: Any, read_delay_s: float = 0.0) -> Stored:
    """Return the bytes of the members that the columns of COCO's images name."""
    split = split_of(columns)
    # beside the columns: the scan has left the index there
    shards = TarShards(columns.root / split, samples=False, cache=columns.folder.parent.parent)
    if shards.remote:
        shards.index  # noqa: B018  # here, since heads are asked for in a process, which a worker may not start
    return Stored(columns, shards, prefix=os.fsencode(split) + b"/", read_delay_s=read_delay_s)
