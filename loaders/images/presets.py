"""Functions for `--transforms`, by two libraries of augmentations; they are examples to copy and change.

Windows and flips are the plan's, so that neither function crops, resizes or flips.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from contracts import Array


@cache
def _of_torchvision() -> Any:
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
            v2.RandomGrayscale(0.1),
            v2.RandomApply([v2.GaussianBlur(5, (0.1, 2.0))], p=0.2),
        ]
    )


def torchvision_v2(image: Array, rng: np.random.Generator) -> Array:
    """Jitter colours, drop them, or blur, by torchvision.transforms.v2, which draws from torch."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    made: Array = _of_torchvision()(pixels).permute(1, 2, 0).numpy()
    return made


@cache
def _of_albumentations() -> Any:
    # 2.0.8 is the last version under the MIT licence; its successor albumentationsx is under the AGPL
    import albumentations

    return albumentations.Compose(
        [
            albumentations.ColorJitter(
                (0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), p=0.8
            ),
            albumentations.ToGray(p=0.1),
            albumentations.GaussianBlur(blur_limit=0, sigma_limit=(0.1, 2.0), p=0.2),
        ]
    )


def albumentations(image: Array, rng: np.random.Generator) -> Array:
    """Do much the same by albumentations, which has generators of its own: they are seeded by `rng`."""
    compose = _of_albumentations()
    compose.set_random_seed(int(rng.integers(1 << 32)))
    made: Array = compose(image=image)["image"]
    return made
