"""Images of formats that no loader reads are left out, with what to do."""

from __future__ import annotations

import io
import re

import pytest
from PIL import Image

from saturate.dataset.images.headers import parse
from saturate.dataset.scan.manifest import Rejected
from tests.unit.folders import JPEG


def of_kind(code: int) -> bytes:
    """A JPEG whose frame header has another code."""
    head, mark, rest = JPEG.partition(b"\xff\xc0")
    return head + bytes([mark[0], code]) + rest


def preview() -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (40, 30)).save(target, "TIFF", tiffinfo={254: 1})
    return target.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (of_kind(0xC3), "JPEG is lossless, hierarchical or JPEG-LS; convert"),
        (preview(), "TIFF begins with a preview, as camera raw does; convert"),
        (b"\0\0\0\x18ftypheic", "HEIC, a phone's format"),
    ],
)
def test_what_no_loader_reads_is_named(content: bytes, said: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse(content, len(content))
    assert re.match(said, str(caught.value))
