"""What claims more pixels than --max-pixels is left out by name before it is decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import PngImagePlugin

from saturate.loaders import Undecodable
from saturate.loaders.images.decoders import pillow_rgb
from tests.unit.folders import fill, reasons
from tests.unit.test_headers import FILES, encoded
from tests.unit.test_splits import opened
from tests.unit.video_files import make


def test_the_limit_is_a_part_of_what_a_scan_is_found_by(tmp_path: Path) -> None:
    good = FILES["jpeg rgb"]  # of 37 x 23 pixels
    content = {
        "train/ant/0.jpg": encoded(size=(40, 23), format="PNG"),
        "train/ant/1.jpg": good,
    }
    data = fill(tmp_path / "data", {**content, "val/ant/0.jpg": good})
    few = opened(data, max_pixels=37 * 23)["train"].columns
    said = "claims 40 x 23 pixels, more than --max-pixels 851"
    assert [*reasons(few).values()] == [said]
    assert len(opened(data, max_pixels=40 * 23)["train"].columns) == 2


def test_a_decoder_sees_the_size_that_the_scan_has_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the two readers of a header do not agree nothing is decoded."""
    assert pillow_rgb(FILES["png rgb"]).size == (37, 23)
    size = property(lambda _: (60_000, 60_000))
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "size", size)
    with pytest.raises(
        Undecodable, match=r"an image of .60000, 60000., its header says .37, 23."
    ):
        pillow_rgb(FILES["png rgb"])


def test_videos_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make(data / "train/run/large.mp4", frames=6, size=(64, 64))
    make(data / "train/run/small.mp4", frames=6, size=(32, 32))
    make(data / "val/run/small.mp4", frames=6, size=(32, 32))
    columns = opened(data, videos=True, max_pixels=64 * 64 - 1)["train"].columns
    assert np.unique(columns.height).tolist() == [32]
    said = "claims 64 x 64 pixels, more than --max-pixels 4095"
    assert [*reasons(columns).values()] == [said]
