"""Headers are Pillow's, and of damaged files there is a header or a reason."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataset.images.columns import CHROMA, FORMATS, HEADER, Header
from dataset.images.headers import FOLLOWED, parse, read_header
from dataset.scan.byte_ranges import Files
from dataset.scan.manifest import Rejected

SAMPLES = Path(
    os.environ.get("SATURATE_SAMPLES") or Path(__file__).parents[3] / "shared" / "data"
)
COMPONENTS = {
    "1": 1,
    "L": 1,
    "P": 1,
    "I": 1,
    "I;16": 1,
    "I;16B": 1,
    "LA": 2,
    "RGB": 3,
    "RGBA": 4,
    "CMYK": 4,
}
ORIENTATION = 0x0112


def header(path: bytes) -> Header:
    with Files(Path("/")).opened(path) as (size, read_at):
        return read_header(size, read_at)


def encoded(
    mode: str = "RGB",
    size: tuple[int, int] = (37, 23),
    format: str = "JPEG",
    **options: Any,
) -> bytes:
    """An image file of width, height `size`."""
    noise = np.random.default_rng(7).integers(
        0, 255, (size[1], size[0], 3), dtype=np.uint8
    )
    image = Image.fromarray(noise)
    if mode == "I;16":
        image = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    elif mode != "RGB":
        image = image.convert(mode)
    target = io.BytesIO()
    image.save(target, format, **options)
    return target.getvalue()


def exif(orientation: int, order: str = ">") -> bytes:
    mark = b"MM" if order == ">" else b"II"
    tags = struct.pack(
        order + "HIHHHIHHI", 42, 8, 1, ORIENTATION, 3, 1, orientation, 0, 0
    )
    return b"Exif\0\0" + mark + tags


def segment(code: int, content: bytes) -> bytes:
    return b"\xff" + bytes([code]) + struct.pack(">H", len(content) + 2) + content


FILES = {
    "jpeg rgb": encoded(),
    "jpeg grey": encoded("L"),
    "jpeg cmyk": encoded("CMYK"),
    "jpeg progressive": encoded(progressive=True),
    "jpeg exif big endian": encoded(exif=exif(6)),
    "jpeg exif little endian": encoded(exif=exif(8, "<")),
    "jpeg exif of no meaning": encoded(exif=exif(0)),
    "jpeg behind a profile of 300 kB": encoded(
        icc_profile=bytes(300_000), exif=exif(3)
    ),
    "jpeg tall": encoded(size=(1, 1999)),
    "png rgb": encoded(format="PNG"),
    "png rgba": encoded("RGBA", format="PNG"),
    "png grey": encoded("L", format="PNG"),
    "png grey and alpha": encoded("LA", format="PNG"),
    "png palette": encoded("P", format="PNG"),
    "png 1 bit": encoded("1", format="PNG"),
    "png 16 bit": encoded("I;16", format="PNG"),
    "png exif": encoded(format="PNG", exif=exif(5)),
    "gif": encoded("P", format="GIF"),
    "gif with a comment": encoded("P", format="GIF", comment=b"x" * 700),
    "bmp rgb": encoded(format="BMP"),
    "bmp palette": encoded("P", format="BMP"),
    "bmp rgba": encoded("RGBA", format="BMP"),
    "bmp 1 bit": encoded("1", format="BMP"),
    "webp lossy": encoded(format="WEBP"),
    "webp lossless": encoded(format="WEBP", lossless=True),
    "webp rgba": encoded("RGBA", format="WEBP"),
    "webp lossless rgba": encoded("RGBA", format="WEBP", lossless=True),
    "webp exif": encoded(format="WEBP", exif=exif(7)),
    "tiff rgb": encoded(format="TIFF"),
    "tiff rgba": encoded("RGBA", format="TIFF"),
    "tiff grey": encoded("L", format="TIFF"),
    "tiff palette": encoded("P", format="TIFF"),
    "tiff 16 bit": encoded("I;16", format="TIFF"),
    "tiff cmyk deflate": encoded("CMYK", format="TIFF", compression="tiff_deflate"),
    "tiff turned by 180": encoded(format="TIFF", tiffinfo={ORIENTATION: 3}),
    "tiff big": encoded(format="TIFF", big_tiff=True),
    "ppm": encoded(format="PPM"),
    "pgm": encoded("L", format="PPM"),
    "pgm 16 bit": encoded("I;16", format="PPM"),
    "pbm": encoded("1", format="PPM"),
}


def assert_like_pillow(found: Header, content: bytes) -> None:
    with Image.open(io.BytesIO(content)) as image:
        assert (found.height, found.width) == (image.height, image.width)
        assert FORMATS[found.format].upper() == (
            "JPEG" if image.format == "MPO" else image.format
        )
        assert found.components == COMPONENTS[image.mode]
        # Pillow opens a GIF or BMP whose colour table is grey as L
        if image.mode == "P" or image.format in ("PNG", "TIFF"):
            assert found.palette == (image.mode == "P")
        assert found.orientation == (image.getexif().get(ORIENTATION) or 0)
        assert found.size == len(content)
        if image.format == "JPEG":
            assert found.progressive == bool(image.info.get("progressive"))


@pytest.mark.parametrize("name", FILES)
def test_header_is_pillows(name: str, tmp_path: Path) -> None:
    path = tmp_path / "named.JPEG"  # the name says nothing
    path.write_bytes(FILES[name])
    assert_like_pillow(header(os.fsencode(path)), FILES[name])


@pytest.mark.parametrize("folder", ["imagenet_sample", "coco_sample"])
def test_header_is_pillows_on_real_images(folder: str) -> None:
    if not SAMPLES.is_dir():
        pytest.skip(
            f"no real images in {SAMPLES}; set SATURATE_SAMPLES to a folder that holds {folder}"
        )
    paths = [
        path
        for path in (SAMPLES / folder).rglob("*")
        if path.suffix in (".JPEG", ".jpg")
    ]
    assert len(paths) == {"imagenet_sample": 200, "coco_sample": 72}[folder]
    for path in paths:
        found = header(os.fsencode(path))
        assert_like_pillow(found, path.read_bytes())
        with Image.open(path) as image:
            layers = [(across, down) for _, across, down, _ in image.layer]  # type: ignore[attr-defined]
        ratio = (layers[0][0] // layers[-1][0], layers[0][1] // layers[-1][1])
        expected = (
            "gray"
            if len(layers) == 1
            else {(1, 1): "444", (2, 1): "422", (2, 2): "420", (1, 2): "440"}[ratio]
        )
        assert CHROMA[found.chroma] == expected


def test_depth_is_bits_a_component() -> None:
    depths = {
        "png 16 bit": 16,
        "png 1 bit": 1,
        "pgm 16 bit": 16,
        "pbm": 1,
        "tiff 16 bit": 16,
        "jpeg rgb": 8,
    }
    assert {
        name: parse(FILES[name], len(FILES[name])).depth for name in depths
    } == depths


@pytest.mark.parametrize(
    ("marker", "stored_as_rgb"),
    [("adobe", True), ("none", True), ("jfif", False), ("adobe ycc", False)],
)
def test_jpegs_stored_as_rgb(marker: str, stored_as_rgb: bool) -> None:
    """libjpeg decides: flat red stays red, or is taken for YCbCr."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 30, 20)).save(
        buffer, "JPEG", quality=100, keep_rgb=True
    )
    content = buffer.getvalue()
    begin = content.index(b"\xff\xee")
    adobe, rest = content[begin : begin + 16], content[begin + 16 :]
    jfif = b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
    content = (
        content[:begin]
        + {"adobe": adobe, "none": b"", "jfif": jfif, "adobe ycc": adobe[:15] + b"\1"}[
            marker
        ]
        + rest
    )
    pixel = np.asarray(Image.open(io.BytesIO(content)))[8, 8]
    assert (np.abs(pixel - np.array([200.0, 30, 20])).max() < 5) == stored_as_rgb
    assert (CHROMA[parse(content, len(content)).chroma] == "rgb") == stored_as_rgb


