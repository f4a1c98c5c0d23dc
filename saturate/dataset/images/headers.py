"""Read an image's shape from its first bytes; must not know labels, files or pixels, and never decodes.

Formats are told by their magic number, never by the name. JPEG and PNG are parsed here, for what Pillow does
not say: whether a JPEG stores RGB, and whether the file is whole. So is WebP, of which Pillow reads the whole
file and makes room for its pixels. GIF, BMP, TIFF and PPM are opened by Pillow; so are AVIF, and HEIC where
pillow-heif is installed.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import ExifTags, Image, UnidentifiedImageError

from saturate.dataset.images import pixels
from saturate.dataset.images.columns import FORMATS, Header
from saturate.dataset.scan.byte_ranges import RangeFile, ReadAt
from saturate.dataset.scan.manifest import Rejected

# bytes read at first; nearly every header ends before
HEAD = 4096
# pieces read behind them before a header counts as damaged: bounds the time of a bad file
READS = 20_000
JPEG = b"\xff\xd8\xff"  # what a file begins with
TAIL = 64  # bytes in which a file's end is looked for: some have a little padding behind it
# pieces that are read to follow the chunks of a PNG; of one with more, its end alone is
# looked at
FOLLOWED = 16
EXIF = b"Exif\0\0"
EXIF_BYTES = 1 << 16  # a segment of a JPEG holds no more
# codes of the frame headers of Huffman and arithmetic coding, sequential and progressive
FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
PROGRESSIVE = (0xC2, 0xCA)
# frame headers of lossless, hierarchical and JPEG-LS files (ITU-T T.81, table B.1; T.87)
OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF, 0xF7)
CONVERT = "convert it to JPEG or PNG"

# the scan bounds sizes itself, by --max-pixels
Image.MAX_IMAGE_PIXELS = None


@dataclass
class _File:
    """A file's bytes by offset; the head is at hand, the rest is read piece by piece."""

    head: bytes
    size: int
    read_at: ReadAt
    reads: int = 0

    def at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raises Rejected when the file ends before."""
        end = offset + length
        if end <= len(self.head):
            return self.head[offset:end]
        data = self.upto(offset, length)
        if len(data) < length:
            raise Rejected("header is cut short")
        return data

    def upto(self, offset: int, length: int) -> bytes:
        """Return `length` bytes, or fewer where the file ends before. Raises Rejected after READS."""
        end = min(offset + length, self.size)
        if end <= len(self.head):
            return self.head[offset:end]
        self.reads += 1
        if self.reads > READS:
            raise Rejected("header has too many parts")
        return self.read_at(offset, end - offset) if offset < end else b""

    def header(
        self,
        format: str,
        height: int,
        width: int,
        depth: int,
        components: int,
        **more: Any,
    ) -> Header:
        """Return what was read of this file, which is of one of FORMATS; `more` are other fields."""
        number = FORMATS.index(format)
        return Header(self.size, height, width, number, depth, components, **more)

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
    for name, (magic, read) in _READERS.items():
        if magic.match(head):
            return _checked(name, read, _File(head, size, read_at))
    raise Rejected(f"no known image format (starts with {head[:8].hex(' ')})")


def _checked(name: str, read: Callable[[_File], Header], file: _File) -> Header:
    """Return what `read` finds, with sides that are some. Raises Rejected that names the format."""
    try:
        header = read(file)
    except Rejected as error:
        raise Rejected(f"{name.upper()} {error}") from None
    except (struct.error, IndexError, RuntimeError):
        raise Rejected(f"{name.upper()} header is damaged") from None
    if not (0 < header.height < 2**31 and 0 < header.width < 2**31):
        raise Rejected(f"{name.upper()} of {header.width} x {header.height} pixels")
    return header


def _jpeg(file: _File) -> Header:
    at = 2
    orientation = 0
    jfif = False
    adobe = None
    orderly = True
    while True:
        lead, code = file.at(at, 2)
        # stray or fill bytes: skipped, as libjpeg does
        if lead != 0xFF or code in (0x00, 0xFF):
            at += 1
            orderly &= lead == code == 0xFF
            continue
        at += 2
        # these carry no segment
        if code == 0x01 or 0xD0 <= code <= 0xD8:
            orderly = False
            continue
        if code in (0xD9, 0xDA):
            raise Rejected("has no frame header")
        (length,) = struct.unpack(">H", file.at(at, 2))
        if length < 2:
            raise Rejected("header is damaged")
        if code in FRAMES:
            break
        if code in OTHER_FRAMES:
            raise Rejected(f"is lossless, hierarchical or JPEG-LS; {CONVERT}")
        if code == 0xE0:
            jfif |= file.upto(at + 2, 5) == b"JFIF\0"
        elif code == 0xE1 and not orientation and file.upto(at + 2, 6) == EXIF:
            orientation = _orientation(file.upto(at + 2, length - 2))
        elif code == 0xEE and length >= 14 and file.upto(at + 2, 5) == b"Adobe":
            adobe = file.at(at + 13, 1)[0]
        # seeks over it: profiles and thumbnails are larger than everything else
        at += length
    depth, height, width, components = struct.unpack(">BHHB", file.at(at + 2, 6))
    if components not in (1, 3, 4):
        raise Rejected(f"has {components} components")
    if depth != 8:
        raise Rejected(f"has {depth} bits a component; {CONVERT}")
    names = file.at(at + 8, 3 * components)[::3]
    # as libjpeg decides it
    rgb = components == 3 and not jfif
    rgb &= adobe == 0 if adobe is not None else names == b"RGB"
    whole = orderly and _to_pixels(file, at + length) and file.ends_with(b"\xff\xd9")
    return file.header(
        "jpeg",
        height,
        width,
        depth,
        components,
        orientation=orientation,
        rgb=rgb,
        progressive=code in PROGRESSIVE,
        whole=whole,
    )


def _to_pixels(file: _File, at: int) -> bool:
    """Return whether segments follow one another from `at` to the first scan, no frame among them.

    DALI 2.4 takes no other, and may die of it.
    """
    try:
        while True:
            lead, code = file.at(at, 2)
            if code == 0xFF == lead:
                at += 1
                continue
            if code == 0xDA and lead == 0xFF:
                return True
            frame = code in FRAMES or code in OTHER_FRAMES
            if lead != 0xFF or code < 0xC0 or 0xD0 <= code <= 0xD9 or frame:
                return False
            (length,) = struct.unpack(">H", file.at(at + 2, 2))
            if length < 2:
                return False
            at += 2 + length
    except Rejected:
        return False


def _png(file: _File) -> Header:
    if file.at(12, 4) != b"IHDR":
        raise Rejected("does not start with IHDR")
    width, height, depth, colour = struct.unpack(">IIBB", file.at(16, 10))
    components = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour)
    if components is None or depth not in (1, 2, 4, 8, 16):
        raise Rejected(f"has colour type {colour} at {depth} bits")
    at = 33  # behind the signature and IHDR
    orientation = 0
    while True:
        length, kind = struct.unpack(">I4s", file.at(at, 8))
        if kind == b"IDAT":
            break
        if kind == b"IEND":
            raise Rejected("has no image data")
        if kind == b"eXIf":
            orientation = _orientation(file.upto(at + 8, min(length, EXIF_BYTES)))
        # its length, kind and CRC are not counted in
        at += 12 + length
    whole = file.at(8, 4) == b"\0\0\0\r" and _to_end(file, at)
    return file.header(
        "png", height, width, depth, components, orientation=orientation, whole=whole
    )


def _to_end(file: _File, at: int) -> bool:
    """Return whether chunks follow one another from `at` to the last one.

    DALI 2.4 looks for it before it decodes, and may die where it is not.
    """
    try:
        while file.reads < FOLLOWED:
            length, kind = struct.unpack(">I4s", file.at(at, 8))
            at += 12 + length
            if kind == b"IEND":
                return at <= file.size
        return file.ends_with(b"\0\0\0\0IEND\xaeB`\x82")
    except Rejected:
        return False


def _webp(file: _File) -> Header:
    kind = file.at(12, 4)
    orientation = 0
    alpha = 0
    if kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", file.at(26, 4)))
    elif kind == b"VP8L":
        (bits,) = struct.unpack("<I", file.at(21, 4))
        width = (bits & 0x3FFF) + 1
        height = (bits >> 14 & 0x3FFF) + 1
        alpha = bits >> 28 & 1
    elif kind == b"VP8X":
        flags = file.at(20, 1)[0]
        sides = file.at(24, 6)
        width = int.from_bytes(sides[:3], "little") + 1
        height = int.from_bytes(sides[3:], "little") + 1
        alpha = flags >> 4 & 1
        # the EXIF chunk lies behind the pixels; chunks are padded to an even length
        at = 12
        while flags & 0x08 and at + 8 <= file.size:
            kind, length = struct.unpack("<4sI", file.at(at, 8))
            if kind == b"EXIF":
                orientation = _orientation(file.upto(at + 8, min(length, EXIF_BYTES)))
                break
            at += 8 + length + length % 2
    else:
        raise Rejected("header is damaged")
    return file.header("webp", height, width, 8, 3 + alpha, orientation=orientation)


def _orientation(exif: bytes) -> int:
    """Return the EXIF orientation 1..8, or 0: damaged EXIF never costs a sample."""
    tags = Image.Exif()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tags.load(exif)
            value = tags.get(ExifTags.Base.Orientation, 0)
    # Pillow raises SyntaxError, struct.error, KeyError and more
    except Exception:
        return 0
    return int(value) if value in range(1, 9) else 0


COMPONENTS = {"LA": 2, "PA": 2, "RGB": 3, "RGBA": 4, "RGBX": 4, "CMYK": 4, "LAB": 3}
"""Components of Pillow's modes; all other modes have one."""
DEPTH = {"1": 1, "I": 16, "I;16": 16, "I;16B": 16}


