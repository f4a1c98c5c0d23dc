"""Key frames of codecs whose units the scan does not read: the decoder has to confirm them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_video_faults import compared, marked, scanned
from tests.unit.test_video_scan import remuxed
from tests.unit.video_files import make


@pytest.mark.parametrize(
    ("codec", "pixels", "ending"),
    [("msvideo1", "rgb555le", "avi"), ("qtrle", "rgb24", "mov"), ("flashsv", "bgr24", "flv")],
)
def test_key_frames_that_no_decoder_confirms(codec: str, pixels: str, ending: str, tmp_path: Path) -> None:
    whole = make(tmp_path / f"a.{ending}", codec=codec, pixels=pixels, frames=18)
    path = remuxed(whole, tmp_path / f"b.{ending}", marked("all"))
    assert compared(path, scanned(path, tmp_path / "s")) == (0, [])
