"""Training images as TensorBoard shows them."""

from __future__ import annotations

import numpy as np
import torch

from contracts import Batch
from report.pictures import augmented


def test_pixels_are_as_before_normalising_of_clips_the_middle_frame() -> None:
    mean, std = torch.tensor([0.5, 0.25, 0.0]), torch.tensor([0.25, 0.5, 1.0])
    images = torch.zeros(20, 3, 3, 8, 800)
    images[:, :, 1] = torch.tensor([2.0, 0.5, 0.2])[:, None, None]
    valid = torch.ones(20, dtype=torch.bool)
    batch = Batch(
        images=images, sizes=valid, targets={}, valid=valid, ids=np.arange(20)
    )
    shown = augmented(batch, mean, std)
    assert shown.shape == (16, 4, 384, 3)
    assert np.unique(shown.reshape(-1, 3), axis=0).tolist() == [[255, 128, 51]]
