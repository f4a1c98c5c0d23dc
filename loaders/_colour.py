"""The distortion of plan/colour.py on tensors, many images at once. Must not know who decoded them, nor draw a number."""

from __future__ import annotations

from functools import cache

import torch

from plan.colour import PERMUTATIONS


def distort(pixels: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """float32 [B, ..., 3], RGB in 0..1, distorted by the numbers, float32 [B, 6], of each image; on the device of both.

    What plan.colour.distort says, in the same order; without a branch or a wait for the device.
    """
    # axes: [6, B, ..., 1]
    of_image = numbers.T.reshape(numbers.shape[1], len(pixels), *[1] * (pixels.ndim - 1))
    brightness, contrast, first, saturation, hue, permutation = of_image
    out = (pixels + brightness).mul_(torch.where(first > 0, contrast, 1.0))
    out = _saturated_and_turned(out, saturation, hue).mul_(torch.where(first > 0, 1.0, contrast))
    order = _constants(pixels.device)[0][permutation.long().flatten()].reshape(len(pixels), *[1] * (pixels.ndim - 2), 3)
    return out.gather(-1, order.expand_as(out)).clamp_(0, 1)


def _saturated_and_turned(pixels: torch.Tensor, saturation: torch.Tensor, hue: torch.Tensor) -> torch.Tensor:
    """HSV and back in one: V stays, the chroma is scaled, the hue is turned."""
    value = pixels.amax(-1, keepdim=True)
    chroma = value - pixels.amin(-1, keepdim=True)
    red, green, blue = pixels.split(1, -1)
    some = torch.where(chroma > 0, chroma, 1.0)
    # the hue in sixths of a turn: 0 red, 2 green, 4 blue
    of_red, of_green, of_blue = (green - blue) / some, (blue - red) / some + 2, (red - green) / some + 4
    sixths = torch.where(value == red, of_red, torch.where(value == green, of_green, of_blue))
    place = torch.remainder(_constants(pixels.device)[1] + (sixths + 6 * hue), 6)
    return value - saturation * chroma * torch.minimum(place, 4 - place).clamp_(0, 1)


@cache
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The permutations, and where each channel's hue begins. Made once: such a copy makes the host wait for the device."""
    return torch.tensor(PERMUTATIONS, device=device), torch.tensor([5.0, 3.0, 1.0], device=device)
