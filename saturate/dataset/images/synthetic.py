"""Data sets of the usual sizes, without files: what the synthetic loader trains on without --data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saturate.contracts import Array

TRAIN_SAMPLES = 1_281_167
VAL_SAMPLES = 50_000
CLASSES = 1000


@dataclass(frozen=True)
class SyntheticImages:
    """The columns of images of one size: of a manifest what the plan and the task read."""

    samples: int
    classes: tuple[str, ...] = tuple(f"class-{i:03d}" for i in range(CLASSES))
    height_width: tuple[int, int] = (375, 500)
    rejected = 0
    exif = None
    fetch = None
    several = None

    def __len__(self) -> int:
        return self.samples

    def all_are(self, value: int) -> Array:
        """Return int64 [n] of one value."""
        return np.broadcast_to(np.int64(value), self.samples)

    @property
    def height(self) -> Array:
        return self.all_are(self.height_width[0])

    @property
    def width(self) -> Array:
        return self.all_are(self.height_width[1])

    @property
    def size(self) -> Array:
        return self.all_are(0)

    @property
    def label(self) -> Array:
        return np.arange(self.samples) % len(self.classes)

    @property
    def fingerprint(self) -> str:
        what = len(self.classes) or self.height_width[0]
        return f"synthetic-{self.samples}-{what}"
