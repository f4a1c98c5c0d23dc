"""Networks that enlarge images: shapes, published sizes, and the interpolation and luma that they share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from saturate.models.superres import build, classes, enlarged, luma, names, native


@pytest.mark.parametrize("arch", names())
@pytest.mark.parametrize("scale", [2, 3, 4])
def test_outputs_are_larger_by_the_scale(arch: str, scale: int) -> None:
    module, loaded = build(arch, scale=scale, shape=(2, 3, 8, 8))
    small = torch.rand(1, 3, 7, 9)
    large = module(small)
    channels = 3 if arch.startswith("edsr") else 1
    assert (
        large.shape == (1, channels, 7 * scale, 9 * scale)
        and large.dtype == torch.float32
    )
    assert (
        not loaded.anew
        and native(arch).mean == (0, 0, 0)
        and native(arch).std == (1, 1, 1)
    )
    assert classes(arch, "x") == ()


def test_the_interpolation_is_pillows() -> None:
    """Values in the middle: Pillow clips between its two passes, which is no part of the kernel."""
    levels = np.random.default_rng(0).integers(96, 160, (9, 11, 3), np.uint8)
    images = torch.from_numpy(levels).permute(2, 0, 1)[None] / 255
    expected = np.asarray(
        Image.fromarray(levels).resize((33, 27), Image.Resampling.BICUBIC)
    )
    found = (255 * enlarged(images, 3))[0].permute(1, 2, 0).numpy()
    assert (
        np.abs(found - expected).max() < 1.2
    )  # rounded twice there, with weights of up to 1.25 between


def test_luma_is_matlabs() -> None:
    """Black is 16, white 235; the primaries are those of rgb2ycbcr's matrix."""
    colours = torch.tensor([[0.0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    levels = 255 * luma(colours.double()[:, :, None, None]).flatten()
    assert levels.tolist() == pytest.approx(
        [16, 235, 81.481, 144.553, 40.966], abs=1e-9
    )
