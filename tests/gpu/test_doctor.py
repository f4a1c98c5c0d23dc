"""The doctor's rows that try a GPU, on one."""

from __future__ import annotations

import pytest
import torch

from saturate.run import _probes


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("NCCL", "torch"),
        ("NVDEC", "PyNvVideoCodec"),
        ("DALI decodes, GPU", "nvidia.dali"),
    ],
)
def test_what_a_gpu_is_tried_with(name: str, module: str, device: torch.device) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed")
    row = _probes.PROBES[name].ask()
    assert row.state == "ok", row
