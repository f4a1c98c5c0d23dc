"""Read an image's shape from its first bytes; must not know labels, files or pixels, and never decodes.

Formats are told by their magic number, never by the name, and parsed here, so that no number depends on an
installed decoder.

Pillow's parsers of the rare formats were tried in place of these: its WebP reads the whole file and makes
room for the canvas (400 us a file, here 2), its TIFF reads 27 times where once will do, its PPM tells no
depth, and its GIF and BMP take a palette of greys for none.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from dataset.images.columns import CHROMA, FORMATS, Header
from dataset.images.foreign import FROM_RAW, named
from dataset.pairs import entry
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.manifest import Rejected

HEAD = 4096  # bytes read at first; nearly every header ends before
# of pieces of one header, before it counts as damaged: bounds the time that a hostile file takes
READS = 20_000

JPEG = b"\xff\xd8\xff"  # what a file begins with
TAIL = 64  # bytes in which a file's end is looked for: some have a little padding behind it
# pieces that are read to follow the chunks of a PNG; of one with more, its end alone is looked at
FOLLOWED = 16


_UNREAD_JPEG = {
    **dict.fromkeys((0xC3, 0xCB), "lossless"),
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "hierarchical"),
    0xF7: "JPEG-LS",
}
"""Codes of frame headers (ITU-T T.81, table B.1; T.87) that no decoder of a loader takes -> what they are."""
LARGEST_TILE = 1 << 20
"""Pixels of a TIFF's tile that may be larger than its image: 1024 x 1024."""
TO_PNG = "ffmpeg -i IN OUT.png"
DEFLATE = 1032
"""Bytes that one byte of deflate stands for at most: two bits copy 258 bytes."""


