"""Data sets of the usual sizes, without files: what the synthetic loader trains on without --data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

TRAIN_SAMPLES = 1_281_167
VAL_SAMPLES = 50_000
CLASSES = 1000


@dataclass(frozen=True)
class SyntheticImages:
    """The columns of a manifest that the plan and the task read."""

    samples: int
    classes: tuple[str, ...] = tuple(f"class-{i:03d}" for i in range(CLASSES))
    rejected: int = 0
    exif = None
    fetch = None
    several = None
    height: Any = field(init=False)
    width: Any = field(init=False)
    label: Any = field(init=False)
    size: Any = field(init=False)

    def __post_init__(self) -> None:
        for name, value in (("height", 375), ("width", 500), ("size", 0)):
            object.__setattr__(
                self, name, np.broadcast_to(np.int64(value), self.samples)
            )
        object.__setattr__(self, "label", np.arange(self.samples) % len(self.classes))

    def __len__(self) -> int:
        return self.samples

    @property
    def fingerprint(self) -> str:
        return f"synthetic-{self.samples}-{len(self.classes)}"
