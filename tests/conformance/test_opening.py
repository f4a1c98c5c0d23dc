"""Which loaders are tested, and what is said where one cannot run."""

from __future__ import annotations

import dataclasses

import pytest

from saturate.contracts import UserError
from saturate.loaders import LOADERS, open_loader
from tests.conformance.scenes import CPU, Scene

MUST = sorted(name for name, spec in LOADERS.items() if spec.gpu == "must")


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