def _by_pillow(file: _File) -> Header:
    stream = io.BufferedReader(RangeFile(file.size, file.upto), HEAD)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(stream, formats=("GIF", "BMP", "TIFF", "PPM")) as image:
                return _of_pillow(file, image)
    except Rejected:
        raise
    except OSError as error:
        # an error of the storage has a number, and none of Pillow's own has
        if error.errno is not None:
            raise
        raise Rejected("header is damaged or cut short") from None
    # Pillow raises SyntaxError, ValueError, TypeError and more
    except Exception:
        raise Rejected("header is damaged or cut short") from None


def _of_pillow(file: _File, image: Image.Image) -> Header:
    tags = getattr(image, "tag_v2", {})
    # of CR2, DNG, NEF and ARW the first image is that
    if tags.get(254, 0) & 1 or (tags and file.upto(8, 2) == b"CR"):
        raise Rejected(f"begins with a preview, as camera raw does; {CONVERT}")
    depth = max(tags.get(258, (DEPTH.get(image.mode, 8),)))
    if depth > 16:
        raise Rejected(
            f"has {depth} bits a component, which say no range; save it with 8 or 16 bits"
        )
    orientation = tags.get(ExifTags.Base.Orientation, 0)
    return file.header(
        str(image.format).lower(),
        image.height,
        image.width,
        depth,
        COMPONENTS.get(image.mode, 1),
        orientation=orientation if orientation in range(1, 9) else 0,
    )


