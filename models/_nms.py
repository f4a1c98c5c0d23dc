"""Non-maximum suppression of many groups of boxes at once. Knows no detector."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torchvision.ops import nms

from saturate.system.triton_kernels import kernels


def survivors(
    boxes: torch.Tensor, alive: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Return which of the boxes [G, N, 4], x0 y0 x1 y1 and best first, torchvision's nms would leave in each
    group, bool [G, N].

    A box goes when its IoU with a better one that is left is above `threshold`. What is not `alive`, bool [G,
    N], neither stays nor suppresses. On a CUDA device one kernel does it, for which the host does not wait.
    """
    kernel = _kernel(boxes.device) if boxes.device.type == "cuda" else None
    if kernel is not None:
        return kernel.survivors(boxes, alive, threshold)
    surviving = torch.zeros_like(alive)
    # the boxes are in order; torchvision's nms sorts by scores, and these keep it
    falling = -torch.arange(boxes.shape[1], device=boxes.device, dtype=boxes.dtype)
    for group in alive.any(1).nonzero()[:, 0].tolist():
        places = alive[group].nonzero()[:, 0]
        surviving[
            group, places[nms(boxes[group, places], falling[: len(places)], threshold)]
        ] = True
    return surviving


def has_kernels(device: torch.device) -> bool:
    """Whether Triton builds kernels for the device; where it cannot for a GPU, that is warned of."""
    return device.type == "cuda" and _kernel(device) is not None


@cache
def _kernel(device: torch.device) -> ModuleType | None:
    """Return models._nms_kernel; None, with a warning, where Triton cannot build it."""

    def build(kernel: ModuleType) -> None:
        boxes = torch.zeros(1, 1, 4, device=device)
        kernel.survivors(boxes, boxes[..., 0] == 0, 0.5)

    return kernels(
        "saturate.models._nms_kernel",
        build,
        "boxes are suppressed group by group, slowly",
    )
