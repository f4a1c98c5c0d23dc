"""The members of a tar file by a walk over its headers, by range reads; must not know samples or images.

POSIX tar with its extended headers, GNU's long names, sizes in base 256. What a member's bytes cannot be read
from in one range, such as a sparse file, has a word that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from contracts import UserError
from dataset.scan.byte_ranges import ReadAt

BLOCK = 512
WINDOW = 16 << 10
"""Bytes that a walk reads at once: a header, and the small members that follow."""
LONGEST = 1 << 20
"""Bytes of a name, or of an extended header, at most."""
FILES = (b"0", b"\0", b"7")
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
            if kind in (*FILES, *LINKS, b"S") and not name.endswith(b"/"):
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
