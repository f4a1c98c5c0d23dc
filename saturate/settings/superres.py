"""Settings of networks that enlarge images alone."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from saturate.settings.cli import Settings
from saturate.settings.types import Facts, Side, setting


class Superres(Settings):
    """Networks that enlarge images: their patches and their figures (--task superres)."""

    facts: ClassVar[Facts] = Facts(tasks=("superres",))

    scale: Annotated[int, Field(ge=2, le=8)] = setting(2, resume="scanned")
    """How many times as high and wide the network makes an image."""
    patch_size: Side | None = setting(None, resume="scanned", evaluation="free")
    """Training: side of the large patches in pixels, a multiple of --scale. Images that are smaller are left
    out, by name. Default: what the architecture's paper trains on."""
    patches_per_image: PositiveInt = setting(1, resume="scanned", evaluation="free")
    """Training: patches that an epoch has of each image. Where an image can only be decoded whole, as a PNG,
    it is decoded once for them; they lie in different batches of a block of 128 images."""
    turns: bool = setting(True, evaluation="free")
    """Training: each patch as it is, or mirrored, flipped, transposed or any of these together, at random."""
    pixel_loss: Literal["auto", "mse", "l1"] = setting("auto", evaluation="free")
    """Loss of a pixel: its squared or absolute difference; auto = that of the architecture's paper, l1 of any
    other."""
    psnr: Literal["y", "rgb"] = setting("y", changes_rate=False)
    """What PSNR and SSIM are of: the luma Y as MATLAB's rgb2ycbcr gives it, or red, green and blue."""
    shave: Annotated[int, Field(ge=0, le=1024)] | None = setting(
        None, changes_rate=False
    )
    """Pixels along each edge that PSNR and SSIM leave out. Default: --scale."""
