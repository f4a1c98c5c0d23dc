"""Networks that enlarge images, by name: SRCNN, ESPCN and EDSR's baseline. Imports nothing of ours.

All of them take RGB in [0, 1], [B, 3, h, w], and give [B, C, scale * h, scale * w] in the same range. C is 1
where a network knows the luma alone, as its paper does, else 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as functional
from torch import nn

from saturate.models import Loaded, Native
from saturate.models._weights import dry_run, load, suiting

LUMA = (65.481 / 255, 128.553 / 255, 24.966 / 255)
"""Weights of red, green and blue in the Y of MATLAB's rgb2ycbcr (ITU-R BT.601), for values in [0, 1]."""
BLACK = 16 / 255
"""The Y of black; that of white is 235 / 255."""
DIV2K_MEAN = (0.4488, 0.4371, 0.4040)
"""Mean RGB of DIV2K's training images, as EDSR's published code has it."""


def luma(images: torch.Tensor) -> torch.Tensor:
    """Return the Y of RGB in [0, 1]: [B, 3, H, W] -> float32 [B, 1, H, W], or float64 of float64."""
    images = images if images.dtype == torch.float64 else images.float()
    red, green, blue = images.split(1, dim=1)
    return BLACK + LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def enlarged(images: torch.Tensor, scale: int) -> torch.Tensor:
    """Return images [B, C, H, W], `scale` times as high and wide, by bicubic interpolation.

    In float32, or float64 of float64. The kernel has a = -0.5, as MATLAB's and PIL's: torch's own has -0.75
    unless it antialiases, which changes nothing else where images grow.
    """
    images = images if images.dtype == torch.float64 else images.float()
    size = (images.shape[2] * scale, images.shape[3] * scale)
    return functional.interpolate(images, size, mode="bicubic", antialias=True)


class _OfLuma(nn.Module):
    """A network of the luma, without padding of its own: the edges of its input are repeated outwards once.

    Then the output is as large as the input, and what is repeated is pixels and not the zeros that each layer
    would add. The input has no gradient, so that no step depends on an order of sums. `margin` is how far they
    are repeated, pixels; before it bicubic interpolation makes the luma `enlarge` times as high and wide.
    """

    def __init__(self, body: nn.Sequential, *, margin: int, enlarge: int = 1) -> None:
        super().__init__()
        self.body = body
        self._margin = margin
        self._enlarge = enlarge

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        y = luma(images)
        if self._enlarge > 1:
            y = enlarged(y, self._enlarge)
        y = functional.pad(y, [self._margin] * 4, mode="replicate")
        weight: torch.Tensor = next(self.body.parameters())
        output: torch.Tensor = self.body(y.to(weight.dtype))
        return output


def _srcnn(scale: int, *, middle: int = 1) -> nn.Module:
    """Return Dong et al. 2014, "Image Super-Resolution Using Deep Convolutional Networks", arXiv 1501.00092.

    Three convolutions on the image that bicubic interpolation has enlarged; kernels f1-f2-f3 of 9-1-5 in the
    paper's basic setting, 9-5-5 in its best.
    """
    body = nn.Sequential(
        nn.Conv2d(1, 64, 9),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 32, middle),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 1, 5),
    )
    return _OfLuma(body, margin=(9 + middle + 5 - 3) // 2, enlarge=scale)


def _espcn(scale: int) -> nn.Module:
    """Return Shi et al. 2016, "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel
    Convolutional Neural Network", arXiv 1609.05158: 5-3-3 on the small image, enlarged by its last layer.
    """
    body = nn.Sequential(
        nn.Conv2d(1, 64, 5),
        nn.Tanh(),
        nn.Conv2d(64, 32, 3),
        nn.Tanh(),
        nn.Conv2d(32, scale**2, 3),
        nn.PixelShuffle(scale),
    )
    return _OfLuma(body, margin=4)


class _Block(nn.Module):
    """EDSR's residual block: no batch norm, and nothing behind the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(functional.relu(self.first(x), inplace=True))


class Edsr(nn.Module):
    """Lim et al. 2017, "Enhanced Deep Residual Networks for Single Image Super-Resolution", arXiv 1707.02921.

    The baseline has 16 blocks of 64 channels. Layers see RGB in 0..255 less DIV2K's mean, as the published
    code does, on which the scale of its first weights rests.
    """

    def __init__(self, scale: int, *, width: int = 64, blocks: int = 16) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        body: list[nn.Module] = [_Block(width) for _ in range(blocks)]
        self.body = nn.Sequential(*body, nn.Conv2d(width, width, 3, padding=1))
        self.tail = nn.Sequential(
            *_upsampling(scale, width), nn.Conv2d(width, 3, 3, padding=1)
        )
        mean = torch.tensor(DIV2K_MEAN).view(1, 3, 1, 1)
        self.register_buffer("mean", mean, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.get_buffer("mean")
        x = self.head((255 * (images - mean)).to(self.head.weight.dtype))
        output: torch.Tensor = self.tail(x + self.body(x))
        return output.float() / 255 + mean.float()


def _upsampling(scale: int, width: int) -> list[nn.Module]:
    """Return convolutions with pixel shuffles that enlarge by `scale`: powers of two in steps of two."""
    steps = [2] * (scale.bit_length() - 1) if scale.bit_count() == 1 else [scale]
    layers: list[nn.Module] = []
    for step in steps:
        layers += [
            nn.Conv2d(width, width * step**2, 3, padding=1),
            nn.PixelShuffle(step),
        ]
    return layers


class Architecture(NamedTuple):
    """A network and how its paper trains it."""

    build: Callable[[int], nn.Module]  # for a scale
    patch: int  # side of the small patches, pixels
    loss: Literal["mse", "l1"]
    of_luma: bool = True  # it gives the luma alone


ARCHITECTURES = {
    # 11 pixels: the paper's are 33 at a scale of 3
    "srcnn": Architecture(_srcnn, 11, "mse"),
    "srcnn_955": Architecture(partial(_srcnn, middle=5), 11, "mse"),
    "espcn": Architecture(_espcn, 17, "mse"),
    "edsr_baseline": Architecture(Edsr, 48, "l1", of_luma=False),
}
"""--arch -> what it is."""


def names() -> list[str]:
    """List every architecture."""
    return list(ARCHITECTURES)


def native(arch: str, weights: str | None = None) -> Native:
    """Return the side of the small patches that the paper trains on. Images come as RGB in [0, 1]."""
    return Native(ARCHITECTURES[arch].patch, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def build(
    arch: str, *, scale: int, shape: tuple[int, ...], weights: str | None = None
) -> tuple[nn.Module, Loaded]:
    """Return the module for batches of small images `shape` [B, 3, h, w], and what it began with.

    `weights` is a file. Raises Unusable.
    """
    got = f"--scale {scale} with small images of {shape[-1]} px"
    with suiting(arch, got, f"small images of {native(arch).size} px"):
        module = ARCHITECTURES[arch].build(scale)
        dry_run(module, shape)
    return module, load(module, arch, weights) if weights else Loaded()


def classes(arch: str, weights: str) -> tuple[str, ...]:
    """Return (): outputs are pixels."""
    return ()
