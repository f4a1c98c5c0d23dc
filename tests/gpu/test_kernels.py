"""What a step is made of, of steps that are known to be launches, or arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from saturate.report import kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = torch.device("cuda")


def parts_of(
    step: Callable[[], object], forward: Callable[[], object]
) -> tuple[float, dict[str, float]]:
    """Return the seconds of a step, and its parts."""
    step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    arithmetic = kernels.arithmetic(forward, dtype="float16", device=DEVICE)
    return took, kernels.kernel_ms(step, DEVICE, took) | arithmetic


def test_convolutions_are_told_from_products() -> None:
    images = torch.randn(8, 16, 64, 64, device=DEVICE, dtype=torch.float16)
    network = torch.nn.Conv2d(16, 16, 3, device=DEVICE, dtype=torch.float16)
    _, parts = parts_of(lambda: network(images), lambda: network(images))
    assert parts["convolutions"] == 1


@pytest.mark.alone
def test_a_step_of_products_is_kernels_and_arithmetic() -> None:
    left = torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16)

    def forward() -> None:
        torch.mm(left, left)

    def step() -> None:
        for _ in range(3):
            forward()

    took, parts = parts_of(step, forward)
    assert parts["kernel_ms"] == pytest.approx(1e3 * took, rel=0.15)
    assert parts["arithmetic_ms"] == pytest.approx(parts["kernel_ms"], rel=0.3)
