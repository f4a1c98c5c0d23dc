"""The kernel that finishes a batch does what torch does, to the bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Feed, Pixels, Rows
from saturate.loaders._postprocess import Finish
from saturate.plan.geometry import TRANSPOSE
from saturate.system.triton_kernels import hash_ahead
from tests.end_to_end.runs import Runner
from tests.unit.triton_programs import interpreted

BATCH = 10
SHAPES = {"float16": (19, 19), "bfloat16": (9, 30), "float32": (2, 20, 20)}
"""dtype -> an image's or a clip's before the channels; some have more numbers than a program writes."""


def rows_of(shape: tuple[int, ...], *, exif: bool = False) -> Rows:
    """Return rows of all turns that images of this shape may have."""
    height, width = shape[-2:]
    turns = np.arange(BATCH, dtype=np.uint8) % (8 if height == width else TRANSPOSE)
    region = np.array([[0, 0, width, height]]).repeat(BATCH, axis=0)
    return Rows(
        ids=np.arange(BATCH),
        regions=region,
        windows=region.astype(np.float64),
        sizes=np.array([[height, width]]).repeat(BATCH, axis=0),
        turns=turns,
        valid=np.arange(BATCH) != 9,
        exif=np.array([[3, height, width]]).repeat(BATCH, axis=0) if exif else None,
    )


def differences(device: torch.device) -> list[tuple[float, float]]:
    """Return how many numbers of images the kernel and torch give otherwise, and how many there are."""
    from saturate.loaders import _postprocess_kernel

    generator = torch.Generator().manual_seed(0)
    found = []
    for dtype, shape in SHAPES.items():
        levels = torch.randint(
            0, 256, (BATCH, *shape, 3), generator=generator, dtype=torch.uint8
        ).to(device)
        rows = rows_of(shape, exif=dtype == "float16")
        valid = rows.valid & (np.arange(BATCH) != 2)  # it could not be decoded
        images = []
        for kernel in (_postprocess_kernel, None):
            finish = Finish(feed(device, dtype))
            finish._kernel = kernel
            batch = finish(levels, rows, valid)
            assert batch.valid.tolist() == valid.tolist() and batch.failed == (2,)
            assert batch.targets["ids"].tolist() == rows.ids.tolist()
            images.append(batch.images)
        found.append(
            (float((images[0] != images[1]).sum()), float(images[0].count_nonzero()))
        )
    return found


def feed(device: torch.device, dtype: str) -> Feed:
    unused: Any = SimpleNamespace()
    return Feed(
        plan=unused,
        source=unused,
        columns=unused,
        targets=lambda rows: {"ids": rows.ids},
        device=device,
        workers=0,
        pixels=Pixels(dtype=dtype),
    )


INTERPRETED = """
import torch
from tests.unit.test_finish_kernel import differences

for other, shown in differences(torch.device("cpu")):
    print(other, shown)
"""


def check_they_are_the_same(found: list[Any]) -> None:
    assert len(found) == len(SHAPES)
    assert all(other == 0 and shown > 1000 for other, shown in found), found


def test_the_kernel_does_what_torch_does(runner: Runner) -> None:
    check_they_are_the_same(interpreted(INTERPRETED, runner))


def test_a_thread_hashes_triton_for_the_first_kernel() -> None:
    """Triton looks its kernels up by a key that it keeps, once it is made."""
    key = pytest.importorskip("triton.runtime.cache").triton_key
    key.cache_clear()
    hash_ahead().join(timeout=300)
    key()
    assert key.cache_info()[:2] == (1, 1), "one found, one made"
