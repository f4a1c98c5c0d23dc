"""Which loaders are tested, and what is said where one cannot run."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from contracts import UserError
from loaders import LOADERS, Medium, of_medium, open_loader
from tests.conformance.scenes import (
    CPU,
    MAY_LACK,
    NO_FILES,
    READ_IN_THREADS,
    Scene,
    backends,
    here,
)

MUST = sorted(name for name, spec in LOADERS.items() if spec.gpu == "must")


def test_every_loader_of_the_table_is_tested() -> None:
    media: tuple[Medium, ...] = ("images", "videos")
    for medium in media:
        clips = medium == "videos"
        lacking = tuple(decoder for decoder in MAY_LACK if clips and not here(decoder))
        table = {
            name
            for name in of_medium(medium)
            if not (lacking and name.endswith(lacking))
        }
        assert {
            backend.name
            for backend in backends(torch.device("cuda"), files=False, clips=clips)
        } == table
        on_cpu = {name for name in table if LOADERS[name].gpu != "must"}
        assert {
            backend.name for backend in backends(CPU, files=False, clips=clips)
        } == on_cpu
    assert {*NO_FILES, *READ_IN_THREADS, *MAY_LACK} <= {*LOADERS}


@pytest.mark.parametrize("name", MUST)
def test_a_loader_that_needs_a_gpu_says_which_do_not(
    name: str, small: Scene, quick_clips: Scene
) -> None:
    clips = "videos" in LOADERS[name].media
    feed = dataclasses.replace((quick_clips if clips else small).feed(), device=CPU)
    with pytest.raises(UserError) as caught:
        open_loader(name, feed)
    said = str(caught.value)
    assert "\n" not in said
    others = ("pyav", "decord") if clips else ("dali-cpu", "dali-fed")
    assert all(word in said for word in (name, "needs an NVIDIA GPU", *others))
