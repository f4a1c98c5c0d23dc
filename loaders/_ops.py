"""The operations of plan/ops.py on tensors, many rows at once.

None has a branch of the host on a number of the device, or waits for one. On a CUDA device kernels do most
of them (_ops_kernel.py); what is here is their reference. Must not know who decoded the pixels, nor draw a
number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as functional

from saturate.contracts import Array
from saturate.loaders._flips import ToDevice
from saturate.plan.ops import BLUR_SIDE, GREY, PERMUTATIONS, WIDTH, Op
from saturate.system.triton_kernels import kernels

Operation = Callable[..., torch.Tensor]
"""(levels float32 [B, H, W, 3], its numbers, each [B, 1, 1, 1]) -> levels of the same shape."""
Way = Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor], None]
"""(levels float32 [B, ..., H, W, 3], `Rows.ops`, slot, rows int64 [R]) -> nothing: levels change in place."""


def operated(levels: torch.Tensor, ops: Array, to_device: ToDevice) -> torch.Tensor:
    """Return float32 levels [B, ..., 3], grey levels in 0..255, after the operations of each row, `Rows.ops`.

    `levels`: uint8 or float32 [B, H, W, 3], of clips [B, T, H, W, 3]; it stays as it is. Rows without an
    operation keep their levels bit for bit: which rows meet which operation is known on the host, and only
    those are touched.
    """
    out = levels.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    ways = _ways(_kernel(levels.device) if levels.device.type == "cuda" else None)
    members = {
        (slot, operations): np.flatnonzero(np.isin(ops[:, slot, 0], operations))
        for slot in range(ops.shape[1])
        for operations in ways
    }
    members = {key: rows for key, rows in members.items() if len(rows)}
    if members:
        numbers, *places = to_device([ops, *members.values()])
        for (slot, operations), rows in zip(members, places, strict=True):
            ways[operations](out, numbers, slot, rows)
    return out


def _ways(kernel: ModuleType | None) -> dict[tuple[int, ...], Way]:
    """Return what does each operation: loaders._ops_kernel, where it is given, does many of them at once."""
    ways: dict[tuple[int, ...], Way] = dict(kernel.WAYS) if kernel else {}
    by_kernel = {operation for operations in ways for operation in operations}
    for operation in OPERATIONS:
        if operation not in by_kernel:
            ways[(operation,)] = partial(_by_torch, operation)
    return ways


def _by_torch(
    operation: Op,
    levels: torch.Tensor,
    numbers: torch.Tensor,
    slot: int,
    rows: torch.Tensor,
) -> None:
    """Do the operation in these rows, each frame of a clip as an image of its own."""
    part = levels.index_select(0, rows)
    # axes: [rows x frames, H, W, 3]
    images = part.view(-1, *levels.shape[-3:])
    given = numbers[:, slot, 1 : 1 + operation.takes].index_select(0, rows)
    given = given.repeat_interleave(len(images) // len(rows), dim=0)
    done = OPERATIONS[operation](images, *given.T.reshape(-1, len(images), 1, 1, 1))
    levels.index_copy_(0, rows, done.reshape(part.shape))


@cache
def _kernel(device: torch.device) -> ModuleType | None:
    """Return loaders._ops_kernel, its kernels built; None, with a warning, where Triton cannot build them."""

    def build(kernel: ModuleType) -> None:
        row = torch.zeros(1, dtype=torch.int64, device=device)
        for operations, way in kernel.WAYS.items():
            numbers = torch.zeros(1, 1, WIDTH, device=device)
            numbers[..., 0].fill_(operations[0])
            way(torch.zeros(1, 2, 2, 3, device=device), numbers, 0, row)

    return kernels(
        "saturate.loaders._ops_kernel", build, "operations on pixels take more steps"
    )


def _whole(levels: torch.Tensor) -> torch.Tensor:
    """Cut levels, in place, to whole ones in 0..255."""
    return levels.clamp_(0, 255).floor_()


def _blended(
    levels: torch.Tensor, other: torch.Tensor, factor: torch.Tensor
) -> torch.Tensor:
    """Return other + factor x (level - other), in whole levels."""
    return _whole(levels * factor + other * (1 - factor))


def _grey(levels: torch.Tensor) -> torch.Tensor:
    """Return whole levels [B, H, W, 1]."""
    red, green, blue = levels.split(1, -1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2]).floor_()


def _contrast(levels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return _blended(levels, _grey(levels).mean((1, 2, 3), keepdim=True), factor)


def _sharpness(levels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Leave the outermost pixels alone, as Pillow does."""
    if min(levels.shape[1:3]) <= 2:
        return levels
    inner = levels[:, 1:-1, 1:-1]
    planes = levels.movedim(-1, 1)
    around = functional.avg_pool2d(planes, 3, stride=1, divisor_override=1)
    soft = ((around.movedim(1, -1) + 4 * inner) / 13).round_()
    out = levels.clone()
    out[:, 1:-1, 1:-1] = _blended(inner, soft, factor)
    return out