@pytest.mark.parametrize(
    ("factors", "chroma"),
    [
        ((0x11, 0x11, 0x11), "444"),
        ((0x21, 0x11, 0x11), "422"),
        ((0x22, 0x11, 0x11), "420"),
        ((0x12, 0x11, 0x11), "440"),
        ((0x41, 0x11, 0x11), "411"),
        ((0x22, 0x22, 0x22), "444"),
        ((0x22, 0x11, 0x21), "other"),
    ],
)
def test_chroma_from_sampling_factors(
    factors: tuple[int, int, int], chroma: str
) -> None:
    frame = struct.pack(">BHHB", 8, 5, 9, 3) + b"".join(
        bytes([i, factor, 0]) for i, factor in enumerate(factors)
    )
    content = b"\xff\xd8" + segment(0xC0, frame)
    found = parse(content, len(content))
    assert (found.height, found.width, CHROMA[found.chroma]) == (5, 9, chroma)


def test_stray_and_fill_bytes_before_a_marker_are_skipped() -> None:
    content = FILES["jpeg rgb"]
    odd = (
        content[:2]
        + b"\xff\xff\xff"
        + content[3:20]
        + b"\x00\x13\xff\x00"
        + content[20:]
    )
    assert parse(odd, len(odd)).width == parse(content, len(content)).width


