"""Suppression of many groups of boxes: what torchvision keeps, with and without its kernel."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torchvision.ops import box_iou

from saturate.loaders import _ops
from saturate.loaders.videos import _surfaces
from saturate.models import _nms
from tests.end_to_end.runs import Runner
from tests.unit.triton_programs import interpreted


def groups(seed: int, count: int, number: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(number, count, 2, generator=generator) * 20
    boxes = torch.cat(
        [corners, corners + 4 + 16 * torch.rand(number, count, 2, generator=generator)],
        -1,
    )
    return boxes, torch.rand(number, count, generator=generator) > 0.2


def test_what_survives_is_what_no_survivor_overlaps() -> None:
    boxes, alive = groups(0, 60)
    kept = _nms.survivors(boxes, alive, 0.4)
    assert 0 < kept.sum() < alive.sum() and not (kept & ~alive).any()
    for own, left, there in zip(boxes, kept, alive, strict=True):
        over = (box_iou(own, own) > 0.4).tril(-1) & left
        assert torch.equal(left, there & ~over.any(1))


INTERPRETED = """
import torch
from saturate.models import _nms, _nms_kernel
from tests.unit.test_nms import groups
for seed, (count, threshold) in enumerate([(1, 0.5), (24, 0.1), (24, 0.5)]):
    boxes, alive = groups(seed, count, 2)
    kept = _nms_kernel.survivors(boxes, alive, threshold)
    assert torch.equal(kept, _nms.survivors(boxes, alive, threshold)), (seed, kept)
    print(int(kept.sum()), int(alive.sum()))
"""


@pytest.mark.slow
def test_the_kernel_keeps_what_torchvision_keeps(runner: Runner) -> None:
    kept = interpreted(INTERPRETED, runner)
    assert len(kept) == 3 and kept[1][0] < kept[2][0] < kept[2][1]


@pytest.mark.parametrize(
    ("module", "kernel"),
    [
        (_nms, "saturate.models._nms_kernel"),
        (_ops, "saturate.loaders._ops_kernel"),
        (_surfaces, "saturate.loaders.videos._surfaces_kernel"),
    ],
)
def test_where_no_kernel_is_built_that_is_said_once(module: Any, kernel: str) -> None:
    module._kernel.cache_clear()
    with (
        patch.dict("sys.modules", {kernel: None}),
        pytest.warns(UserWarning, match="Triton builds no kernel here"),
    ):
        assert module._kernel(torch.device("cpu")) is None
    assert module._kernel(torch.device("cpu")) is None
    module._kernel.cache_clear()
