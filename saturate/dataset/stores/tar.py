"""Images in tar shards: members, the samples that they form, and labels.

A shard is a tar of samples as WebDataset has them: the members of one sample have one key, the name up to the
first dot of its last part, wherever in the shard they are. But an image with a label of its own, x.5.png with
x.5.cls, is a sample, though x.png with x.cls has the same key: WebDataset would lose one of the two. Must not
know formats of images.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from saturate.contracts import UserError
from saturate.dataset.scan.manifest import printable
from saturate.dataset.stores.shards import Entry, Shard, ShardKind

IMAGES = frozenset(
    # as WebDataset and we have them
    b"jpg jpeg jpe jfif png gif bmp webp tif tiff ppm pgm pbm pnm img image".split()
)
"""Endings of members that are images."""
LONGEST_LABEL = 4096
LONGEST_JSON = 16 << 20
"""Bytes of a label's member, at most."""

# --- members ------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A file in a tar, or a link, which is `unfit`."""

    name: bytes
    offset: int  # of its first byte
    size: int  # bytes
    unfit: str = ""  # why its bytes are in no one range


def members(file: BinaryIO, path: object, end: int) -> Iterator[Member]:
    """Yield the members that are files or links, in their order, of the tar from here to byte `end`.

    The file may be sought and read between two of them. Raises UserError for what is no tar, is compressed,
    cut short or still being written, and OSError.
    """
    try:
        tar = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")
        while (info := tar.next()) is not None:
            # tarfile keeps all that it has read: a shard may have millions
            tar.members.clear()  # type: ignore[attr-defined]
            if not info.offset < tar.offset <= end:
                break
            if info.isdir() or not (info.isreg() or info.islnk() or info.issym()):
                continue
            unfit = "a sparse file of the tar" if info.issparse() else ""
            # `tar cf x.tar .` and `tar cf x.tar data/.` name members ./x and data/./x
            parts = info.name.encode("utf-8", "surrogateescape").split(b"/")
            yield Member(
                name=b"/".join(part for part in parts if part != b"."),
                offset=info.offset_data,
                size=info.size,
                unfit=unfit if info.isreg() else "a link",
            )
        # tarfile takes a damaged header for the end, and there it stops
        position = tar.offset
    except (tarfile.TarError, ValueError) as error:
        raise UserError(
            f"--data: {path} is no tar file that can be read, or is compressed, or cut short ({error}); unpack, "
            "write or copy it again"
        ) from None
    file.seek(min(position, end))
    rest = 0
    while block := file.read(min(1 << 14, end - file.tell())):
        rest += len(block)
        if block.strip(b"\0"):
            position = file.tell() - len(block.lstrip(b"\0"))
            rest = 0
            break
    if rest < tarfile.BLOCKSIZE:
        raise UserError(
            f"--data: {path} has no end mark at byte {position:,}: it is damaged, cut short, still being "
            "written, or several tars joined by cat; start when it is complete, or write or copy it again"
        )


# --- samples ------------------------------------------------------------------------------------------------


def walk(shard: Shard) -> Iterator[Entry]:
    """Yield the image of each sample with its label: what .cls holds, or the value of the key in .json.

    Raises UserError and OSError.
    """
    by_name: dict[bytes, Member] = {}
    labels: dict[bytes, str] = {}  # name of a member -> the label that it holds
    for member in members(shard.file, shard.path, shard.size):
        name = member.name
        if any(part.startswith(b".") and part != b".." for part in name.split(b"/")):
            continue
        if name in by_name:
            shard.reject(name, "comes again in this shard; the last one is taken")
            labels.pop(name, None)
        by_name[name] = member
        label = _label(shard, member)
        if label is not None:
            labels[name] = label
    of_key: dict[bytes, list[bytes]] = {}
    for name in by_name:
        folder, slash, last = name.rpartition(b"/")
        of_key.setdefault(folder + slash + last.partition(b".")[0], []).append(name)
    for key, names in of_key.items():
        for sample in _parted(key, names, labels):
            entry = _entry(key, sample, by_name, labels, shard)
            if entry is not None:
                yield entry


def _ending(name: bytes) -> bytes:
    return name.rpartition(b".")[2].lower()


def _stem(name: bytes) -> bytes:
    """Return a name without its ending, with the dots before that."""
    return name.rpartition(b".")[0]


def _label(shard: Shard, member: Member) -> str | None:
    """Return the label that a member holds; None where it holds none, and "" where it cannot be one."""
    key = shard.label_key
    wanted, longest = (
        (b"cls", LONGEST_LABEL) if key is None else (b"json", LONGEST_JSON)
    )
    if _ending(member.name) != wanted or member.unfit or member.size > longest:
        return None
    shard.file.seek(member.offset)
    content = shard.file.read(member.size)
    if key is None:
        text = os.fsdecode(content).strip()
        return text if len(text.splitlines()) == 1 and "\0" not in text else ""
    try:
        value = json.loads(content)[key]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    fits = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value).strip() if fits else ""


def _parted(
    key: bytes, names: list[bytes], labels: dict[bytes, str]
) -> Iterator[list[bytes]]:
    """Yield the members of each sample of one key: x.5.png with the label x.5.cls is one of its own."""
    labelled = {_stem(name) for name in names if name in labels}
    images = [name for name in names if _ending(name) in IMAGES]
    stems = dict.fromkeys(_stem(name) for name in images if _stem(name) in labelled)
    if [*stems] in ([], [key]):
        yield names
        return
    for stem in stems:
        yield [name for name in names if _stem(name) == stem]
    if any(_stem(name) not in stems for name in images):
        yield [name for name in names if _stem(name) not in stems]


def _entry(
    key: bytes,
    names: list[bytes],
    by_name: dict[bytes, Member],
    labels: dict[bytes, str],
    shard: Shard,
) -> Entry | None:
    """Return the image of a sample with its label, or None where it is named as no sample."""
    images = [name for name in names if _ending(name) in IMAGES]
    plain = [name for name in images if _stem(name) == key]
    if len(images) > 1 and len(plain) == 1:
        # x.jpg is the image, and x.mask.png belongs to it, or has lost its label
        for name in images:
            if name not in plain:
                shard.reject(
                    name, f"not read: the image of its sample is {_listed(plain)}"
                )
        images = plain
    values = sorted({labels[name] for name in names if name in labels})
    if not images:
        why = f"no image among its members: {_listed(names)}"
    elif len(images) > 1:
        why = f"{len(images)} images in one sample: {_listed(images)}"
    elif by_name[images[0]].unfit:
        why = by_name[images[0]].unfit
    elif not values:
        label_key = shard.label_key
        why = f"no {label_key} in its .json" if label_key else "no .cls beside it"
        why = f"no label: {why}"
    elif len(values) > 1:
        why = f"{len(values)} labels: '{values[0]}' and '{values[1]}'"
    elif not values[0]:
        why = "its label is neither a word nor a number of a class"
    else:
        member = by_name[images[0]]
        return Entry(member.name, member.offset, member.size, values[0])
    for name in images or [key]:
        shard.reject(name, why)
    return None


def _listed(names: Sequence[bytes]) -> str:
    """Return the first of some names."""
    few = ", ".join(printable(name) for name in sorted(names)[:3])
    return few + ", ..." * (len(names) > 3)


KIND = ShardKind(ending=".tar", walk=walk)