def chunks(content: bytes) -> list[int]:
    found = [8]
    while content[found[-1] + 4 : found[-1] + 8] != b"IEND":
        found.append(
            found[-1] + 12 + int.from_bytes(content[found[-1] : found[-1] + 4], "big")
        )
    return found


def test_what_is_whole() -> None:
    jpeg, png = FILES["jpeg rgb"], encoded(size=(200, 200), format="PNG")
    scan, end, data = jpeg.index(b"\xff\xda"), chunks(png)[-1], chunks(png)[2]
    assert len(chunks(png)) > 3
    whole = [jpeg, jpeg + bytes(30), png, png + b"more"]
    whole += [jpeg[:scan] + b"\xff\xff" + jpeg[scan:], jpeg[:2] + b"\xff" + jpeg[2:]]
    assert [parse(content, len(content)).whole for content in whole] == [True] * len(
        whole
    )
    odd = [jpeg[:-2], jpeg[:-2] + bytes(2)]
    odd += [jpeg[:20] + between + jpeg[20:] for between in (b"\0", b"\xff\xd0")]
    odd += [
        jpeg[:scan] + between + jpeg[scan:]
        for between in (
            b"\0",
            b"\xff\0",
            b"\xff\xd8",
            b"\xff\xd9",
            b"\xff\xfe\0\1",
            b"\xff\xfe\x7f\0",
        )
    ]
    odd += [jpeg[: scan + 1] + b"\xff\xd9", png[:-1], png[:end], png[: end - 20]]
    odd += [png[:data] + b"\0" + png[data:], png[: data + 20] + png[data + 21 :]]
    table = jpeg.index(b"\xff\xc4")
    odd += [
        jpeg[:table] + b"\xff\xc5" + jpeg[table + 2 :],
        png[:8] + b"\0\0\0\5" + png[12:],
    ]
    assert [parse(content, len(content)).whole for content in odd] == [False] * len(odd)


