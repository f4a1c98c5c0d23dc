"""The training transform, with colour jitter, by each library of augmentations. Uses nothing of ours.

From a file to fp32 [3, size, size]: a random window of 8 to 100 % of the image, resized bilinearly; a flip of
every second one; brightness, contrast and saturation scaled by up to 1 +- 0.4; normalised. All decode with
OpenCV, so that rates differ by the library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.baselines.pytorch import MEAN, STD, Array, Load

SCALES = (0.6, 1.4)
"""Range of each factor: of brightness, contrast and saturation."""


def _decoded(file: str) -> Array:
    import cv2

    cv2.setNumThreads(0)  # else a worker takes more than its core
    return cv2.cvtColor(cv2.imread(file), cv2.COLOR_BGR2RGB)


def torchvision_v2(size: int) -> Load:
    """Return torchvision's transform of tensors of uint8."""
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(size),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(SCALES, SCALES, SCALES),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    transform = v2.Compose(steps)
    return lambda file: transform(torch.from_numpy(_decoded(file)).permute(2, 0, 1))


def albumentations(size: int) -> Load:
    """Return the transform of albumentations, or of albumentationsx, which has the same names."""
    import albumentations as a

    steps = [
        a.RandomResizedCrop((size, size)),
        a.HorizontalFlip(),
        a.ColorJitter(SCALES, SCALES, SCALES, (0, 0), p=1),
        a.Normalize(MEAN, STD),
    ]
    transform = a.Compose(steps)
    return lambda file: _channels_first(transform(image=_decoded(file))["image"])


def kornia(size: int) -> Load:
    """Return the transform of kornia, which takes batches of floats. `slice` cuts before it resizes."""
    from kornia import augmentation as k

    transform = k.AugmentationSequential(
        k.RandomResizedCrop((size, size), (0.08, 1.0), cropping_mode="slice"),
        k.RandomHorizontalFlip(),
        k.ColorJitter(SCALES, SCALES, SCALES, p=1.0),
        k.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
    )

    def load(file: str) -> torch.Tensor:
        batch = _channels_first(_decoded(file))[None].float() / 255
        return transform(batch)[0]

    return load


def _channels_first(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


LIBRARIES: dict[str, Callable[[int], Load]] = {
    "torchvision-v2": torchvision_v2,
    "albumentations": albumentations,
    "kornia": kornia,
}
"""Library -> what makes its transform of a file."""
