"""How the plan draws a training or validation image."""

from __future__ import annotations

from typing import Literal

from pydantic import FiniteFloat

from cli import Settings
from settings.types import Share, Side


class Augmentation(Settings):
    """Augmentations that the plan draws for each sample, with the same numbers for every loader."""

    image_size: Side | None = None
    """Height and width of the training and validation images, in pixels. For detectors it is the shorter
    side, for SSD both sides. Default: what the architecture was made for, mostly 224, or 800 for
    detectors."""
    train_window: Literal["random-resized", "center", "stretch"] = "random-resized"
    """Training window: torchvision's RandomResizedCrop, the validation's centre crop, or the whole image
    stretched."""
    crop_scale: tuple[FiniteFloat, FiniteFloat] = (0.08, 1.0)
    """RandomResizedCrop: smallest and largest area, as a share of the image's."""
    crop_ratio: tuple[FiniteFloat, FiniteFloat] = (3 / 4, 4 / 3)
    """RandomResizedCrop: smallest and largest width / height."""
    flip: Share = 0.5
    """Probability of a left-right flip in training."""
    val_window: Literal["center", "stretch"] = "center"
    """Validation window: Resize(shorter side) + CenterCrop, or the whole image stretched."""
    val_resize: Side | None = None
    """Validation: length of the shorter side before the crop, pixels. Default: image size * 256 / 224, or
    what torchvision's --weights of that name were measured with; for --val-crops 3 the image size."""
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat] | None = None
    """Mean that is subtracted from RGB in [0, 1]. Default: what the architecture's published weights take:
    ImageNet's mean, Kinetics', or SSD's own."""
    std: tuple[FiniteFloat, FiniteFloat, FiniteFloat] | None = None
    """Standard deviation that RGB is divided by after the mean is subtracted. Default: as for --mean."""
