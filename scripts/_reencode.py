"""Images that `scripts.pack` stores smaller: resized, as JPEG, or a share of them raw, as FFCV does.

Which images stay raw is a digest of their names, so that a pack goes on with the same ones. Decoding and
encoding release the interpreter, so that the threads which read do this too.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import threading
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image

from contracts import Array, Source, Split, UserError
from dataset.images.columns import shown_by
from loaders.images.decoders import pillow_rgb

ORIENTATION = 0x0112
"""EXIF's tag of how viewers are to turn an image."""


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """What is stored in place of an image's file. FFCV's published settings are 500, 90 and 0.5."""

    max_side: int | None  # pixels of the longer side at most
    quality: int  # of JPEG
    share: float  # of the images that become JPEG; the others are raw pixels (PPM)

    def key(self) -> dict[str, Any]:
        """Return what a pack depends on, as JSON has it."""
        return asdict(self)

    def source(self, split: Split) -> Reencoded:
        """Return the images of a split as they are stored."""
        return Reencoded(split.source, split.columns, self)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height as stored: no image is enlarged."""
        scale = min((self.max_side or max(width, height)) / max(width, height), 1)
        return max(round(width * scale), 1), max(round(height * scale), 1)


class Reencoded:
    """A contracts.Source of smaller images; counts what that costs."""

    files = False

    def __init__(self, source: Source, columns: Any, smaller: Smaller) -> None:
        self.read_delay_s = source.read_delay_s
        self._source = source
        self._columns = columns
        self._smaller = smaller
        self._turned = shown_by(columns) > 0
        self._lock = threading.Lock()
        self._images = self._kept = self._jpegs = 0
        self._before = self._after = 0
        self._bytes_before = self._bytes_after = 0
        self._squares = self._levels = 0.0  # of differences, summed over JPEGs' means

    def __len__(self) -> int:
        return len(self._source)

    def name(self, sample: int) -> str:
        """Return what messages call the sample."""
        return self._source.name(sample)

    def check(self, sample: int, size: int) -> None:
        """Do nothing: the sizes that the columns know are of the files as they were."""

    def read(self, sample: int) -> bytes:
        """Return the image as it is stored; a damaged one as it was."""
        data = self._source.read(sample)
        width, height = (
            int(self._columns.width[sample]),
            int(self._columns.height[sample]),
        )
        turned = bool(self._turned[sample])
        raw = not turned and self._is_raw(
            self._columns.entry(sample)
        )  # PPM cannot ask to be turned
        fits = (
            self._smaller.max_side is not None
            and max(width, height) <= self._smaller.max_side
        )
        if (
            fits and not raw and data.startswith(b"\xff\xd8")
        ):  # a second JPEG of it would lose, and gain nothing
            self._count((width, height), (width, height), data, data)
            return data
        try:
            image = pillow_rgb(data)
        except Exception:  # PIL raises what it likes on damaged files; training masks and names this one
            self._count((width, height), (width, height), data, data)
            return data
        size = self._smaller.size(image.width, image.height)
        if size != image.size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        made = io.BytesIO()
        if raw:
            image.save(made, "PPM")
            self._count((width, height), size, data, made.getvalue())
        else:
            exif = Image.Exif()
            if turned:
                exif[ORIENTATION] = int(self._columns.orientation[sample])
            image.save(made, "JPEG", quality=self._smaller.quality, exif=exif)
            difference = np.asarray(image, np.int16) - np.asarray(
                pillow_rgb(made.getvalue()), np.int16
            )
            self._count((width, height), size, data, made.getvalue(), difference)
        return made.getvalue()

    def _is_raw(self, name: bytes) -> bool:
        digest = hashlib.blake2b(name, digest_size=8).digest()
        return int.from_bytes(digest, "big") >= self._smaller.share * 2**64

    def _count(
        self,
        before: tuple[int, int],
        after: tuple[int, int],
        data: bytes,
        made: bytes,
        difference: Array | None = None,
    ) -> None:
        with self._lock:
            self._images += 1
            self._kept += made is data
            self._before += before[0] * before[1]
            self._after += after[0] * after[1]
            self._bytes_before += len(data)
            self._bytes_after += len(made)
            if difference is not None:
                self._jpegs += 1
                self._levels += float(np.abs(difference).mean())
                self._squares += float((difference.astype(np.float32) ** 2).mean())

    def told(self) -> str:
        """Return a line that says what it costs in pixels; "" before the first image."""
        if not self._images:
            return ""
        line = (
            f"{self._images - self._kept:,} of {self._images:,} images encoded anew: "
            f"{self._after / self._before:.0%} of the pixels, "
            f"{self._bytes_after / self._bytes_before:.0%} of the bytes"
        )
        if not self._jpegs:
            return line
        noise = max(self._squares / self._jpegs, 1e-9)
        return (
            f"{line}; the new JPEGs are {self._levels / self._jpegs:.2f} grey levels off the resized pixels, "
            f"PSNR {10 * np.log10(255**2 / noise):.1f} dB"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of smaller images to a program's."""
    parser.add_argument(
        "--max-side",
        type=int,
        help="encode anew, the longer side this many pixels at most",
    )
    parser.add_argument(
        "--quality", type=int, help="encode anew, JPEG of this quality; default: 90"
    )
    parser.add_argument(
        "--share",
        type=float,
        help="share that becomes JPEG, the rest raw pixels; default: 1",
    )


def asked(
    max_side: int | None, quality: int | None, share: float | None
) -> Smaller | None:
    """Return what flags ask for; None where no image is encoded anew. Raises UserError."""
    if max_side is None and quality is None and share is None:
        return None
    for flag, value, low, high in (
        ("--max-side", max_side, 1, 1 << 16),
        ("--quality", quality, 1, 100),
        ("--share", share, 0, 1),
    ):
        if value is not None and not low <= value <= high:
            raise UserError(f"{flag} got {value}; it must be {low} to {high}")
    return Smaller(
        max_side=max_side,
        quality=90 if quality is None else quality,
        share=1.0 if share is None else share,
    )