def test_a_large_png_is_not_read_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpng writes 8 KiB a chunk: a scan would read the whole data set."""
    whole = encoded(size=(400, 400), format="PNG")
    data = chunks(whole)[1]
    pixels = whole[data + 8 : -16]
    parts = [pixels[at : at + 2000] for at in range(0, len(pixels), 2000)]
    content = (
        whole[:data]
        + b"".join(
            struct.pack(">I", len(part)) + b"IDAT" + part + bytes(4) for part in parts
        )
        + whole[-12:]
    )
    assert len(parts) > 200
    read, reads = os.pread, [0]

    def counted(*given: Any) -> bytes:
        reads[0] += 1
        return read(*given)

    monkeypatch.setattr(os, "pread", counted)
    for end, expected in ((None, True), (-12, False)):
        (tmp_path / "a.png").write_bytes(content[:end])
        reads[0] = 0
        assert header(os.fsencode(tmp_path / "a.png")).whole is expected
        assert reads[0] <= FOLLOWED + 2
    assert (
        not parse(content[:-500], len(content) - 500).whole
        and parse(content, len(content)).whole
    ), "at hand it costs nothing"


def test_damaged_exif_costs_no_sample() -> None:
    content = FILES["jpeg rgb"]
    for bad in (
        b"Exif\0\0",
        b"Exif\0\0MM\0*\xff\xff\xff\xff",
        exif(6)[:20],
        exif(4711),
        b"Exif\0\0XX" + exif(6)[8:],
    ):
        odd = content[:2] + segment(0xE1, bad) + content[2:]
        assert parse(odd, len(odd)).orientation == 0


def test_first_frame_of_a_gif_may_be_larger_than_its_screen() -> None:
    content = bytearray(FILES["gif"])
    content[6:10] = struct.pack("<HH", 5, 4)
    assert_like_pillow(parse(bytes(content), len(content)), bytes(content))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"<html>", "no known image format (starts with 3c 68 74 6d 6c 3e)"),
        (b"\xff\xd8", "no known image format"),
        (b"BM is how this text begins", "BMP header is of no known kind"),
        (b"P5 is how this text begins", "PPM header is cut short"),
        (FILES["jpeg rgb"][:40], "JPEG header is cut short"),
        (b"\xff\xd8\xff\xd9", "JPEG has no frame header"),
        (
            b"\xff\xd8" + segment(0xC0, struct.pack(">BHHB", 8, 0, 9, 1) + b"\0\x11\0"),
            "JPEG of 9 x 0 pixels",
        ),
        (FILES["png rgb"][:33], "PNG header is cut short"),
        (FILES["tiff rgb"][:9], "TIFF header is cut short"),
        (
            encoded("F", format="TIFF"),
            "TIFF has 32 bits a component, which say no range; save it with 8 or",
        ),
    ],
)
def test_reason_is_said(content: bytes, reason: str) -> None:
    with pytest.raises(Rejected) as error:
        parse(content, len(content))
    assert str(error.value).startswith(reason)


def survives(content: bytes, path: Path | None = None) -> None:
    """There is a header or a reason; also through a file, read piece by piece behind its first 4 KiB."""
    for file in (None, path) if path else (None,):
        try:
            found = header(os.fsencode(file)) if file else parse(content, len(content))
        except Rejected as reason:
            said = str(reason)
        else:
            said = "a header"
            np.array([found], HEADER)  # every number fits its column
        assert said


@settings(max_examples=350)
@given(
    name=st.sampled_from(sorted(FILES)),
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8),
    end=st.none() | st.integers(0, 600),
)
def test_any_damage_gives_a_header_or_a_reason(
    name: str, edits: list[tuple[int, int]], end: int | None
) -> None:
    content = bytearray(FILES[name])
    for at, value in edits:
        content[at % len(content)] = value
    survives(bytes(content[:end]))


BEGINS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"BM",
    b"RIFF\0\0\0\0WEBPVP8X",
)


@settings(max_examples=250)
@given(
    magic=st.sampled_from([*BEGINS, b"II*\0", b"MM\0+", b"P6 ", b""]),
    rest=st.binary(max_size=300),
)
def test_random_bytes_give_a_header_or_a_reason(magic: bytes, rest: bytes) -> None:
    survives(magic + rest)


def test_endless_headers_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (
        b"\xff\xd8\xff" + bytes(2_000_000),
        b"\xff\xd8" + segment(0xE0, b"") * 500_000,
        b"GIF89a" + bytes(7) + b"!\xfe" + b"\1x" * 500_000,
    ):
        path.write_bytes(content)
        survives(content, path)
