"""Kernels of Triton on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def interpreted(program: str) -> list[list[float]]:
    """The numbers of each line that `program` prints, in Triton's interpreter, which has to be chosen before
    Triton is imported.

    tests/gpu has the kernels compiled. Skips where there is no Triton.
    """
    pytest.importorskip("triton", reason="Triton comes with builds of torch for GPUs")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [[float(number) for number in line.split()] for line in done.stdout.splitlines()]
