"""What claims more pixels than --max-pixels, or than its bytes can hold, is left out by name before it is
decoded; what a file can hold is kept, however well it compresses."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dataset.images.headers import parse
from dataset.manifest import Rejected
from tests.unit.coco_files import document, write, write_coco
from tests.unit.folders import fill, reasons
from tests.unit.test_headers import FILES
from tests.unit.test_splits import names, opened
from tests.unit.video_files import make


def jpeg_claiming(width: int, height: int, name: str = "jpeg rgb") -> bytes:
    content = FILES[name]
    frame = re.search(rb"\xff[\xc0\xc2]\0", content)
    assert frame is not None
    at = frame.start() + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


def png_claiming(width: int, height: int) -> bytes:
    content = FILES["png rgb"]
    return content[:16] + struct.pack(">II", width, height) + content[24:]


def saved(format: str, width: int, height: int) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (width, height)).save(target, format)
    return target.getvalue()


def bmp_claiming(width: int, height: int) -> bytes:
    content = saved("BMP", 37, 23)
    return content[:18] + struct.pack("<ii", width, -height) + content[26:]


CLAIMS: dict[str, Callable[[int, int], bytes]] = {
    "baseline JPEG": jpeg_claiming,
    "grey JPEG": lambda width, height: jpeg_claiming(width, height, "jpeg grey"),
    "progressive JPEG": lambda width, height: jpeg_claiming(width, height, "jpeg progressive"),
    "PNG": png_claiming,
    "BMP": bmp_claiming,
    "PPM": lambda width, height: saved("PPM", 37, 23).replace(b"37 23", b"%d %d" % (width, height)),
}


@pytest.mark.parametrize("claiming", CLAIMS.values(), ids=CLAIMS)
def test_more_than_its_bytes_can_hold(claiming: Callable[[int, int], bytes]) -> None:
    content = claiming(13_000, 13_000)
    said = f"claims 13000 x 13000 pixels, more than its {len(content)} bytes can hold"
    with pytest.raises(Rejected, match=said):
        parse(content, len(content))


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {"quality": 1, "optimize": True}),
        ("JPEG", {"quality": 1, "optimize": True, "subsampling": 2}),
        ("JPEG", {"quality": 1, "progressive": True}),
        ("PNG", {"compress_level": 9}),
        ("BMP", {}),
        ("PPM", {}),
    ],
    ids=["baseline", "subsampled", "progressive", "png", "bmp", "ppm"],
)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_blank_picture_is_kept(format: str, options: dict[str, int], mode: str) -> None:
    """It has the fewest bytes that its pixels can have."""
    target = io.BytesIO()
    Image.new(mode, (3001, 2003)).save(target, format, **options)
    content = target.getvalue()
    assert parse(content, len(content)).width == 3001


def test_a_file_that_would_take_all_memory_does_not_end_a_run(tmp_path: Path) -> None:
    bomb = jpeg_claiming(65_500, 65_500)
    good = FILES["jpeg rgb"]  # of 37 x 23 pixels
    content = {
        "train/ant/0.jpg": bomb,
        "train/ant/1.jpg": good,
        "val/ant/0.jpg": good,
        "val/ant/1.gif": FILES["gif"],
    }
    data = fill(tmp_path / "data", content)
    splits = opened(data)
    assert [names(splits[split]) for split in ("train", "val")] == [["1.jpg"], ["0.jpg", "1.gif"]]
    (why,) = reasons(splits["train"].columns).values()
    assert why.startswith("JPEG claims 65500 x 65500 pixels, more than its")
    (data / "train" / "ant" / "0.jpg").write_bytes(png_claiming(40, 23))
    few = opened(data, max_pixels=37 * 23, rescan=True)["train"].columns
    assert list(reasons(few).values()) == ["claims 40 x 23 pixels, more than --max-pixels 851"]
    assert len(opened(data, max_pixels=40 * 23)["train"].columns) == 2, (
        "the limit is a part of what a scan is found by"
    )


def test_cocos_images_too(tmp_path: Path) -> None:
    data = write_coco(tmp_path / "data", splits={"train2017": 2, "val2017": 2})
    written = document(data, "train2017")
    written["images"][0] |= {"width": 65_500, "height": 65_500}
    write(data, "train2017", written)
    (data / "train2017" / written["images"][0]["file_name"]).write_bytes(jpeg_claiming(65_500, 65_500))
    columns = opened(data, content="instances")["train"].columns
    assert len(columns) == 1
    assert "claims 65500 x 65500 pixels" in (columns.folder / "rejected.txt").read_text()


def test_videos_too(tmp_path: Path) -> None:
    large = make(tmp_path / "data" / "train" / "run" / "large.mp4", frames=6, size=(64, 64))
    make(large.with_name("small.mp4"), frames=6, size=(32, 32))
    make(tmp_path / "data" / "val" / "run" / "small.mp4", frames=6, size=(32, 32))
    columns = opened(tmp_path / "data", videos=True, max_pixels=64 * 64 - 1)["train"].columns
    assert np.unique(columns.height).tolist() == [32]
    assert list(reasons(columns).values()) == ["claims 64 x 64 pixels, more than --max-pixels 4095"]
