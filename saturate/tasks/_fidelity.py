"""How near an image is to another: squared error, PSNR and SSIM of whole levels; must not know a network.

On their device and without waiting for it, but for `psnr`, which is of numbers of the host.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as functional

from saturate.contracts import Array
from saturate.models.superres import luma

WHITE = 255
SSIM_SIDE = 11
"""Side of SSIM's window, pixels: a Gaussian of 1.5 pixels (Wang et al. 2004, as their ssim_index.m)."""
SSIM_SIGMA = 1.5
SSIM_CONSTANTS = ((0.01 * WHITE) ** 2, (0.03 * WHITE) ** 2)
EQUAL = 100.0
"""PSNR of an image and itself, dB; the definition has no number for it."""


def whole(levels: torch.Tensor) -> torch.Tensor:
    """Return float64, levels rounded to whole ones in 0..255."""
    return levels.double().round().clamp(0, WHITE)


def luma_levels(rgb: torch.Tensor) -> torch.Tensor:
    """Return float64 [B, 1, H, W], whole levels of the Y that MATLAB's rgb2ycbcr gives of those of RGB."""
    return whole(luma(rgb / WHITE) * WHITE)


def squared_error(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return int64 [], the sum of squared differences of whole levels."""
    return (one - other).square().sum().long()


def psnr(error: Array, count: Array) -> Array:
    """Return float64 [n], dB, of sums of squared errors over so many numbers each."""
    with np.errstate(divide="ignore"):
        decibels = 10 * np.log10(WHITE**2 * count / error)
    return np.where(error == 0, EQUAL, decibels)


def ssim(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return float64 [], the mean structural similarity of levels [1, C, H, W], over windows inside them.

    Of several channels it is the mean over these.
    """
    offsets = (
        torch.arange(SSIM_SIDE, dtype=torch.float64, device=one.device) - SSIM_SIDE // 2
    )
    weights = torch.exp(-offsets.square() / (2 * SSIM_SIGMA**2))
    weights = weights / weights.sum()

    def mean(values: torch.Tensor) -> torch.Tensor:
        # axes: a channel is an image of its own, [C, 1, H, W]
        across = functional.conv2d(values.movedim(1, 0), weights.view(1, 1, 1, -1))
        return functional.conv2d(across, weights.view(1, 1, -1, 1))

    mean_one, mean_other = mean(one), mean(other)
    variance_one = mean(one * one) - mean_one.square()
    variance_other = mean(other * other) - mean_other.square()
    covariance = mean(one * other) - mean_one * mean_other
    first, second = SSIM_CONSTANTS
    similarity = (
        (2 * mean_one * mean_other + first)
        * (2 * covariance + second)
        / (
            (mean_one.square() + mean_other.square() + first)
            * (variance_one + variance_other + second)
        )
    )
    return similarity.mean()
