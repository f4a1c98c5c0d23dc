"""The doctor's rows that try a GPU, on one."""

from __future__ import annotations

import pytest
import torch

from scripts.probes import decoders, training


def test_nccl_sums_over_all_gpus(device: torch.device) -> None:
    """On one it starts, and no more is seen."""
    gpus = torch.cuda.device_count()
    assert training.summed(gpus) == [gpus * (gpus + 1) / 2] * gpus
    assert training.nccl().state == "ok"


def test_nvdec_decodes_a_video_made_in_memory(device: torch.device) -> None:
    for module in ("av", "PyNvVideoCodec"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    found = decoders.luma()
    assert isinstance(found, float) and abs(found - decoders.LUMA) < decoders.TOLERANCE, found
    row = decoders.nvdec()
    assert row.state == "ok" and "was decoded" in row.found, row
