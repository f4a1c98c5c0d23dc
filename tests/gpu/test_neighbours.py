"""A GPU that another process uses is told, by the readings of a real driver."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from saturate.report.hardware import nvml_handle
from saturate.system.neighbours import gpu_shared

pytestmark = pytest.mark.alone

BUSY = """
import torch
a = torch.ones(8192, 8192, device="cuda", dtype=torch.half)
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


def test_a_neighbour_is_told_and_ones_own_work_is_not() -> None:
    gpu = nvml_handle(torch.device("cuda", 0))
    matrix = torch.ones(8192, 8192, device="cuda", dtype=torch.half)
    for _ in range(1000):
        matrix @ matrix
    torch.cuda.synchronize()
    assert gpu_shared(gpu, os.getpid()) is None
    words, pipe = [sys.executable, "-c", BUSY], subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe) as other:
        assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        own, its = (gpu_shared(gpu, pid) for pid in (os.getpid(), other.pid))
        other.kill()
    assert own is not None and own["busy"] > 0.8
    # a child is this process's own; to its own run this process is the neighbour, unless the driver has other numbers
    assert own["who"] == [] and its is not None
    assert its["who"] in ([], [os.getpid()])
