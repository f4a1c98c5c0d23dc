"""Images of formats that no loader reads are left out, with what to do."""

from __future__ import annotations

import io
import re
import sys

import pytest
from PIL import Image

from saturate.dataset.images.headers import parse
from saturate.dataset.scan.manifest import Rejected
from tests.conformance.pictures import odd_files
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
        (b"\0\0\0\x18ftypheic", "HEIC header is damaged or cut short"),
    ],
)
def test_what_no_loader_reads_is_named(content: bytes, said: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse(content, len(content))
    assert re.match(said, str(caught.value))


def test_a_phones_format_names_the_package_that_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pillow_heif")
    content = odd_files()["heic"]
    # a process that has not imported it, of a user who has not installed it
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != "HEIF"])
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(Rejected, match="pip install pillow-heif reads it"):
        parse(content, len(content))
    # AVIF is Pillow's own
    content = odd_files()["avif"]
    assert parse(content, len(content)).width == 120


def test_a_cut_off_file_of_a_phone_is_named() -> None:
    content = odd_files()["avif"][:100]
    with pytest.raises(Rejected, match="HEIC header is damaged or cut short"):
        parse(content, len(content))
