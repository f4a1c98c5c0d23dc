"""Images of formats that no loader reads are left out by their format's name, with the command that converts
them."""

from __future__ import annotations

import io
import re

import pytest
from PIL import Image

from dataset.images.headers import parse
from dataset.scan.manifest import Rejected
from tests.unit.folders import JPEG

HEIF = b"\0\0\0\x18ftyp%b\0\0\0\0%b"
FOREIGN = [
    (HEIF % (b"avif", b"avifmif1"), "AVIF", "avifdec"),
    (HEIF % (b"mif1", b"miafavif"), "AVIF", "avifdec"),
    (HEIF % (b"heic", b"mif1heic"), "HEIC", "heif-convert"),
    (HEIF % (b"mif1", b"heic"), "HEIC", "heif-convert"),
    (b"\xff\x0a\x7f\0", "JPEG XL", "djxl"),
    (b"\0\0\0\x0cJXL \r\n\x87\n\0\0\0\x14ftypjxl ", "JPEG XL", "djxl"),
    (b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 ", "JPEG 2000", "opj_decompress"),
    (b"\xff\x4f\xff\x51\0\x2f", "JPEG 2000", "opj_decompress"),
    (b'<?xml version="1.0"?>\n<svg xmlns="http://www', "SVG", "rsvg-convert"),
    (bytes(128) + b"DICM", "DICOM", "dcmj2pnm"),
    (HEIF % (b"crx ", b"isom"), "camera raw", "dcraw"),
]


def of_kind(code: int, depth: int = 8) -> bytes:
    """A JPEG whose frame header has another code."""
    head, mark, rest = JPEG.partition(b"\xff\xc0")
    return head + bytes([mark[0], code]) + rest[:2] + bytes([depth]) + rest[3:]


def preview() -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (40, 30)).save(target, "TIFF", tiffinfo={254: 1})
    return target.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *(
            (head + bytes(40), f"{name}, which no loader reads: {tool} .* converts it$")
            for head, name, tool in FOREIGN
        ),
        (of_kind(0xC3), "JPEG is lossless, hierarchical or JPEG-LS, which no loader"),
        (of_kind(0xC5), "JPEG is lossless, hierarchical or JPEG-LS, which no loader"),
        (of_kind(0xF7), "JPEG is lossless, hierarchical or JPEG-LS, which no loader"),
        (of_kind(0xC1, 12), "JPEG has 12 bits a component, which"),
        (preview(), "TIFF begins with a preview, as camera raw, .*: dcraw"),
        (HEIF % (b"isom", b"iso2avc1mp41"), r"no known image format \(starts with"),
        (b"\0\0\0\x0cABCD", r"no known image format \(starts with"),
        (b"<html>", r"no known image format \(starts with"),
    ],
)
def test_what_no_loader_reads_is_named(content: bytes, said: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse(content, len(content))
    assert re.match(said, str(caught.value))


def test_files_that_pillow_writes() -> None:
    Image.init()
    for form in {"AVIF", "JPEG2000"} & Image.SAVE.keys():
        target = io.BytesIO()
        Image.new("RGB", (20, 10)).save(target, form)
        with pytest.raises(Rejected, match="which no loader reads"):
            parse(target.getvalue(), target.tell())
