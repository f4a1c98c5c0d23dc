"""Images of formats that no loader reads are left out by their format's name, with the command that converts
them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from dataset.images.headers import parse
from dataset.scan.manifest import Rejected
from tests.unit.folders import JPEG, fill, reasons
from tests.unit.test_splits import opened

HEIF = b"\0\0\0\x18ftyp%b\0\0\0\0%b"
FOREIGN = {
    "AVIF": HEIF % (b"avif", b"avifmif1"),
    "AVIF, whose first brand is its container's": HEIF % (b"mif1", b"miafavif"),
    "HEIC": HEIF % (b"heic", b"mif1heic"),
    "HEIC, whose first brand is its container's": HEIF % (b"mif1", b"heic"),
    "JPEG XL": b"\xff\x0a\x7f\0",
    "JPEG XL in a container": b"\0\0\0\x0cJXL \r\n\x87\n\0\0\0\x14ftypjxl ",
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 ",
    "JPEG 2000, raw": b"\xff\x4f\xff\x51\0\x2f",
    "SVG": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg">',
    "DICOM": bytes(128) + b"DICM",
    "camera raw": HEIF % (b"crx ", b"isom"),
}
CONVERTS = {
    "AVIF": "avifdec",
    "HEIC": "heif-convert",
    "JPEG XL": "djxl",
    "JPEG 2000": "opj_decompress",
    "SVG": "rsvg-convert",
    "DICOM": "dcmj2pnm",
    "camera raw": "dcraw",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_format_that_no_loader_reads_is_named(name: str) -> None:
    content = FOREIGN[name] + bytes(40)
    family = next(known for known in CONVERTS if name.startswith(known))
    with pytest.raises(
        Rejected,
        match=f"^{family}, which no loader reads: {CONVERTS[family]} .* converts it$",
    ):
        parse(content, len(content))


def of_kind(code: int, depth: int = 8) -> bytes:
    """A JPEG whose frame header has another code."""
    at = JPEG.index(b"\xff\xc0")
    return (
        JPEG[: at + 1]
        + bytes([code])
        + JPEG[at + 2 : at + 4]
        + bytes([depth])
        + JPEG[at + 5 :]
    )


def preview() -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (40, 30)).save(target, "TIFF", tiffinfo={254: 1})
    return target.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (of_kind(0xC3), "JPEG is lossless, hierarchical or JPEG-LS, which no loader"),
        (of_kind(0xC5), "JPEG is lossless, hierarchical or JPEG-LS, which no loader"),
        (of_kind(0xF7), "JPEG is lossless, hierarchical or JPEG-LS, which no loader"),
        (of_kind(0xC1, 12), "JPEG has 12 bits a component, which"),
        (
            preview(),
            "TIFF begins with a preview, as camera raw, which no loader reads: dcraw",
        ),
    ],
    ids=["lossless", "hierarchical", "ls", "12 bits", "raw"],
)
def test_kinds_of_jpeg_and_tiff_that_no_loader_reads(content: bytes, said: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse(content, len(content))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "head", [HEIF % (b"isom", b"iso2avc1mp41"), b"\0\0\0\x0cABCD", b"<html>"]
)
def test_what_is_no_image_is_not_named_so(head: bytes) -> None:
    with pytest.raises(Rejected, match=r"^no known image format \(starts with"):
        parse(head, len(head))


def test_files_that_pillow_writes(tmp_path: Path) -> None:
    content = {"train/ant/0.jpg": JPEG, "val/ant/0.jpg": JPEG}
    Image.init()
    for format in ("AVIF", "JPEG2000"):
        if format in Image.SAVE:
            target = io.BytesIO()
            Image.new("RGB", (20, 10)).save(target, format)
            content[f"train/ant/{format}"] = target.getvalue()
    found = reasons(opened(fill(tmp_path / "data", content))["train"].columns)
    assert len(found) == len(content) - 2
    assert all("which no loader reads" in why for why in found.values())
