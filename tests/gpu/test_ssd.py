"""SSD's detections on a GPU: a CPU's, and quickly."""

from __future__ import annotations

import time

import pytest
import torch
from torchvision.models.detection import ssd300_vgg16
from torchvision.models.detection.image_list import ImageList

from models import _ssd
from tests.unit.test_ssd import SIDE, defaults, outputs_from, small


@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_detections_are_those_of_a_cpu(sharpness: float, device: torch.device) -> None:
    stock = small().eval()
    stock.score_thresh, stock.topk_candidates, stock.detections_per_img = 0.01, 100, 50
    sizes = [(SIDE, SIDE), (20, SIDE), (SIDE, 33)]
    with torch.inference_mode():
        outputs = outputs_from(1, len(sizes), len(defaults()), sharpness)
        wanted = _ssd.detections(stock, outputs, defaults(), sizes)
        found = _ssd.detections(
            stock,
            {name: one.to(device) for name, one in outputs.items()},
            defaults().to(device),
            sizes,
        )
    assert all(len(one["boxes"]) == 50 for one in wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one["scores"].cpu(), other["scores"])
        torch.testing.assert_close(
            one["boxes"].cpu(), other["boxes"], rtol=1e-4, atol=1e-3
        )
        assert torch.equal(one["labels"].cpu(), other["labels"])


def test_a_network_that_knows_nothing_yet_is_validated_quickly(
    device: torch.device,
) -> None:
    """All 90 classes have 400 candidates in each of 128 images."""
    stock = ssd300_vgg16(weights=None, weights_backbone=None).eval()
    images = torch.zeros(1, 3, 300, 300)
    with torch.inference_mode():
        among = stock.anchor_generator(
            ImageList(images, [(300, 300)]), list(stock.backbone(images).values())
        )[0].to(device)
        generator = torch.Generator(device).manual_seed(0)
        outputs = {
            "bbox_regression": torch.randn(
                128, len(among), 4, generator=generator, device=device
            ),
            "cls_logits": 0.1
            * torch.randn(128, len(among), 91, generator=generator, device=device),
        }
        for _ in range(2):  # the first one builds the kernel
            torch.cuda.synchronize()
            began = time.perf_counter()
            found = _ssd.detections(stock, outputs, among, [(300, 300)] * 128)
            torch.cuda.synchronize()
            took = time.perf_counter() - began
    assert all(len(one["boxes"]) == 200 for one in found)
    print(f"128 images: {took * 1e3:.0f} ms")
    assert took < 1.0