class _File:
    """A file's bytes by offset; the head is at hand, the rest is read piece by piece."""

    __slots__ = ("head", "pieces", "read_at", "reads", "size")

    def __init__(self, head: bytes, size: int, read_at: ReadAt) -> None:
        self.head = head
        self.size = size
        self.read_at = read_at
        self.reads = self.pieces = 0  # in all, and of the file

    def at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raises Rejected when the file ends before."""
        self.reads += 1
        if self.reads > READS:
            raise Rejected("header has too many parts")
        end = offset + length
        if end <= len(self.head):
            return self.head[offset:end]
        self.pieces += 1
        data = self.read_at(offset, length) if end <= self.size else b""
        if len(data) < length:
            raise Rejected("header is cut short")
        return data

    def ends_with(self, mark: bytes) -> bool:
        """Whether this is among the last TAIL bytes."""
        tail = min(TAIL, self.size)
        return mark in self.at(self.size - tail, tail)


def read_header(size: int, read_at: ReadAt) -> Header:
    """Read the header of a file of `size` bytes by ranges. Raises Rejected, and what `read_at` raises."""
    return parse(read_at(0, HEAD), size, read_at)


def parse(
    head: bytes, size: int, read_at: ReadAt = lambda offset, length: b""
) -> Header:
    """Parse the header of a file of `size` bytes that starts with `head`.

    Raises Rejected, and what `read_at`, for the rest, raises.
    """
    if not size:
        raise Rejected("empty file")
    for magic, read in _MAGIC:
        if magic.match(head):
            try:
                found = read(_File(head, size, read_at))
            except (Rejected, struct.error, IndexError) as error:
                said = (
                    str(error) if isinstance(error, Rejected) else "header is damaged"
                )
                raise Rejected(f"{read.__name__[1:].upper()} {said}") from None
            if not (0 < found.height < 2**31 and 0 < found.width < 2**31):
                raise Rejected(
                    f"{FORMATS[found.format].upper()} of {found.width} x {found.height} pixels"
                )
            return found
    raise Rejected(
        named(head) or f"no known image format (starts with {head[:8].hex(' ')})"
    )


def _jpeg(file: _File) -> Header:
    at = 2
    orientation = 0
    jfif = False
    adobe = None
    orderly = True
    while True:
        lead, code = file.at(at, 2)
        if lead != 0xFF or code in (
            0x00,
            0xFF,
        ):  # stray or fill bytes: skipped, as libjpeg does
            at += 1
            orderly &= lead == code == 0xFF
            continue
        at += 2
        if code == 0x01 or 0xD0 <= code <= 0xD8:  # these carry no segment
            orderly = False
            continue
        if code in (0xD9, 0xDA):
            raise Rejected("has no frame header")
        (length,) = struct.unpack(">H", file.at(at, 2))
        if length < 2:
            raise Rejected("header is damaged")
        if code in _UNREAD_JPEG:
            raise Rejected(
                f"is {_UNREAD_JPEG[code]}, which no loader reads: {TO_PNG} converts it"
            )
        # frame headers, but for DHT, JPG and DAC, whose codes lie among theirs
        if 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC):
            break
        if (
            code == 0xE1
            and not orientation
            and length >= 8
            and file.at(at + 2, 6) == b"Exif\0\0"
        ):
            orientation = _orientation(file, at + 8)
        if code == 0xE0 and length >= 7 and file.at(at + 2, 5) == b"JFIF\0":
            jfif = True
        if code == 0xEE and length >= 14 and file.at(at + 2, 5) == b"Adobe":
            adobe = file.at(at + 13, 1)[0]
        at += length  # seeks over it: ICC profiles and thumbnails are larger than everything else
    depth, height, width, components = struct.unpack(">BHHB", file.at(at + 2, 6))
    if components not in (1, 3, 4):
        raise Rejected(f"has {components} components")
    if depth != 8:
        raise Rejected(
            f"has {depth} bits a component, which no loader reads: {TO_PNG} converts it"
        )
    described = file.at(at + 8, 3 * components)
    # as libjpeg decides it: red, green and blue are stored as they are
    rgb = (
        components == 3
        and not jfif
        and (adobe == 0 if adobe is not None else described[::3] == b"RGB")
    )
    chroma = CHROMA.index("rgb" if rgb else _chroma(described[1::3]))
    progressive = code in (0xC2, 0xCA)
    if code <= 0xC2:  # Huffman-coded blocks
        # a bit at least for the DC of each block, and unless progressive another one for the end of its AC
        least = _blocks(height, width, described[1::3]) * (1 if progressive else 2)
        _require_bits(file, height, width, least)
    (length,) = struct.unpack(">H", file.at(at, 2))
    whole = orderly and _to_pixels(file, at + length) and file.ends_with(b"\xff\xd9")
    return Header(
        file.size,
        height,
        width,
        FORMATS.index("jpeg"),
        depth,
        components,
        chroma,
        orientation,
        progressive,
        whole=whole,
    )


def _blocks(height: int, width: int, sampling: bytes) -> int:
    """Return how many blocks of 8 x 8 all components of a JPEG have, from their sampling bytes."""
    across = max(byte >> 4 for byte in sampling)
    down = max(byte & 15 for byte in sampling)
    if not (across and down):
        raise Rejected("header is damaged")
    return sum(
        -(-width * (byte >> 4) // (8 * across)) * -(-height * (byte & 15) // (8 * down))
        for byte in sampling
    )


def _require_bits(file: _File, height: int, width: int, bits: int) -> None:
    """Raise Rejected unless the whole file has so many bits, the least that such pixels are coded in."""
    if bits > 8 * file.size:
        raise Rejected(
            f"claims {width} x {height} pixels, more than its {file.size} bytes can hold"
        )


def _to_pixels(file: _File, at: int) -> bool:
    """Return whether segments follow one another from `at` to the first scan, no frame among them.

    DALI 2.4 takes no other, and may die of it.
    """
    try:
        while True:
            lead, code = file.at(at, 2)
            frame = 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC)
            if lead != 0xFF or code < 0xC0 or 0xD0 <= code <= 0xD9 or frame:
                return False
            if code == 0xDA:
                return True
            if code == 0xFF:
                at += 1
                continue
            (length,) = struct.unpack(">H", file.at(at + 2, 2))
            if length < 2:
                return False
            at += 2 + length
    except Rejected:
        return False


def _chroma(sampling: bytes) -> str:
    """Return the subsampling's name, from a byte a component: high half horizontal, low half vertical."""
    if len(sampling) == 1:
        return "gray"
    across, down = divmod(sampling[0], 16)
    first = sampling[1]
    second = sampling[2]
    if (
        first != second
        or not first >> 4
        or not first & 15
        or across % (first >> 4)
        or down % (first & 15)
    ):
        return "other"
    ratio = (across // (first >> 4), down // (first & 15))
    return {
        (1, 1): "444",
        (2, 1): "422",
        (2, 2): "420",
        (1, 2): "440",
        (4, 1): "411",
    }.get(ratio, "other")


def _png(file: _File) -> Header:
    if file.at(12, 4) != b"IHDR":
        raise Rejected("does not start with IHDR")
    width, height, depth, colour = struct.unpack(">IIBB", file.at(16, 10))
    components = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour)
    if components is None or depth not in (1, 2, 4, 8, 16):
        raise Rejected(f"has colour type {colour} at {depth} bits")
    _require_bits(file, height, width, height * width * components * depth // DEFLATE)
    at = 33  # behind the signature and IHDR
    orientation = 0
    while True:
        length, kind = struct.unpack(">I4s", file.at(at, 8))
        if kind == b"IDAT":
            break
        if kind == b"IEND":
            raise Rejected("has no image data")
        if kind == b"eXIf":
            orientation = _orientation(file, at + 8)
        at += 12 + length  # its length, kind and CRC are not counted in
    whole = file.at(8, 4) == b"\0\0\0\r" and _to_end(file, at)
    return Header(
        file.size,
        height,
        width,
        FORMATS.index("png"),
        depth,
        components,
        0,
        orientation,
        palette=colour == 3,
        whole=whole,
    )


def _to_end(file: _File, at: int) -> bool:
    """Return whether chunks follow one another from `at` to the last one.

    DALI 2.4 looks for it before it decodes, and may die where it is not.
    """
    try:
        while file.pieces < FOLLOWED:
            length, kind = struct.unpack(">I4s", file.at(at, 8))
            at += 12 + length
            if kind == b"IEND":
                return at <= file.size
        return file.ends_with(b"\0\0\0\0IEND\xaeB`\x82")
    except Rejected:
        return False


def _gif(file: _File) -> Header:
    width, height, flags = struct.unpack("<HHB", file.at(6, 5))
    # behind the table of 2 << n colours, three bytes each
    at = 13 + (6 << (flags & 7) if flags & 0x80 else 0)
    while (
        True
    ):  # to the first frame, which may be larger than the screen that the file promises
        kind = file.at(at, 1)
        at += 1
        if kind == b",":
            left, top, across, down = struct.unpack("<HHHH", file.at(at, 8))
            return Header(
                file.size,
                max(height, top + down),
                max(width, left + across),
                FORMATS.index("gif"),
                8,
                1,
                palette=True,
            )
        if kind == b"!":
            at += 1
            while piece := file.at(at, 1)[0]:
                at += piece + 1
            at += 1
        elif kind == b";":
            raise Rejected("has no image data")


def _bmp(file: _File) -> Header:
    (kind,) = struct.unpack("<I", file.at(14, 4))
    if kind == 12:
        width, height, planes, bits = struct.unpack("<HHHH", file.at(18, 8))
    elif kind in (16, 40, 52, 56, 64, 108, 124):
        width, height, planes, bits = struct.unpack("<iiHH", file.at(18, 12))
    else:
        raise Rejected("header is of no known kind")
    if planes != 1 or bits not in (1, 2, 4, 8, 16, 24, 32):
        raise Rejected(f"has {planes} planes of {bits} bits")
    if kind >= 40 and file.at(30, 4) == b"\0\0\0\0":  # not compressed
        _require_bits(file, abs(height), abs(width), abs(height) * abs(width) * bits)
    alpha = (
        bits == 32
        and kind in (56, 108, 124)
        and file.at(30, 4) in (b"\3\0\0\0", b"\6\0\0\0")
        and any(file.at(66, 4))
    )
    components, depth = (1, bits) if bits <= 8 else (4 if alpha else 3, 8)
    return Header(
        file.size,
        abs(height),
        width,
        FORMATS.index("bmp"),
        depth,
        components,
        palette=bits <= 8,
    )


def _webp(file: _File) -> Header:
    kind = file.at(12, 4)
    orientation = 0
    alpha = False
    if kind == b"VP8 " and file.at(23, 3) == b"\x9d\x01\x2a":
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", file.at(26, 4)))
    elif kind == b"VP8L" and file.at(20, 1) == b"\x2f":
        (bits,) = struct.unpack("<I", file.at(21, 4))
        width = (bits & 0x3FFF) + 1
        height = (bits >> 14 & 0x3FFF) + 1
        alpha = bool(bits >> 28 & 1)
    elif kind == b"VP8X":
        flags = file.at(20, 1)[0]
        size = file.at(24, 6)
        width, height = (
            int.from_bytes(size[:3], "little") + 1,
            int.from_bytes(size[3:], "little") + 1,
        )
        alpha = bool(flags & 0x10)
        if flags & 0x08:
            orientation = _webp_orientation(file)
    else:
        raise Rejected("header is damaged")
    return Header(
        file.size, height, width, FORMATS.index("webp"), 8, 3 + alpha, 0, orientation
    )


def _webp_orientation(file: _File) -> int:
    """Read the orientation from the EXIF chunk, which lies behind the pixels."""
    at = 12
    while at + 8 <= file.size:
        kind, length = struct.unpack("<4sI", file.at(at, 8))
        if kind == b"EXIF":
            skip = (
                6
                if length >= 6
                and at + 14 <= file.size
                and file.at(at + 8, 6) == b"Exif\0\0"
                else 0
            )
            return _orientation(file, at + 8 + skip)
        at += 8 + length + length % 2  # chunks are padded to an even length
    return 0


def _tiff(file: _File) -> Header:
    tags = _tags(file, 0, (254, 256, 257, 258, 262, 274, 277, 322, 323))
    if (
        tags.get(254, 0) & 1 or file.at(8, 2) == b"CR"
    ):  # of CR2, DNG, NEF and ARW that is a preview
        raise Rejected(
            f"begins with a preview, as camera raw, which no loader reads: {FROM_RAW} converts it"
        )
    if 256 not in tags or 257 not in tags:
        raise Rejected("header is cut short")
    depth = tags.get(258, 1)
    components = tags.get(277, 1)
    turned = tags.get(274, 0)
    if not (0 < depth <= 64 and 0 < components < 256):
        raise Rejected(f"has {components} components of {depth} bits")
    if depth > 16:
        raise Rejected(
            f"has {depth} bits a component, which say no range; save it with 8 or 16 bits"
        )
    across = tags.get(322, 1)
    down = tags.get(323, 1)
    # a decoder makes room for a whole tile, which may be larger than the image
    if across * down > max(LARGEST_TILE, tags[256] * tags[257]):
        raise Rejected(
            f"has tiles of {across} x {down} pixels, more than the image has"
        )
    said = turned if turned <= 8 else 0
    # Pillow, the reference, turns the pixels of this one format when it decodes them, and so does torchvision
    height, width = (tags[256], tags[257]) if said >= 5 else (tags[257], tags[256])
    return Header(
        file.size,
        height,
        width,
        FORMATS.index("tiff"),
        depth,
        components,
        0,
        said,
        palette=tags.get(262) == 3,
    )


def _orientation(file: _File, base: int) -> int:
    """Return the EXIF orientation 1..8 of the TIFF structure at `base`, or 0.

    Damaged EXIF never costs a sample.
    """
    try:
        said = _tags(file, base, (274,)).get(274, 0)
    except (Rejected, struct.error):
        return 0
    return said if said <= 8 else 0


def _tags(file: _File, base: int, wanted: tuple[int, ...]) -> dict[int, int]:
    """Return the first value of each wanted whole-number tag in a TIFF's (or BigTIFF's) first directory.

    The structure begins at `base`.
    """
    order = {b"II": "<", b"MM": ">"}.get(file.at(base, 2))
    if order is None:
        raise Rejected("header is damaged")
    big = struct.unpack(order + "H", file.at(base + 2, 2)) == (43,)
    # bytes of an offset, and of a value that fits into its entry
    inline, word = (8, "Q") if big else (4, "I")
    at = base + struct.unpack(order + word, file.at(base + inline, inline))[0]
    first, entry = (at + 8, 20) if big else (at + 2, 12)
    (count,) = struct.unpack(order + ("Q" if big else "H"), file.at(at, first - at))
    found: dict[int, int] = {}
    for at in range(first, first + entry * min(count, 1000), entry):
        try:
            tag, kind, times, value = struct.unpack(
                f"{order}HH{word}{inline}s", file.at(at, entry)
            )
            code = order + {1: "B", 3: "H", 4: "I", 16: "Q"}.get(kind, "x")
            if tag in wanted and code[1] != "x":
                if times * struct.calcsize(code) > inline:
                    value = file.at(
                        base + struct.unpack(order + word, value)[0],
                        struct.calcsize(code),
                    )
                found.setdefault(tag, struct.unpack_from(code, value)[0])
        except Rejected:  # cut short: what came before still counts
            break
    return found


_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_NETPBM = re.compile(
    rb"P([1-6])"
    + _GAP
    + rb"(\d{1,10})"
    + _GAP
    + rb"(\d{1,10})(?:"
    + _GAP
    + rb"(\d{1,5}))?\s"
)


def _ppm(file: _File) -> Header:
    match = _NETPBM.match(file.head)
    if match is None or (match[1] not in b"14" and match[4] is None):
        raise Rejected("header is cut short or damaged")
    depth = 1 if match[1] in b"14" else 8 if int(match[4]) < 256 else 16
    components = 3 if match[1] in b"36" else 1
    width = int(match[2])
    height = int(match[3])
    if match[1] in b"456":  # in bytes, not in words
        _require_bits(file, height, width, height * width * components * depth)
    return Header(file.size, height, width, FORMATS.index("ppm"), depth, components)


def _pair(file: _File) -> Header:
    pair = entry.parse(file.head)
    height = pair.height * pair.scale
    return Header(
        file.size, height, pair.width * pair.scale, FORMATS.index("pair"), 8, 3
    )


_MAGIC: tuple[tuple[re.Pattern[bytes], Callable[[_File], Header]], ...] = (
    (re.compile(re.escape(JPEG)), _jpeg),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), _png),
    (re.compile(rb"GIF8[79]a"), _gif),
    (re.compile(rb"BM"), _bmp),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), _webp),
    (re.compile(rb"II[*+]\0|MM\0[*+]"), _tiff),
    (re.compile(rb"P[1-6][\s#]"), _ppm),
    (re.compile(re.escape(entry.MAGIC)), _pair),
)