def _hue(levels: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    turned = _saturated_and_turned(levels / 255, torch.ones_like(turn), turn)
    return _whole(turned * 255.999)  # as torchvision makes levels of shares


def _posterize(levels: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    step = torch.exp2(8 - bits)
    return (levels / step).floor_() * step


def _solarize(levels: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    return torch.where(levels >= threshold, 255 - levels, levels)


def _solarize_add(levels: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    return torch.where(levels < 128, _whole(levels + added), levels)


def _autocontrast(levels: torch.Tensor) -> torch.Tensor:
    low = levels.amin((1, 2), keepdim=True)
    span = levels.amax((1, 2), keepdim=True) - low
    # a channel of one level stays as it is
    some = span > 0
    scale = torch.where(some, span / 255, 1.0)
    return _whole((levels - torch.where(some, low, 0.0)) / scale)


def _equalize(levels: torch.Tensor) -> torch.Tensor:
    # axes: [B, 3, pixels]
    places = levels.round().long().movedim(-1, 1).flatten(2)
    counts = places.new_zeros(*places.shape[:2], 256)
    counts = counts.scatter_add_(2, places, torch.ones_like(places))
    # Pillow leaves the highest level out of the step
    of_highest = counts.gather(2, places.amax(2, keepdim=True))
    step = (places.shape[2] - of_highest) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    even = torch.where(step > 0, table.gather(2, places), places)
    return (
        even.view(*even.shape[:2], *levels.shape[1:3]).movedim(1, -1).to(levels.dtype)
    )


def _affine(
    levels: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    e: torch.Tensor,
    f: torch.Tensor,
    smooth: torch.Tensor,
    *fill: torch.Tensor,
) -> torch.Tensor:
    height, width = levels.shape[1:3]
    x_middle, y_middle = (width - 1) / 2, (height - 1) / 2
    x = (torch.arange(width, device=levels.device) - x_middle).view(1, 1, -1, 1)
    y = (torch.arange(height, device=levels.device) - y_middle).view(1, -1, 1, 1)
    # axes: [B, H, W, x and y], places of pixels
    places = torch.cat(
        [a * x + b * y + c + x_middle, d * x + e * y + f + y_middle], dim=-1
    )
    # the nearest pixel is what is between four at its very place
    places = torch.where(smooth > 0, places, places.round())
    # grid_sample counts from -1 to 1, at the outer edges
    across, down = (places * 2 + 1).split(1, -1)
    grid = torch.cat([across / width, down / height], dim=-1) - 1
    colour = torch.cat(fill, dim=-1)
    planes = (levels - colour).movedim(-1, 1)
    shown = functional.grid_sample(planes, grid, mode="bilinear", align_corners=False)
    return (shown.movedim(1, -1) + colour).round_()


def _blur(levels: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Multiply by a band matrix from the left and from the right: kernels differ from image to image."""
    down, across = (_smoothing(sigma.view(-1), side) for side in levels.shape[1:3])
    # axes: [B, 3, H, W]
    planes = levels.movedim(-1, 1)
    return (down[:, None] @ planes @ across[:, None].mT).movedim(1, -1).round_()


def _smoothing(sigma: torch.Tensor, side: int) -> torch.Tensor:
    """Return float32 [B, side, side]: the weight of each pixel (last) in each smoothed one; edges reflect."""
    reach = BLUR_SIDE // 2
    taps = torch.arange(-reach, reach + 1, device=sigma.device)
    weights = torch.softmax(-0.5 * (taps / sigma[:, None]).square(), dim=1)
    at = (torch.arange(side, device=sigma.device)[:, None] + taps).abs()
    reflected = (side - 1 - (side - 1 - at).abs()).abs().clamp_(0, side - 1)
    # axes: [B, side, taps]
    index = reflected.expand(len(sigma), -1, -1)
    zeros = weights.new_zeros(len(sigma), side, side)
    return zeros.scatter_add_(2, index, weights[:, None].expand_as(index))


def _erase(
    levels: torch.Tensor,
    x0: torch.Tensor,
    y0: torch.Tensor,
    x1: torch.Tensor,
    y1: torch.Tensor,
    *rest: torch.Tensor,
) -> torch.Tensor:
    x = torch.arange(levels.shape[2], device=levels.device).view(1, 1, -1, 1)
    y = torch.arange(levels.shape[1], device=levels.device).view(1, -1, 1, 1)
    inside = (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
    colour, deviation = torch.cat(rest[:3], dim=-1), torch.cat(rest[3:6], dim=-1)
    noise = colour + deviation * _normal(rest[6], rest[7], levels)
    return torch.where(inside, noise, levels)


def _normal(
    first: torch.Tensor, second: torch.Tensor, like: torch.Tensor
) -> torch.Tensor:
    """Return float32 [B, H, W, 3] as `like`, standard normal numbers by Box and Muller.

    They are a hash of two keys and of a pixel's place.
    """
    place = torch.arange(like[0].numel(), device=like.device, dtype=torch.int32)
    place = place.view(1, *like.shape[1:])
    word = _hash(_hash(place + first.to(torch.int32)) ^ second.to(torch.int32))
    radius = (_high(word, 24) + 1) * 2.0**-24  # in (0, 1]: its logarithm is finite
    turn = _high(_hash(word ^ 0x5BD1E995), 24) * 2.0**-24
    return radius.log_().mul_(-2).sqrt_().mul_(turn.mul_(2 * torch.pi).cos_())


def _hash(words: torch.Tensor) -> torch.Tensor:
    """Mix int32 words by Wellons' "lowbias32". Products wrap around: their low bits count."""
    words = (words ^ _high(words, 16)).mul_(0x7FEB352D)
    words = (words ^ _high(words, 17)).mul_(0x846CA68B - (1 << 32))
    return words ^ _high(words, 16)


def _high(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return so many high bits of int32 words as whole numbers; a shift of torch fills up with the sign."""
    return (words >> (32 - bits)).bitwise_and_((1 << bits) - 1)


def distort(
    pixels: torch.Tensor,
    brightness: torch.Tensor,
    contrast: torch.Tensor,
    first: torch.Tensor,
    saturation: torch.Tensor,
    hue: torch.Tensor,
    permutation: torch.Tensor,
) -> torch.Tensor:
    """Return RGB in 0..1 after SSD's distortion; plan/ops.py says what the numbers are, each [B, 1, 1, 1]."""
    out = (pixels + brightness).mul_(torch.where(first > 0, contrast, 1.0))
    out = _saturated_and_turned(out, saturation, hue)
    out = out.mul_(torch.where(first > 0, 1.0, contrast))
    order = _constants(pixels.device)[0][permutation.long().flatten()]
    order = order.view(len(pixels), 1, 1, 3).expand_as(out)
    return out.gather(-1, order).clamp_(0, 1)


def _saturated_and_turned(
    pixels: torch.Tensor, saturation: torch.Tensor, hue: torch.Tensor
) -> torch.Tensor:
    """Do HSV and back in one: V stays, the chroma is scaled, the hue is turned."""
    value = pixels.amax(-1, keepdim=True)
    chroma = value - pixels.amin(-1, keepdim=True)
    red, green, blue = pixels.split(1, -1)
    some = torch.where(chroma > 0, chroma, 1.0)
    # the hue in sixths of a turn: 0 red, 2 green, 4 blue
    of_red = (green - blue) / some
    of_green = (blue - red) / some + 2
    of_blue = (red - green) / some + 4
    of_others = torch.where(value == green, of_green, of_blue)
    sixths = torch.where(value == red, of_red, of_others)
    place = torch.remainder(_constants(pixels.device)[1] + (sixths + 6 * hue), 6)
    return value - saturation * chroma * torch.minimum(place, 4 - place).clamp_(0, 1)


@cache
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the permutations, and where each channel's hue begins.

    Made once: such a copy makes the host wait for the device.
    """
    begins = torch.tensor([5.0, 3.0, 1.0], device=device)
    return torch.tensor(PERMUTATIONS, device=device), begins


OPERATIONS: dict[Op, Operation] = {
    Op.DISTORT: lambda levels, *numbers: 255 * distort(levels / 255, *numbers),
    Op.BRIGHTNESS: lambda levels, factor: _whole(levels * factor),
    Op.SATURATION: lambda levels, factor: _blended(levels, _grey(levels), factor),
    Op.CONTRAST: _contrast,
    Op.SHARPNESS: _sharpness,
    Op.HUE: _hue,
    Op.GREYSCALE: lambda levels: _grey(levels).expand_as(levels),
    Op.POSTERIZE: _posterize,
    Op.SOLARIZE: _solarize,
    Op.SOLARIZE_ADD: _solarize_add,
    Op.AUTOCONTRAST: _autocontrast,
    Op.EQUALIZE: _equalize,
    Op.INVERT: lambda levels: 255 - levels,
    Op.AFFINE: _affine,
    Op.BLUR: _blur,
    Op.ERASE: _erase,
}
"""Operation -> what it does: a row for each Op."""
