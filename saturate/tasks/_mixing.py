"""mixup and cutmix on tensors, by the numbers of plan/mixing.py, which travel as targets."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from saturate.loaders._postprocess import outside

Targets = Mapping[str, torch.Tensor]


def mixed(images: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Return images [B, 3, ..., H, W], channels last, as the network is given them."""
    if "partners" not in targets:
        return images
    others = images.movedim(1, -1).index_select(0, targets["partners"]).movedim(-1, 1)
    own = targets["blends"].view(-1, *[1] * (images.ndim - 1)) * outside(
        targets["cuts"], images
    )
    return torch.lerp(others, images, own.to(images.dtype))


def blended(own: torch.Tensor, others: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Return what is linear in a row's label, [B, ...], of its own label and of its partner's."""
    return torch.lerp(others, own, targets["shares"].view(-1, *[1] * (own.ndim - 1)))
