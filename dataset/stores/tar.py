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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from contracts import UserError
from dataset.stores.shards import Entry, Shard
from system.user_files import open_bytes

ENDING = ".tar"
EXPECTED = "a label is the number of a class or its name, in .cls or by --label-key"
IMAGES = frozenset(
    # as WebDataset and we have them; a pair is of dataset.pairs.entry
    b"jpg jpeg jpe jfif png gif bmp webp tif tiff ppm pgm pbm pnm img image pair".split()
)
"""Endings of members that are images."""
LONGEST = 1 << 20
"""Bytes of a name, or of an extended header, at most."""
LONGEST_LABEL = 4096
LONGEST_JSON = 16 << 20
"""Bytes of a label's member, at most."""
COMPRESSED = {
    b"\x1f\x8b": "gunzip -k",
    b"BZh": "bunzip2 -k",
    b"\xfd7zXZ": "unxz -k",
    b"\x28\xb5\x2f\xfd": "unzstd",
}
"""What a compressed file begins with -> the command that unpacks it."""
COMPRESSED_ENDINGS = (".gz", ".tgz", ".bz2", ".xz", ".zst")


def readable(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError, with the command that unpacks it, for a compressed tar among the files of a folder."""
    for name in names:
        if name.endswith(COMPRESSED_ENDINGS) and (
            ".tar." in name or name.endswith(".tgz")
        ):
            with open_bytes(folder / name) as file:
                _require_unpacked(folder / name, file.read(8))


def without(label_key: str | None, about: object) -> str:
    """Return why an image has no label."""
    return (
        f"no label: no {label_key} in its .json"
        if label_key
        else "no label: no .cls beside it"
    )


# --- members ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in a tar, or a link, which is `unfit`."""

    name: bytes
    offset: int  # of its first byte
    size: int  # bytes
    unfit: str = ""  # why its bytes are in no one range


class _Headers:
    """A tar as TarInfo.fromtarfile reads it: the state of a TarFile, and no header longer than LONGEST."""

    encoding = "utf-8"
    errors = "surrogateescape"

    def __init__(self, file: BinaryIO, path: object) -> None:
        self.offset = file.tell()  # of the next header
        self.pax_headers: dict[
            str, str
        ] = {}  # what a global header says of all that follow
        self.fileobj = self
        self._file = file
        self._path = path
        self.tell = file.tell
        self.seek = file.seek

    def read(self, length: int) -> bytes:
        """Return so many bytes of a header. Raises UserError for one that would take the memory."""
        if length > LONGEST + tarfile.BLOCKSIZE:
            begin = self.tell() - tarfile.BLOCKSIZE
            raise UserError(
                f"--data: {self._path} is damaged at byte {begin:,}: a name of {length:,} bytes"
            )
        return self._file.read(length)


def members(file: BinaryIO, path: object, end: int) -> Iterator[Member]:
    """Yield the members that are files or links, in their order, of the tar from here to byte `end`.

    The file may be sought and read between two of them. Raises UserError, in one line, for what is no tar, is
    compressed, cut short or still being written, and OSError.
    """
    headers = _Headers(file, path)
    first = headers.offset
    while True:
        begin = headers.offset
        if begin + tarfile.BLOCKSIZE > end:
            raise _cut(path, end, "its end mark is missing")
        file.seek(begin)
        try:
            info = tarfile.TarInfo.fromtarfile(headers)  # type: ignore[arg-type]
            if headers.offset <= begin:
                raise tarfile.HeaderError("a size below 0")
        except (tarfile.HeaderError, ValueError) as error:
            if (
                str(error) == "end of file header"
                and file.tell() == begin + tarfile.BLOCKSIZE
            ):
                _require_end(file, path, end)
                return
            if str(error) in ("empty header", "truncated header", "end of file header"):
                raise _cut(path, end, "its end mark is missing") from None
            what = f"is damaged at byte {begin:,}: no header of a member"
            if begin == first:
                file.seek(begin)
                _require_unpacked(path, file.read(8))
                what = "is no tar file"
            raise UserError(f"--data: {path} {what}; write or copy it again") from None
        if headers.offset > end:
            raise _cut(path, end, f"a member ends at byte {headers.offset:,}")
        if (info.isreg() or info.islnk() or info.issym()) and not info.name.endswith(
            "/"
        ):
            sparse = info.sparse is not None
            # `tar cf x.tar .` and `tar cf x.tar data/.` name members ./x and data/./x
            parts = info.name.encode(headers.encoding, headers.errors).split(b"/")
            yield Member(
                name=b"/".join(part for part in parts if part != b"."),
                offset=info.offset_data,
                size=info.size,
                unfit="a sparse file of the tar"
                if sparse
                else ""
                if info.isreg()
                else "a link",
            )


def _require_unpacked(path: object, head: bytes) -> None:
    """Raise UserError, with the command that unpacks it, for a compressed file that begins with `head`."""
    for magic, command in COMPRESSED.items():
        if head.startswith(magic):
            raise UserError(
                f"--data: {path} is compressed, so that no sample can be read without all before it; "
                f"unpack it, and move it elsewhere: {command} {path}"
            )


def _cut(path: object, end: int, why: str) -> UserError:
    return UserError(
        f"--data: {path} is cut short, or still being written: {why}, and the file has {end:,} bytes; "
        "start when it is complete, or copy it again"
    )


def _require_end(file: BinaryIO, path: object, end: int) -> None:
    """Raise UserError for a second tar behind the end mark, where the file is: no tar would read it."""
    while block := file.read(min(1 << 14, end - file.tell())):
        if rest := block.lstrip(b"\0"):
            raise UserError(
                f"--data: {path} goes on at byte {file.tell() - len(rest):,}, behind its end "
                "mark, as tars that were joined by cat do; join them by tar --concatenate, or keep them apart"
            )


# --- samples ------------------------------------------------------------------------------------------------


def walk(shard: Shard) -> Iterator[Entry]:
    """Yield the image of each sample with its label: what .cls holds, or the value of the key in .json.

    Without samples all images, without the name of the folder that they were packed from. Raises UserError
    and OSError.
    """
    by_name: dict[bytes, Member] = {}
    labels: dict[bytes, str] = {}  # name of a member -> the label that it holds
    for member in members(shard.file, shard.path, shard.size):
        if any(
            part.startswith(b".") and part != b".." for part in member.name.split(b"/")
        ):
            continue
        if member.name in by_name:
            shard.reject(
                member.name, "comes again in this shard; the last one is taken"
            )
            labels.pop(member.name, None)
        by_name[member.name] = member
        if shard.samples and (label := _label(shard, member)) is not None:
            labels[member.name] = label
    yield from (
        _samples(by_name, labels, shard) if shard.samples else _images(by_name, shard)
    )


def _ending(name: bytes) -> bytes:
    return name.rpartition(b".")[2].lower()


def _stem(name: bytes) -> bytes:
    """Return a name without its ending, with the dots before that."""
    return name.rpartition(b".")[0]


def _label(shard: Shard, member: Member) -> str | None:
    """Return the label that a member holds; None where it holds none, and "" where it cannot be one."""
    ending = _ending(member.name)
    key = shard.label_key
    wanted, longest = (
        (b"cls", LONGEST_LABEL) if key is None else (b"json", LONGEST_JSON)
    )
    if ending != wanted or member.unfit or member.size > longest:
        return None
    shard.file.seek(member.offset)
    content = shard.file.read(member.size)
    if key is None:
        text = os.fsdecode(content).strip()
        return text if len(text.splitlines()) == 1 and "\0" not in text else ""
    try:
        value = json.loads(content)[key]
    except (ValueError, LookupError, TypeError):
        return None
    return (
        str(value).strip()
        if isinstance(value, str | int) and not isinstance(value, bool)
        else ""
    )


def _images(by_name: dict[bytes, Member], shard: Shard) -> Iterator[Entry]:
    """Yield the members that are images."""
    for name, member in by_name.items():
        if _ending(name) in IMAGES:
            if member.unfit:
                shard.reject(name, member.unfit)
            else:
                yield Entry(
                    name.removeprefix(os.fsencode(shard.folder) + b"/"),
                    member.offset,
                    member.size,
                )


def _samples(
    by_name: dict[bytes, Member], labels: dict[bytes, str], shard: Shard
) -> Iterator[Entry]:
    """Yield the image of each sample that has one, with its label."""
    of_key: dict[bytes, list[bytes]] = {}
    for name in by_name:
        folder, slash, last = name.rpartition(b"/")
        of_key.setdefault(folder + slash + last.partition(b".")[0], []).append(name)
    for key, members_of_key in of_key.items():
        for names in _parted(key, members_of_key, labels):
            images = [name for name in names if _ending(name) in IMAGES]
            plain = [name for name in images if _stem(name) == key]
            if len(images) > 1 and len(plain) == 1:
                # x.jpg is the image, and x.mask.png belongs to it, or has lost its label
                why = f"not read: the image of its sample is {_listed(plain)}"
                for name in images:
                    if name not in plain:
                        shard.reject(name, why)
                images = plain
            own_labels = sorted({labels[name] for name in names if name in labels})
            why = ""
            if not images:
                why = f"no image among its members: {_listed(names)}"
            elif len(images) > 1:
                why = f"{len(images)} images in one sample: {_listed(images)}"
            elif unfit := by_name[images[0]].unfit:
                why = unfit
            elif len(own_labels) > 1:
                why = (
                    f"{len(own_labels)} labels: '{own_labels[0]}' and '{own_labels[1]}'"
                )
            elif own_labels == [""]:
                why = "its label is neither a word nor a number of a class"
            if why:
                for name in images or [key]:
                    shard.reject(name, why)
            else:
                member = by_name[images[0]]
                yield Entry(
                    member.name,
                    member.offset,
                    member.size,
                    own_labels[0] if own_labels else None,
                )


def _parted(
    key: bytes, names: list[bytes], labels: dict[bytes, str]
) -> Iterator[list[bytes]]:
    """Yield the members of each sample of one key: x.5.png with the label x.5.cls is one of its own."""
    labelled = {_stem(name) for name in names if name in labels}
    own = dict.fromkeys(
        _stem(name)
        for name in names
        if _ending(name) in IMAGES and _stem(name) in labelled
    )
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
    few = ", ".join(
        os.fsdecode(name).encode("unicode_escape").decode()
        for name in islice(sorted(names), 3)
    )
    return few + (", ..." if len(names) > 3 else "")
