"""SSD's detections on a GPU: a CPU's, and quickly."""

from __future__ import annotations

import pytest
import torch

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
