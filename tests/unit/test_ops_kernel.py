"""The kernels of operations on pixels do what torch does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from saturate.loaders import _ops
from saturate.loaders._memory import to_device
from saturate.plan import ops
from saturate.plan.ops import Op
from tests.conformance.pictures import photograph
from tests.end_to_end.runs import Runner
from tests.unit.triton_programs import interpreted

HEIGHT, WIDTH = 23, 30
MAP = (0.9, -0.3, 4.2, 0.3, 0.9, -2.7)
TABLE: list[tuple[float, ...]] = [
    (Op.BRIGHTNESS, 1.3),
    (Op.SATURATION, 0.4),
    (Op.CONTRAST, 1.6),
    (Op.SHARPNESS, 1.7),
    (Op.HUE, 0.2),
    (Op.GREYSCALE,),
    (Op.POSTERIZE, 3),
    (Op.SOLARIZE, 90),
    (Op.SOLARIZE_ADD, 40),
    (Op.AUTOCONTRAST,),
    (Op.EQUALIZE,),
    (Op.INVERT,),
    (Op.AFFINE, *MAP, 1, 124, 116, 104),
    (Op.AFFINE, *MAP, 0, 124, 116, 104),
    (Op.BLUR, 1.4),
    (Op.ERASE, 3.5, -2, 40, 15, 9, 8, 7, 50, 40, 30, 2**24 - 1, 2),
    (0,),
]
ALONE = [
    Op.GREYSCALE,
    Op.INVERT,
    Op.GREYSCALE,
    Op.AUTOCONTRAST,
    Op.EQUALIZE,
    Op.GREYSCALE,
]
"""Operations that take no number."""


def slots() -> Any:
    """Return `Rows.ops` with two operations a row, in an order of their own each."""
    numbers = np.zeros((len(TABLE), 1, ops.WIDTH), np.float32)
    for row, given in enumerate(TABLE):
        numbers[row, 0, : len(given)] = given
    # what leaves the levels comes last
    first = [row for row, given in enumerate(TABLE) if given[0] != Op.ERASE]
    before = np.resize(np.roll(first, 5), len(TABLE))
    return np.concatenate([numbers[before], numbers], axis=1)


def narrow() -> Any:
    """Return `Rows.ops` as wide as operations without a number need: behind each lies another row."""
    return np.array(ALONE, np.float32).reshape(-1, 1, 1)


def apart(device: torch.device) -> list[tuple[float, float]]:
    """Return by how much the kernels' levels differ from torch's, a row each: at most, and how many do."""
    return [
        row for numbers in (slots(), narrow()) for row in rows_apart(device, numbers)
    ]


def rows_apart(device: torch.device, numbers: Any) -> list[tuple[float, float]]:
    from saturate.loaders import _ops_kernel

    frames = [photograph(seed, HEIGHT, WIDTH) for seed in range(2 * len(numbers))]
    levels = (
        torch.from_numpy(np.stack(frames))
        .view(len(numbers), 2, HEIGHT, WIDTH, 3)
        .to(device)
    )
    found = []
    to_there = partial(to_device, device=device)
    for kernel in (_ops_kernel, None):
        ways = _ops._ways(kernel)
        with patch.object(_ops, "_ways", lambda _, ways=ways: ways):
            found.append(_ops.operated(levels, numbers, to_there))
    rows = (found[0] - found[1]).abs().flatten(1)
    return [(float(row.max()), float((row > 0.01).float().mean())) for row in rows]


def check_they_are_alike(rows: Iterable[Sequence[float]]) -> None:
    operations = [operation for operation, *_ in TABLE] + ALONE
    for operation, (most, share) in zip(operations, rows, strict=True):
        # where products of matrices are taken in TF32, more pixels lie on the other side of a half
        assert share < (0.03 if operation == Op.BLUR else 0.005), operation
        assert most <= 1.01 or operation == Op.AFFINE, operation


INTERPRETED = """
import torch
from tests.unit.test_ops_kernel import apart

for most, share in apart(torch.device("cpu")):
    print(most, share)
"""


@pytest.mark.slow
def test_the_kernels_do_what_torch_does(runner: Runner) -> None:
    check_they_are_alike(interpreted(INTERPRETED, runner))
