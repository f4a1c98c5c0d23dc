"""Records of TFRecord and RecordIO files, without TensorFlow and MXNet: where each begins, and what it holds.

    TFRecord    length u64 | masked CRC32C of it u32 | data | CRC of data u32     of tf.train.Example
    RecordIO    magic u32 | flag 3 bits, length 29 bits | data, padded to 4 bytes (dmlc-core's recordio.h)
                data of an image: count u32 | label f32 | id u64 | id u64 | count labels f32 | its file

The checksum of a length is compared, that of the data is not: each image's header is read later.
Must not know images.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from contracts import UserError

MAGIC = 0xCED7230A
WHOLE, FIRST, LAST = 0, 1, 3
"""Flags of a RecordIO part: data that holds the magic number is cut there into parts, which lack it."""
HEAD = struct.Struct("<IfQQ")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MASK = 0xA282EAD8
Value = list[int] | list[float] | list[tuple[int, int]]
"""Numbers, or (begin, end) of byte strings in the record."""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def tf_records(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset of the data, data) of each record. Raises UserError for a file that is no whole one."""
    offset = 0
    while head := file.read(12):
        if head.startswith(b"\x1f\x8b"):
            raise UserError(f"{path} is compressed; unpack it, and move it elsewhere: gunzip -k -S '' {path}")
        if len(head) < 12 or _masked_crc(head[:8]) != int.from_bytes(head[8:], "little"):
            what = f"is damaged at byte {offset:,}" if offset else "is no TFRecord file"
            raise UserError(f"{path} {what}; copy it again")
        length = int.from_bytes(head[:8], "little")
        data = file.read(length)
        if len(data) < length or len(file.read(4)) < 4:
            raise UserError(f"{path} is cut short in the record at byte {offset:,}; copy it again")
        yield offset + 12, data
        offset += 16 + length


def example(data: bytes) -> dict[str, Value]:
    """Return the features of a tf.train.Example by name. Raises ValueError for what is none."""
    found: dict[str, Value] = {}
    for _, features in _messages(data, (0, len(data)), 1):
        for _, entry in _messages(data, features, 1):
            name = ""
            value: Value = []
            for number, part in _messages(data, entry):
                if number == 1:
                    name = data[part[0] : part[1]].decode()
                else:
                    value = _feature(data, part)
            found[name] = value
    return found


def _feature(data: bytes, place: tuple[int, int]) -> Value:
    """Return a tf.train.Feature: strings of bytes, floats, or integers."""
    for kind, (begin, end) in _messages(data, place):
        if kind == 1:
            return [part for _, part in _messages(data, (begin, end), 1)]
        if kind == 2:
            return [number for (number,) in struct.iter_unpack("<f", _packed(data, begin, end, 4))]
        numbers = []
        while begin < end:
            tag, at = _varint(data, begin)
            if tag & 7 == VARINT:
                number, begin = _varint(data, at)
                numbers.append(number - (number >> 63 << 64))
            else:  # packed: a length, and numbers to its end
                _, begin = _varint(data, at)
                while begin < end:
                    number, begin = _varint(data, begin)
                    numbers.append(number - (number >> 63 << 64))
        return numbers
    return []


def _packed(data: bytes, begin: int, end: int, width: int) -> bytes:
    """Return the numbers of a FloatList, packed or one by one, without their tags."""
    found = b""
    while begin < end:
        tag, begin = _varint(data, begin)
        length = width
        if tag & 7 == BYTES:
            length, begin = _varint(data, begin)
        found += data[begin : begin + length]
        begin += length
    return found


def _messages(
    data: bytes, place: tuple[int, int], only: int | None = None
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (number, (begin, end)) of a message's fields that have a length; `only` those of a number."""
    at, end = place
    while at < end:
        tag, at = _varint(data, at)
        if tag & 7 == VARINT:
            _, at = _varint(data, at)
        elif tag & 7 in (FIXED64, FIXED32):
            at += 8 if tag & 7 == FIXED64 else 4
        elif tag & 7 == BYTES:
            length, at = _varint(data, at)
            if at + length > end:
                raise ValueError("a field that ends behind its message")
            if only in (None, tag >> 3):
                yield tag >> 3, (at, at + length)
            at += length
        else:
            raise ValueError(f"a field of type {tag & 7}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that does not end")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def record_io(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset of the record, data) from where the file is. Raises UserError for no whole one."""
    while True:
        begin = file.tell()
        data = b""
        flag = FIRST
        while flag not in (WHOLE, LAST):
            head = file.read(8)
            if not head and file.tell() == begin:
                return
            magic, told = struct.unpack("<II", head) if len(head) == 8 else (0, 0)
            length = told & ((1 << 29) - 1)
            piece = file.read(-(-length // 4) * 4)
            if magic != MAGIC or len(piece) < length:
                what = f"is damaged, or cut short, at byte {begin:,}" if begin else "is no RecordIO file"
                raise UserError(f"{path} {what}; copy it again")
            flag = told >> 29
            data += (b"" if flag in (WHOLE, FIRST) else struct.pack("<I", MAGIC)) + piece[:length]
        yield begin, data


def unpacked(data: bytes) -> tuple[list[float], bytes]:
    """Return the labels and the file of a RecordIO image. Raises ValueError for what is none."""
    if len(data) < HEAD.size:
        raise ValueError("it has no header of an image")
    count, label, _, _ = HEAD.unpack_from(data)
    begin = HEAD.size + 4 * count
    if begin > len(data):
        raise ValueError("its labels end behind it")
    labels = list(struct.unpack_from(f"<{count}f", data, HEAD.size)) if count else [label]
    return labels, data[begin:]
