"""Surfaces of the GPU's decoders become pixels as the CPU makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pytest
import torch

from saturate.loaders.videos import _surfaces
from saturate.loaders.videos._planes import Fitter, Picture
from saturate.loaders.videos._surfaces import Fit, nv12
from saturate.loaders.videos.pyav import planes
from tests.end_to_end.runs import Runner
from tests.unit import engines
from tests.unit.triton_programs import interpreted

CPU = torch.device("cpu")
HEIGHT, WIDTH = 120, 200


def frame_of(
    turns: int, colours: tuple[int, bool]
) -> tuple[Picture, Picture, torch.Tensor]:
    """Noise, as planes and as a surface. `colours`: the matrix by its number, whether the range is full."""
    draws = np.random.default_rng(turns)
    frame: Any = av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
    for plane in frame.planes:
        plane.update(draws.integers(16, 235, plane.buffer_size, np.uint8).tobytes())
    frame.colorspace, frame.color_range = colours[0], 2 if colours[1] else 1
    on_cpu, surface = planes(frame, turns), engines.nv12(frame.to_ndarray())
    return (
        on_cpu,
        nv12(HEIGHT, WIDTH, matrix=on_cpu.matrix, full_range=colours[1], turns=turns),
        surface,
    )


def windows(picture: Picture) -> Iterator[tuple[Any, Any, tuple[int, int]]]:
    """Region, window and size: windows that are enlarged, reduced and cut off by their region."""
    tall, wide = picture.shape
    for region, window, size in (
        ((0, 0, wide, tall), (0.0, 0.0, wide, tall), (tall, wide)),
        ((0, 0, wide, tall), (11.3, 7.9, wide - 31.1, tall - 3.7), (37, 41)),
        ((10, 20, 90, 80), (-3.0, -5.5, 84.0, 61.0), (56, 48)),
        ((30, 30, 70, 60), (2.25, 1.5, 30.0, 28.0), (64, 64)),
    ):
        yield np.array(region), np.array(window), size


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("colours", [(1, False), (2, False), (6, True)])
def test_pixels_are_those_of_the_cpu(turns: int, colours: tuple[int, bool]) -> None:
    on_cpu, picture, surface = frame_of(turns, colours)
    assert picture.shape == on_cpu.shape
    for region, window, size in windows(picture):
        out = np.empty((*size, 3), np.uint8)
        Fitter(on_cpu, region, window, size).fill(out, on_cpu)
        found = Fit(picture, region, window, size)(surface[None])[0]
        assert found.dtype == torch.uint8
        apart = np.abs(found.numpy().astype(int) - out)
        assert apart.max() <= 1 and apart.mean() < 0.02


def levels_apart(device: torch.device, turns: int) -> tuple[int, float]:
    """Return how many levels kernel and matrices differ by: at most, and in the mean."""
    _, picture, surface = frame_of(turns, (1, False))
    surfaces = torch.stack([surface, surface.flip(1)]).to(device)
    found = []
    for region, window, size in windows(picture):
        fit = Fit(picture, region, window, size)
        kernel = _surfaces._kernel(device)
        assert kernel is not None
        one, other = fit.by_kernel(surfaces, kernel), fit.by_host(surfaces)
        assert one.shape == other.shape and one.dtype == other.dtype
        found.append((one.int() - other.int()).abs().float().flatten())
    every = torch.cat(found)
    return int(every.max()), float(every.mean())


INTERPRETED = """
import torch
from saturate.loaders.videos import _surfaces_kernel
from tests.unit.test_surfaces import CPU, levels_apart

_surfaces_kernel.BLOCK = 1 << 15  # it goes through programs one by one
print(*levels_apart(CPU, 3))
"""


@pytest.mark.slow
def test_the_kernel_does_what_the_host_does(runner: Runner) -> None:
    ((most, mean),) = interpreted(INTERPRETED, runner)
    assert most <= 1 and mean < 0.02
