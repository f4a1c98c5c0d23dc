"""Which loaders are tested, and what is said where one cannot run."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from contracts import Loader, Mistake
from loaders import LOADERS, open_loader
from tests.conformance.scenes import CPU, DECODE_ON_GPU, NEED_GPU, NO_FILES, Backend, Scene, backends


def test_every_loader_of_the_table_is_tested() -> None:
    on_gpu = {backend.name for backend in backends(torch.device("cuda"), files=False)}
    assert on_gpu == set(LOADERS)
    assert {backend.name for backend in backends(CPU, files=False)} == set(LOADERS) - set(NEED_GPU)
    assert {*NO_FILES, *NEED_GPU, *DECODE_ON_GPU} <= set(LOADERS)


def test_loaders_keep_the_contract(any_backend: Backend, small: Scene) -> None:
    with any_backend.open(small.feed(any_backend.device)) as loader:
        assert isinstance(loader, Loader)
        assert loader.in_flight >= 0


@pytest.mark.parametrize("name", NEED_GPU)
def test_a_loader_that_needs_a_gpu_says_which_do_not(name: str, small: Scene) -> None:
    feed = dataclasses.replace(small.feed(), device=CPU)
    with pytest.raises(Mistake) as caught:
        open_loader(name, feed)
    said = str(caught.value)
    assert "\n" not in said
    assert name in said
    assert "GPU" in said
    assert "dali-cpu" in said
    assert "dali-fed" in said
