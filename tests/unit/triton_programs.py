"""Kernels of Triton on a machine without a GPU."""

from __future__ import annotations

import pytest

from tests.end_to_end.runs import Runner

ANEW = """
import sys
for name in [name for name in sys.modules if name.startswith("triton") and not name.startswith("triton._C")]:
    del sys.modules[name]
"""
"""Triton asks while it is imported whether kernels are interpreted; its own library is loaded only once."""


def interpreted(program: str, runner: Runner) -> list[list[float]]:
    """Return the numbers of each line that `program` prints, with Triton's interpreter.

    tests/gpu has the kernels compiled. Skips where there is no Triton.
    """
    pytest.importorskip("triton", reason="Triton comes with builds of torch for GPUs")
    done = runner.python("-c", ANEW + program, env={"TRITON_INTERPRET": "1"}).done()
    return [
        [float(number) for number in line.split()] for line in done.out.splitlines()
    ]
