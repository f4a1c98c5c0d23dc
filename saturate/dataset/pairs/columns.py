"""Pairs of images as columns, and their bytes; must not know how they were found, nor windows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from saturate.contracts import Array, FileSource, Source, Split
from saturate.dataset.images.columns import Images
from saturate.dataset.images.synthetic import SyntheticImages


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs:
    """n samples: `patches` of each image in turn. There are no classes.

    `images` int64 [m] are the large images' places in `high`, `small` those of their small ones in `low`.
    Without `low` they are made of the large ones.
    """

    high: Any  # a dataset.images.columns.Images, or a stand-in
    images: Array
    low: Images | None = None
    small: Array | None = None
    patches: int = 1

    classes: tuple[str, ...] = ()
    rejected = 0
    exif = None
    fetch = None

    @cached_property
    def height(self) -> Array:
        """Return int [n], of the large images."""
        return self.high.height[self.of_high]

    @cached_property
    def width(self) -> Array:
        """Return int [n], of the large images."""
        return self.high.width[self.of_high]

    @cached_property
    def size(self) -> Array:
        """Return int64 [n], bytes that are read for a sample, of both files."""
        size = self.high.size[self.of_high]
        if self.low is not None:
            size = size + self.low.size[self.of_low]
        return size // self.patches

    @cached_property
    def of_high(self) -> Array:
        """Return int64 [n], the place of each sample's image in `high`."""
        return np.repeat(self.images, self.patches)

    @cached_property
    def of_low(self) -> Array | None:
        """Return int64 [n], the place of each sample's image in `low`."""
        return None if self.small is None else np.repeat(self.small, self.patches)

    def __len__(self) -> int:
        return len(self.of_high)

    @property
    def made(self) -> bool:
        """Whether small images are made of the large ones."""
        return self.low is None

    @property
    def fingerprint(self) -> str:
        """Return a digest of both folders' files, and of which of them are used how often."""
        low = "made" if self.low is None else self.low.fingerprint
        digest = hashlib.blake2b(
            f"{self.high.fingerprint} {low} {self.patches}".encode(), digest_size=16
        )
        digest.update(self.images.astype(np.int64).tobytes())
        return digest.hexdigest()


class PairSource(Source):
    """The large images of samples.

    `images` int64 [n] is the place of each sample's image in `source`; `low` is the same of the small ones,
    None: they are made.
    """

    def __init__(
        self, source: Source, images: Array, low: PairSource | None = None
    ) -> None:
        self.source = source
        self.images = images
        self.low = low
        self.files = source.files
        self.remote = source.remote
        self.read_delay_s = source.read_delay_s
        self.reads_at_once = source.reads_at_once
        self.alone_while_fast = source.alone_while_fast

    def __len__(self) -> int:
        return len(self.images)

    def name(self, sample: int) -> str:
        """Return the name of the sample's image, on one line."""
        return self.source.name(int(self.images[sample]))

    def read(self, sample: int) -> bytes:
        """Return the bytes of the sample's image. Raises as contracts.Source says."""
        return self.source.read(int(self.images[sample]))

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""
        self.source.check(int(self.images[sample]), size)


class PairFiles(PairSource):
    """The same of images that are files: a contracts.FileSource."""

    source: FileSource

    def path(self, sample: int) -> bytes:
        """Return the absolute path of the image's file."""
        return self.source.path(int(self.images[sample]))

    def paths(self, samples: Array) -> Array:
        """Return uint8 [B, L], the paths of many samples at once, each padded with NUL."""
        return self.source.paths(self.images[samples])


def source_of(
    source: Source, images: Array, low: PairSource | None = None
) -> PairSource:
    """Return the bytes of samples by the place of each one's image in a source, of files or of any other."""
    return (PairFiles if source.files else PairSource)(source, images, low)


def split_of(columns: Pairs, high: Source, low: Source | None = None) -> Split[Pairs]:
    """Return columns and bytes of pairs as a split; `high` and `low` are the sources of its images."""
    small = None
    if low is not None and columns.of_low is not None:
        small = source_of(low, columns.of_low)
    return Split(columns=columns, source=source_of(high, columns.of_high, small))


def synthetic(samples: int, side: int, patches: int = 1) -> Pairs:
    """Return the columns of so many large images without a file, as tall as wide."""
    high = SyntheticImages(samples, (), (side, side))
    return Pairs(high=high, images=np.arange(samples), patches=patches)