def opened(content: bytes) -> Image.Image:
    """Return what Pillow opens of a whole file. Raises Rejected where its package is missing, and what Pillow does."""
    if PHONES.match(content) and "HEIF" not in Image.OPEN:
        with suppress(ImportError):
            from pillow_heif import register_heif_opener

            register_heif_opener()
    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError:
        if PHONES.match(content) and "HEIF" not in Image.OPEN:
            raise Rejected(
                "is a phone's format: pip install pillow-heif reads it, then --rescan true"
            ) from None
        raise


def _phones(file: _File) -> Header:
    """Return the header of an AVIF or a HEIC. The decoder of HEIC turns it as it is shown, whatever EXIF says."""
    try:
        with opened(file.upto(0, file.size)) as image:
            turn = image.getexif().get(ExifTags.Base.Orientation, 0)
            return file.header(
                "avif" if image.format == "AVIF" else "heic",
                image.height,
                image.width,
                8,
                COMPONENTS.get(image.mode, 1),
                orientation=turn if turn in range(1, 9) else 0,
            )
    except (Rejected, OSError) as error:
        if isinstance(error, Rejected) or error.errno is not None:
            raise
        raise Rejected("header is damaged or cut short") from None
    # Pillow and libheif raise ValueError, SyntaxError, RuntimeError and more
    except Exception:
        raise Rejected("header is damaged or cut short") from None


def _lz4(file: _File) -> Header:
    header = pixels.HEADER.match(pixels.begin_of(file.upto(0, pixels.BLOCK)))
    if header is None:
        raise Rejected("is no frame of a binary PPM in blocks of 64 KiB")
    return file.header("lz4", int(header[2]), int(header[1]), 8, 3)


PHONES = re.compile(rb"....ftyp(avi[fs]|hei|hev|mif1|msf1)", re.DOTALL)
"""What a HEIC or an AVIF begins with."""
_READERS: dict[str, tuple[re.Pattern[bytes], Callable[[_File], Header]]] = {
    "jpeg": (re.compile(re.escape(JPEG)), _jpeg),
    "png": (re.compile(rb"\x89PNG\r\n\x1a\n"), _png),
    "webp": (re.compile(rb"RIFF....WEBP", re.DOTALL), _webp),
    "gif": (re.compile(rb"GIF8[79]a"), _by_pillow),
    "bmp": (re.compile(rb"BM"), _by_pillow),
    "tiff": (re.compile(rb"II[*+]\0|MM\0[*+]"), _by_pillow),
    "ppm": (re.compile(rb"P[1-6][\s#]"), _by_pillow),
    "lz4": (re.compile(re.escape(pixels.FRAME)), _lz4),
    "heic": (PHONES, _phones),
}
"""Format -> what a file begins with, and what reads its header."""
