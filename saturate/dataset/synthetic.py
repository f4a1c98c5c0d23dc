"""Splits of samples that are stored nowhere, for the synthetic loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saturate.contracts import Columns, Source, Split, UserError
from saturate.dataset.coco.synthetic import COCO_TRAIN, COCO_VAL, SyntheticInstances
from saturate.dataset.images.synthetic import (
    TRAIN_SAMPLES,
    VAL_SAMPLES,
    SyntheticImages,
)
from saturate.dataset.videos.synthetic import SyntheticVideos


class NoBytes(Source):
    """The source of samples that are not stored anywhere, for loaders that read nothing."""

    files = False
    read_delay_s = 0.0

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def name(self, sample: int) -> str:
        """Return its number."""
        return f"synthetic-{sample}"

    def read(self, sample: int) -> bytes:
        """Raise UserError."""
        raise UserError(
            f"{self.name(sample)} has no bytes: only --loader synthetic does without --data"
        )

    def check(self, sample: int, size: int) -> None:
        """Raise UserError."""
        self.read(sample)


def synthetic(content: str = "images") -> dict[str, Split[Any]]:
    """Return two splits of ImageNet's or COCO's size without a file, for the synthetic loader."""
    if content == "instances" or content == "keypoints":
        columns: Sequence[Columns] = [
            SyntheticInstances.generate(samples, keypoints=content == "keypoints")
            for samples in (COCO_TRAIN, COCO_VAL)
        ]
    else:
        columns = [
            (SyntheticVideos if content == "videos" else SyntheticImages)(samples)
            for samples in (TRAIN_SAMPLES, VAL_SAMPLES)
        ]
    return {
        split: Split(columns=each, source=NoBytes(len(each)))
        for split, each in zip(("train", "val"), columns, strict=True)
    }
