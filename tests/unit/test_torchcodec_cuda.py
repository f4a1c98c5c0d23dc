"""The loader of torchcodec's decoder on the GPU, with the same decoder on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from saturate.loaders import Undecodable, open_loader
from saturate.loaders.videos.exact import exact
from saturate.loaders.videos.torchcodec_cuda import groups, joined, loader
from tests.unit.clip_kinds import Made
from tests.unit.test_clip_loaders import T, feed, shows_what_is_asked


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([0], [(0, [0])]),
        ([14, 15, 16], [(0, [14, 15, 16])]),
        # decoding on is cheaper than a seek
        ([14, 20], [(0, [14, 20])]),
        ([2, 40, 41], [(0, [2]), (30, [40, 41])]),
        ([1, 16, 44], [(0, [1, 16]), (30, [44])]),
    ],
)
def test_frames_behind_a_wide_gap_have_their_own_key(frames: Any, found: Any) -> None:
    keys = np.zeros(60, bool)
    keys[[0, 15, 30, 45]] = True
    assert list(groups(keys, frames)) == found
    assert list(groups(np.zeros(60, bool), frames)) == [(0, frames)]


def test_planes_become_a_surface() -> None:
    rows = torch.arange(60, dtype=torch.uint8).reshape(4, 15)
    # as in memory that a decoder pads, and where U and V take turns
    luma, blue, red = rows[:, :6], rows[:2, 6:12:2], rows[:2, 7:12:2]
    surface = joined((luma, blue, red), 4, 6)
    assert surface.is_contiguous()
    assert surface[:4].equal(luma) and surface[4:].equal(rows[:2, 6:12])
    wrong = [(luma,), (luma, blue), (luma, luma, luma), (rows, blue, red)]
    for planes in [*wrong, (luma.short(), blue, red)]:
        with pytest.raises(Undecodable, match="a picture is"):
            joined(planes, 4, 6)


@pytest.mark.parametrize("views", [1, 3])
def test_every_clip_of_every_kind(made: Made, views: int) -> None:
    try:
        from torchcodec import decoders
    except (ImportError, OSError, RuntimeError):
        pytest.skip("torchcodec cannot be imported")
    given = feed(made.videos, views=views)
    with open_loader("pyav", given) as reference, loader(given, decoders) as loading:
        for epoch in (0, 1):
            shows_what_is_asked(loading, given, made, epoch, reference)
        able = exact("torchcodec-cuda", made.videos)
        for name in ("h264.mp4", "hevc.mp4", "vp9.webm", "vp9-hidden.webm"):
            assert able[made.names.index(name)]
        told = loading.counts.fallbacks
        assert not [sort for sort in told if "refused" in sort], loading.counts.refusals
        assert sum(told.values()) == 4 * views * (~able).sum()
        assert loading.counts.delivered == 4 * views * len(made.videos) * T
