"""Videos that have no files: what the synthetic loader trains on when no --data is given."""

from __future__ import annotations

import numpy as np

from saturate.contracts import Array
from saturate.dataset.images.synthetic import SyntheticImages

VIDEO_FRAMES = 300


class SyntheticVideos(SyntheticImages):
    """SyntheticImages, each of which is a video of ten seconds."""

    @property
    def first(self) -> Array:
        return self.all_are(0)

    @property
    def frames(self) -> Array:
        return self.all_are(VIDEO_FRAMES)

    @property
    def time_base_num(self) -> Array:
        return self.all_are(1)

    @property
    def time_base_den(self) -> Array:
        return self.all_are(30)

    def pts(self, sample: int) -> Array:
        """Return int64 [VIDEO_FRAMES], 30 frames a second."""
        return np.arange(VIDEO_FRAMES)
