"""Headers are Pillow's, and of damaged files there is a header or a reason."""

from __future__ import annotations

import io
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from saturate.dataset.images.columns import FORMATS, HEADER, Header
from saturate.dataset.images.headers import parse, read_header
from saturate.dataset.scan.byte_ranges import Files
from saturate.dataset.scan.manifest import Rejected

SAMPLES = Path(
    os.environ.get("SATURATE_SAMPLES") or Path(__file__).parents[3] / "shared" / "data"
)
"""Real files of images and videos, where a machine has them."""
COMPONENTS = {"LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
ORIENTATION = 0x0112


def header(path: Path) -> Header:
    with Files(Path("/")).opened(os.fsencode(path)) as (size, read_at):
        return read_header(size, read_at)


def encoded(
    mode: str = "RGB",
    size: tuple[int, int] = (37, 23),
    format: str = "JPEG",
    **options: Any,
) -> bytes:
    """An image file of width, height `size`."""
    noise = np.random.default_rng(7).integers(0, 255, (*size[::-1], 3), np.uint8)
    image = Image.fromarray(noise)
    if mode == "I;16":
        image = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    elif mode != "RGB":
        image = image.convert(mode)
    target = io.BytesIO()
    image.save(target, format, **options)
    return target.getvalue()


def exif(orientation: int) -> bytes:
    tags = struct.pack(">HIHHHIHHI", 42, 8, 1, ORIENTATION, 3, 1, orientation, 0, 0)
    return b"Exif\0\0MM" + tags


def segment(code: int, content: bytes) -> bytes:
    return b"\xff" + bytes([code]) + struct.pack(">H", len(content) + 2) + content


FILES = {
    "jpeg rgb": encoded(),
    "jpeg grey": encoded("L"),
    "jpeg cmyk": encoded("CMYK"),
    "jpeg exif big endian": encoded(exif=exif(6)),
    "jpeg progressive": encoded(progressive=True),
    "jpeg behind a profile of 300 kB": encoded(
        icc_profile=bytes(300_000), exif=exif(3)
    ),
    "png rgb": encoded(format="PNG"),
    "png grey": encoded("L", format="PNG"),
    "png 1 bit": encoded("1", format="PNG"),
    "png 16 bit": encoded("I;16", format="PNG"),
    "png exif": encoded(format="PNG", exif=exif(5)),
    "gif": encoded("P", format="GIF"),
    "bmp": encoded(format="BMP"),
    "webp lossy": encoded(format="WEBP"),
    "webp lossless": encoded(format="WEBP", lossless=True),
    "webp exif": encoded(format="WEBP", exif=exif(7)),
    "tiff": encoded(format="TIFF"),
    "tiff 16 bit": encoded("I;16", format="TIFF"),
    "tiff turned by 90": encoded(format="TIFF", tiffinfo={ORIENTATION: 6}),
    "ppm": encoded(format="PPM"),
}


def assert_like_pillow(found: Header, content: bytes) -> None:
    with Image.open(io.BytesIO(content)) as image:
        assert (found.height, found.width) == (image.height, image.width)
        format = "JPEG" if image.format == "MPO" else image.format
        assert FORMATS[found.format].upper() == format
        assert found.components == COMPONENTS.get(image.mode, 1)
        assert found.orientation == (image.getexif().get(ORIENTATION) or 0)
        assert found.progressive == ("progressive" in image.info)
        assert found.size == len(content)


@pytest.mark.parametrize("name", FILES)
def test_header_is_pillows(name: str, tmp_path: Path) -> None:
    path = tmp_path / "named.JPEG"  # the name says nothing
    path.write_bytes(FILES[name])
    found = header(path)
    assert_like_pillow(found, FILES[name])
    bits = {"16 bit": 16, "1 bit": 1}.get(name.partition(" ")[2], 8)
    assert found.depth == bits and found.whole and not found.rgb


@pytest.mark.parametrize(
    ("marker", "stored_as_rgb"),
    [("adobe", True), ("none", True), ("jfif", False), ("adobe ycc", False)],
)
def test_jpegs_stored_as_rgb(marker: str, stored_as_rgb: bool) -> None:
    """libjpeg decides: flat red stays red, or is taken for YCbCr."""
    target = io.BytesIO()
    red = Image.new("RGB", (16, 16), (200, 30, 20))
    red.save(target, "JPEG", quality=100, keep_rgb=True)
    content = target.getvalue()
    begin = content.index(b"\xff\xee")
    adobe, rest = content[begin : begin + 16], content[begin + 16 :]
    markers = {
        "adobe": adobe,
        "none": b"",
        "jfif": segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
        "adobe ycc": adobe[:15] + b"\1",
    }
    content = content[:begin] + markers[marker] + rest
    pixel = np.asarray(Image.open(io.BytesIO(content)))[8, 8]
    assert (np.abs(pixel - np.array([200.0, 30, 20])).max() < 5) == stored_as_rgb
    assert parse(content, len(content)).rgb == stored_as_rgb


def chunks(content: bytes) -> list[int]:
    """Where the chunks of a PNG begin."""
    found = [8]
    while content[found[-1] + 4 : found[-1] + 8] != b"IEND":
        length = int.from_bytes(content[found[-1] : found[-1] + 4], "big")
        found.append(found[-1] + 12 + length)
    return found


def test_what_is_whole() -> None:
    jpeg, png = FILES["jpeg rgb"], encoded(size=(200, 200), format="PNG")
    scan, table = jpeg.index(b"\xff\xda"), jpeg.index(b"\xff\xc4")
    _, _, data, *_, end = chunks(png)

    def put(between: bytes, at: int, content: bytes = jpeg) -> bytes:
        return content[:at] + between + content[at:]

    whole = [jpeg, jpeg + bytes(30), png, png + b"more"]
    whole += [put(b"\xff\xff", scan), put(b"\xff", 2)]
    odd = [jpeg[:-2], jpeg[:-2] + bytes(2), jpeg[: scan + 1] + b"\xff\xd9"]
    odd += [put(between, 20) for between in (b"\0", b"\xff\xd0", b"\0\x13\xff\0")]
    marks = (
        b"\0",
        b"\xff\0",
        b"\xff\xd8",
        b"\xff\xd9",
        b"\xff\xfe\0\1",
        b"\xff\xfe\x7f\0",
    )
    odd += [put(between, scan) for between in marks]
    odd.append(jpeg[:table] + b"\xff\xc5" + jpeg[table + 2 :])
    odd += [png[:-1], png[:end], png[: end - 20], put(b"\0", data, png)]
    odd += [png[: data + 20] + png[data + 21 :], png[:8] + b"\0\0\0\5" + png[12:]]
    for contents, expected in ((whole, True), (odd, False)):
        found = [parse(content, len(content)) for content in contents]
        assert [one.whole for one in found] == [expected] * len(contents)
        assert {one.width for one in found} == {37, 200}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"<html>", "no known image format (starts with 3c 68 74 6d 6c 3e)"),
        (FILES["jpeg rgb"][:40], "JPEG header is cut short"),
        (b"\xff\xd8\xff\xd9", "JPEG has no frame header"),
        (encoded("F", format="TIFF"), "TIFF has 32 bits a component, which say no"),
    ],
)
def test_reason_is_said(content: bytes, reason: str) -> None:
    with pytest.raises(Rejected) as error:
        parse(content, len(content))
    assert str(error.value).startswith(reason)


def survives(content: bytes) -> None:
    """There is a header, of which every number fits its column, or a reason."""
    with suppress(Rejected):
        np.array([parse(content, len(content))], HEADER)


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(FILES)),
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8),
    end=st.none() | st.integers(0, 600),
    rest=st.binary(max_size=300),
)
def test_any_damage_gives_a_header_or_a_reason(
    name: str, edits: list[tuple[int, int]], end: int | None, rest: bytes
) -> None:
    content = bytearray(FILES[name])
    for at, value in edits:
        content[at % len(content)] = value
    survives(bytes(content[:end]))
    survives(FILES[name][:6] + rest)


def test_endless_headers_end(tmp_path: Path) -> None:
    for content in (
        b"\xff\xd8\xff" + bytes(2_000_000),
        b"\xff\xd8" + segment(0xE0, b"") * 100_000,
    ):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(Rejected, match="too many parts"):
            header(tmp_path / "file")
        survives(content)
