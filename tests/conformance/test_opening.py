"""Which loaders are tested, and what is said where one cannot run."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from contracts import UserError
from loaders import IMAGE_LOADERS, OF_MEDIUM, VIDEO_LOADERS, Medium, open_loader
from tests.conformance.scenes import (
    CPU,
    DECODE_ON_GPU,
    MAY_LACK,
    NEED_GPU,
    NO_FILES,
    READ_IN_THREADS,
    Scene,
    backends,
    here,
)


def test_every_loader_of_the_table_is_tested() -> None:
    media: tuple[Medium, ...] = ("images", "videos")
    for medium in media:
        clips = medium == "videos"
        lacking = tuple(decoder for decoder in MAY_LACK if clips and not here(decoder))
        table = {name for name in OF_MEDIUM[medium] if not (lacking and name.endswith(lacking))}
        assert {backend.name for backend in backends(torch.device("cuda"), files=False, clips=clips)} == table
        assert {backend.name for backend in backends(CPU, files=False, clips=clips)} == table - set(NEED_GPU)
    assert {*NO_FILES, *NEED_GPU, *DECODE_ON_GPU, *READ_IN_THREADS, *MAY_LACK} <= {
        *IMAGE_LOADERS,
        *VIDEO_LOADERS,
    }


@pytest.mark.parametrize("name", sorted({*NEED_GPU} & {*IMAGE_LOADERS}))
def test_a_loader_that_needs_a_gpu_says_which_do_not(name: str, small: Scene) -> None:
    feed = dataclasses.replace(small.feed(), device=CPU)
    with pytest.raises(UserError) as caught:
        open_loader(name, feed)
    said = str(caught.value)
    assert "\n" not in said
    assert name in said
    assert "GPU" in said
    assert "dali-cpu" in said
    assert "dali-fed" in said
