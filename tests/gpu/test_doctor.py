"""The doctor's rows that try a GPU, on one."""

from __future__ import annotations

import pytest
import torch

from scripts import _probes


def test_nccl_sums_over_all_gpus(device: torch.device) -> None:
    """On one it starts, and no more is seen."""
    gpus = torch.cuda.device_count()
    assert _probes.summed(gpus) == [gpus * (gpus + 1) / 2] * gpus
    assert _probes.nccl().state == "ok"


def test_nvdec_decodes_a_video_made_in_memory(device: torch.device) -> None:
    for module in ("av", "PyNvVideoCodec"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    row = _probes.nvdec()
    assert row.state == "ok" and "made a video of brightness" in row.found, row


def test_dali_decodes_a_jpeg_made_in_memory(device: torch.device) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    row = _probes.dali_gpu()
    assert row.state == "ok" and "decoded and resized" in row.found, row
