"""Image files made for the tests: ramps, photographs of nothing, every odd format, and damage."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image

from saturate.contracts import Array

HAS_HEIC = find_spec("pillow_heif") is not None
if HAS_HEIC:  # what users install
    import_module("pillow_heif").register_heif_opener()

EXIF_ORIENTATION = 0x0112


RAMP = (10.0, 245.0)
"""Grey levels at the centres of a ramp's first and last pixel."""


def ramp(height: int, width: int, blue: int) -> Array:
    """uint8 [H, W, 3]: red grows to the right, green to the bottom, by fractions of a level in the mean."""
    pixels = np.full((height, width, 3), blue, np.uint8)
    offsets = np.arange(max(height, width)) * 0.618034 % 1.0
    pixels[..., 0] = np.linspace(*RAMP, width)[None, :] + offsets[:height, None]
    pixels[..., 1] = np.linspace(*RAMP, height)[:, None] + offsets[None, :width]
    return pixels


def photograph(seed: int, height: int, width: int) -> Array:
    """uint8 [H, W, 3] with the spectrum of a photograph: coarse shapes, fine grain, a few hard edges."""
    draws = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells, weight in ((3, 70.0), (9, 40.0), (40, 20.0), (120, 8.0)):
        grid = draws.normal(size=(cells, cells, 3)).astype(np.float32)
        planes = [
            Image.fromarray(grid[..., c]).resize(
                (width, height), Image.Resampling.BICUBIC
            )
            for c in range(3)
        ]
        total += weight * np.stack([np.asarray(plane) for plane in planes], axis=2)
    for _ in range(4):
        y, x = int(draws.integers(0, height)), int(draws.integers(0, width))
        total[y : y + height // 4, x : x + width // 4] += draws.normal(size=3) * 50
    return np.clip(total + 120, 0, 255).astype(np.uint8)


def jpeg(
    pixels: Array, *, quality: int = 90, subsampling: int = 0, **options: Any
) -> bytes:
    """`subsampling` 0 = 4:4:4, 1 = 4:2:2, 2 = 4:2:0."""
    if pixels.ndim == 2:
        return _saved(Image.fromarray(pixels), "JPEG", quality=quality, **options)
    return _saved(
        Image.fromarray(pixels),
        "JPEG",
        quality=quality,
        subsampling=subsampling,
        **options,
    )


def png(pixels: Array) -> bytes:
    return _saved(Image.fromarray(pixels), "PNG")


def turned(pixels: Array, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    return jpeg(pixels, quality=95, exif=exif.tobytes())


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return (
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
    )


def _png_16(pixels: Array, colour_type: int) -> bytes:
    """16 bits a component, which Pillow does not write for colour. `pixels` uint16 [H, W, C]."""
    height, width, components = pixels.shape
    lines = np.zeros((height, 1 + 2 * width * components), np.uint8)
    lines[:, 1:] = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    body = (
        _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(lines.tobytes()))
        + _chunk(b"IEND", b"")
    )
    return b"\x89PNG\r\n\x1a\n" + body


def odd_files() -> dict[str, bytes]:
    """name -> bytes, one of each format, depth and colour model."""
    pixels = photograph(7, 90, 120)
    colour = Image.fromarray(pixels)
    grey, alpha = (
        colour.convert("L"),
        Image.fromarray(np.tile(np.arange(120, dtype=np.uint8) * 2, (90, 1))),
    )
    with_alpha = colour.copy()
    with_alpha.putalpha(alpha)
    palette = colour.convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
    wide = pixels.astype(np.uint16) * 257 + 3
    deep = wide[..., 0]
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    return {
        "cmyk-jpeg": _saved(colour.convert("CMYK"), "JPEG", quality=95),
        "jpeg-progressive": jpeg(pixels, quality=90, subsampling=2, progressive=True),
        "jpeg-grey": jpeg(np.asarray(grey), quality=90),
        "jpeg-rgb": _saved(colour, "JPEG", quality=95, keep_rgb=True),
        "jpeg-trailing": jpeg(pixels, quality=95) + b"\0" * 40,
        "png-16-rgb": _png_16(wide, 2),
        "png-16": _png_16(wide[..., :1], 0),
        "png-16-alpha": _png_16(
            np.stack([deep, np.full_like(deep, 0xFFFF)], axis=2), 4
        ),
        "png-rgba": _saved(with_alpha, "PNG"),
        "png-palette": _saved(palette, "PNG"),
        "png-transparent-index": _saved(palette, "PNG", transparency=3),
        "png-one-bit": _saved(colour.convert("1"), "PNG"),
        "png-turned": _saved(colour, "PNG", exif=exif.tobytes()),
        "gif": _saved(palette, "GIF"),
        "bmp": _saved(colour, "BMP"),
        "webp": _saved(colour, "WEBP", quality=90),
        "webp-lossless-alpha": _saved(with_alpha, "WEBP", lossless=True, exact=True),
        "tiff": _saved(colour, "TIFF"),
        "tiff-16": _saved(Image.fromarray(deep), "TIFF"),
        "ppm": _saved(colour, "PPM"),
        "avif": _saved(colour, "AVIF", quality=90, exif=exif.tobytes()),
        **({"heic": _saved(colour, "HEIF", quality=90)} if HAS_HEIC else {}),
    }


def damaged_files() -> dict[str, bytes]:
    """name -> bytes whose header can be scanned and whose body is broken."""
    whole = jpeg(photograph(11, 96, 128), quality=90)
    progressive = jpeg(
        photograph(12, 96, 128), quality=90, subsampling=2, progressive=True
    )
    lossless = png(photograph(13, 60, 80))
    scan = whole.index(b"\xff\xda")
    found = {
        f"cut-{share}": whole[: len(whole) * share // 100] for share in (30, 60, 90)
    }
    found |= {
        f"cut-{share}-with-end-marker": whole[: len(whole) * share // 100] + b"\xff\xd9"
        for share in (30, 60, 90)
    }
    found |= {
        "progressive-cut-50": progressive[: len(progressive) // 2],
        "header-then-garbage": whole[: scan + 14]
        + np.random.default_rng(1).bytes(3000),
        "header-then-nothing": whole[: scan + 14],
        "header-then-text": whole[:scan] + b"<html>503 Service Unavailable</html>" * 30,
        "zeros-in-the-scan": _replaced(whole, lambda data: bytes(len(data))),
        "tables-lost": _without_tables(whole),
        "ppm-cut-90": _saved(Image.fromarray(photograph(14, 40, 50)), "PPM")[:5400],
        "png-cut-50": lossless[: len(lossless) // 2],
        "png-bad-checksum": _replaced(
            lossless, lambda data: bytes(byte ^ 0x55 for byte in data)
        ),
    }
    for seed in range(6):
        found[f"flipped-bytes-{seed}"] = _flipped(whole, scan + 14, seed)
    return found


def _replaced(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    begin = len(data) // 2
    return data[:begin] + change(data[begin : begin + 64]) + data[begin + 64 :]


def _flipped(data: bytes, first: int, seed: int) -> bytes:
    draws, copy = np.random.default_rng(seed), bytearray(data)
    for at in draws.integers(first, len(data) - 2, 8):
        copy[at] ^= 1 << int(draws.integers(0, 8))
    return bytes(copy)


def _without_tables(data: bytes) -> bytes:
    return data.replace(b"\xff\xc4", b"\xff\xfe")


def pil(data: bytes) -> Array | None:
    """RGB uint8 by Pillow alone, the reference of every loader; None when it cannot decode."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith(
                "I"
            ):  # grey of 16 bits, which Pillow's conversion clips
                return np.repeat(
                    (np.asarray(image) // 256).astype(np.uint8)[..., None], 3, axis=2
                )
            return np.asarray(image.convert("RGB"))
    except Exception:  # Pillow raises what it likes on damaged files
        return None
