"""Videos that have no files: what the synthetic loader trains on when no --data is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saturate.dataset.images.synthetic import SyntheticImages

VIDEO_FRAMES = 300


@dataclass(frozen=True)
class SyntheticVideos(SyntheticImages):
    """SyntheticImages, each of which is a video of ten seconds."""

    first: Any = field(init=False)
    frames: Any = field(init=False)
    time_base_num: Any = field(init=False)
    time_base_den: Any = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (
            ("first", 0),
            ("frames", VIDEO_FRAMES),
            ("time_base_num", 1),
            ("time_base_den", 30),
        ):
            object.__setattr__(
                self, name, np.broadcast_to(np.int64(value), self.samples)
            )

    def pts(self, sample: int) -> Any:
        """Return int64 [VIDEO_FRAMES], 30 frames a second."""
        return np.arange(VIDEO_FRAMES)
