"""R-CNN's training on a GPU: torchvision's losses, and no wait of the host."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from saturate.models import _nms, _ssd
from saturate.models._nms import has_kernels
from saturate.models.detection import Detector
from tests.unit.test_nms import groups
from tests.unit.test_rcnn import HEIGHT, SIZES, WIDTH, small, targets_from
from tests.unit.test_ssd import defaults, padded_from


@contextmanager
def no_waits() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def batch_on(
    device: torch.device, kind: str
) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    targets = targets_from(
        3, [(3, "anywhere"), (0, "anywhere"), (14, "anywhere")], kind
    )
    images = torch.randn(
        3, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(3)
    )
    return images.to(device), [
        {name: one.to(device) for name, one in target.items()} for target in targets
    ]


@pytest.mark.parametrize("count", [1, 37, 819, 2000])
@pytest.mark.parametrize("threshold", [0.1, 0.7])
def test_the_compiled_kernel_keeps_what_torchvision_keeps(
    count: int, threshold: float, device: torch.device
) -> None:
    """Nearly: fused multiplications may decide otherwise where an overlap is the threshold."""
    assert _nms._kernel(device) is not None
    boxes, alive = groups(count, count, 6)
    boxes = boxes * torch.tensor([1.0, 2, 8, 1, 4, 30])[:, None, None]
    there = boxes.to(device), alive.to(device)
    with no_waits():
        kept = _nms.survivors(*there, threshold)
    wanted = _nms.survivors(boxes, alive, threshold)
    assert wanted.any() and (kept.cpu() != wanted).float().mean() < 1e-3


def test_the_compiled_kernel_matches_what_torch_does(device: torch.device) -> None:
    """SSD's boxes, bit for bit, where overlaps are equal too."""
    for seed in range(8):
        boxes, labels = padded_from(seed)[1].values()
        given = defaults(), boxes, labels > 0
        among, boxes, there = (one.to(device) for one in given)
        assert has_kernels(device)
        with no_waits():
            found = _ssd.match(among, boxes, there, 0.5)
        assert torch.equal(found.cpu(), _ssd.match(*given, 0.5))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_waits_for_nothing(precision: str, device: torch.device) -> None:
    stock = small().to(device)
    detector, (images, targets) = Detector(stock), batch_on(device, "boxes")
    for waiting in (
        True,
        False,
    ):  # the first one makes the anchors, and builds the kernel
        with torch.autocast("cuda", torch.float16, enabled=precision == "fp16"):
            if waiting:
                out: Any = detector(images, SIZES, targets)
            else:
                with no_waits():
                    out = detector(images, SIZES, targets)
        total = torch.stack([loss.float() for loss in out.values()]).sum()
        if waiting:
            total.backward()
        else:
            with no_waits():
                total.backward()
    assert torch.isfinite(total)
