"""Pairs of images as columns, and their bytes; must not know how they were found, nor windows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saturate.contracts import Array, Source, Split
from saturate.dataset.images.columns import Images


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
    height: Array = field(init=False)  # int32 [n], of the large images
    width: Array = field(init=False)
    # int64 [n], bytes that are read for a sample, of both files
    size: Array = field(init=False)
    # int64 [n], the place of each sample's image in `high`
    of_high: Array = field(init=False)
    of_low: Array | None = field(init=False)

    def __post_init__(self) -> None:
        size = np.asarray(self.high.size[self.images])
        of_low = None
        if self.low is not None and self.small is not None:
            size = size + self.low.size[self.small]
            of_low = np.repeat(self.small, self.patches)
        made = {
            "height": np.repeat(self.high.height[self.images], self.patches),
            "width": np.repeat(self.high.width[self.images], self.patches),
            "size": np.repeat(size // self.patches, self.patches),
            "of_high": np.repeat(self.images, self.patches),
            "of_low": of_low,
        }
        for name, column in made.items():  # the dataclass is frozen
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.height)

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
        self, source: Any, images: Array, low: PairSource | None = None
    ) -> None:
        self.source = source
        self.images = images
        self.low = low
        self.files: bool = source.files
        self.read_delay_s: float = source.read_delay_s

    def __len__(self) -> int:
        return len(self.images)

    def name(self, sample: int) -> str:
        """Return the name of the sample's image, on one line."""
        return str(self.source.name(int(self.images[sample])))

    def read(self, sample: int) -> bytes:
        """Return the bytes of the sample's image. Raises as contracts.Source says."""
        return bytes(self.source.read(int(self.images[sample])))

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""
        self.source.check(int(self.images[sample]), size)


class PairFiles(PairSource):
    """The same of images that are files: a contracts.FileSource."""

    def path(self, sample: int) -> bytes:
        """Return the absolute path of the image's file."""
        return bytes(self.source.path(int(self.images[sample])))

    def paths(self, samples: Array) -> Array:
        """Return uint8 [B, L], the paths of many samples at once, each padded with NUL."""
        return np.asarray(self.source.paths(self.images[samples]))


def source_of(
    source: Source, images: Array, low: PairSource | None = None
) -> PairSource:
    """Return the bytes of samples by the place of each one's image in a source, of files or of any other."""
    return (PairFiles if source.files else PairSource)(source, images, low)


def split_of(columns: Pairs, high: Source, low: Source | None = None) -> Split:
    """Return columns and bytes of pairs as a split; `high` and `low` are the sources of its images."""
    small = None
    if low is not None and columns.of_low is not None:
        small = source_of(low, columns.of_low)
    return Split(columns=columns, source=source_of(high, columns.of_high, small))


@dataclass(frozen=True, kw_only=True)
class Unstored:
    """The columns of large images that are nowhere stored, as tall as wide, for the synthetic loader."""

    samples: int
    side: int
    height: Array = field(init=False)
    width: Array = field(init=False)
    size: Array = field(init=False)

    def __post_init__(self) -> None:
        for name, value in (("height", self.side), ("width", self.side), ("size", 0)):
            object.__setattr__(self, name, np.full(self.samples, value, np.int64))

    @property
    def fingerprint(self) -> str:
        """Return what tells such columns apart."""
        return f"synthetic-{self.samples}-{self.side}"


def synthetic(samples: int, side: int, patches: int = 1) -> Pairs:
    """Return the columns of so many large images without a file."""
    return Pairs(
        high=Unstored(samples=samples, side=side),
        images=np.arange(samples),
        patches=patches,
    )
