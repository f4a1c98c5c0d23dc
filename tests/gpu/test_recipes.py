"""Recipes on the GPU: kernels give torch's pixels."""

from __future__ import annotations

import torch

from saturate.loaders import _ops
from tests.unit import test_ops_kernel


def test_the_kernels_do_what_torch_does(device: torch.device) -> None:
    """Each row its own operations, of clips; a GPU does them by kernels."""
    assert _ops._kernel(device) is not None
    test_ops_kernel.check_they_are_alike(test_ops_kernel.apart(device))
