"""What claims more pixels than --max-pixels, or than its bytes can hold, is left out by name before it is
decoded, whatever the format and the source; what a file can hold is kept, unless it is huge and blank."""

from __future__ import annotations

import io
import re
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from contracts import UserError
from dataset.images.headers import parse
from dataset.pairs import entry
from dataset.scan import cache
from dataset.scan.manifest import Rejected
from dataset.unlabelled import open_unlabelled
from loaders import Undecodable
from loaders.images.decoders import pillow_rgb
from settings.data import Data
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


def saved(format: str, width: int, height: int, **options: Any) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (width, height)).save(target, format, **options)
    return target.getvalue()


def bmp_claiming(width: int, height: int) -> bytes:
    content = saved("BMP", 37, 23)
    return content[:18] + struct.pack("<ii", width, -height) + content[26:]


CLAIMS: dict[str, Callable[[int, int], bytes]] = {
    "baseline JPEG": jpeg_claiming,
    "grey JPEG": lambda width, height: jpeg_claiming(width, height, "jpeg grey"),
    "progressive JPEG": lambda width, height: jpeg_claiming(
        width, height, "jpeg progressive"
    ),
    "PNG": png_claiming,
    "BMP": bmp_claiming,
    "PPM": lambda width, height: saved("PPM", 37, 23).replace(
        b"37 23", b"%d %d" % (width, height)
    ),
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
def test_a_blank_picture_is_kept(
    format: str, options: dict[str, int], mode: str
) -> None:
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
    assert [names(splits[split]) for split in ("train", "val")] == [
        ["1.jpg"],
        ["0.jpg", "1.gif"],
    ]
    (why,) = reasons(splits["train"].columns).values()
    assert why.startswith("JPEG claims 65500 x 65500 pixels, more than its")
    (data / "train" / "ant" / "0.jpg").write_bytes(png_claiming(40, 23))
    few = opened(data, max_pixels=37 * 23, rescan=True)["train"].columns
    assert list(reasons(few).values()) == [
        "claims 40 x 23 pixels, more than --max-pixels 851"
    ]
    assert len(opened(data, max_pixels=40 * 23)["train"].columns) == 2, (
        "the limit is a part of what a scan is found by"
    )


def gif_claiming(width: int, height: int) -> bytes:
    content = FILES["gif"]
    return content[:6] + struct.pack("<HH", width, height) + content[10:]


def webp_claiming(width: int, height: int) -> bytes:
    content = saved("WEBP", 37, 23, lossless=True)
    assert content[12:16] == b"VP8L"
    return content[:21] + struct.pack("<I", width - 1 | height - 1 << 14) + content[25:]


def tiff_of(tags: dict[int, int], strip: bytes) -> bytes:
    """Return a grey TIFF, deflated; 8 and 4 bytes of header, 12 a tag."""
    offset, length = (324, 325) if 322 in tags else (273, 279)
    tags = {
        258: 8,
        259: 8,
        262: 1,
        277: 1,
        offset: 14 + 12 * (len(tags) + 6),
        length: len(strip),
        **tags,
    }
    written = b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items())
    )
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + written + bytes(4) + strip


def tiff_claiming(width: int, height: int) -> bytes:
    return tiff_of({256: width, 257: height, 278: height}, zlib.compress(bytes(64)))


def tiled_tiff(side: int) -> bytes:
    return tiff_of(
        {256: 8, 257: 8, 322: side, 323: side}, zlib.compress(bytes(side * 8))
    )


BLANK = {"gif": gif_claiming, "webp": webp_claiming, "tiff": tiff_claiming}
"""Formats in which some hundred bytes are a picture of any size."""


@pytest.mark.parametrize("source", ["folder", "list", "tar", "predict"])
def test_some_hundred_bytes_are_no_huge_picture(source: str, tmp_path: Path) -> None:
    traps = {
        f"train/ant/{name}": claiming(13_000, 13_000)
        for name, claiming in BLANK.items()
    }
    small = {
        f"train/ant/small.{name}": claiming(4_000, 4_000)
        for name, claiming in BLANK.items()
    }
    tiles = {"train/ant/tiles": tiled_tiff(16_384), "train/ant/tile": tiled_tiff(256)}
    data = fill(
        tmp_path / "data",
        {**traps, **small, **tiles, "val/ant/0.jpg": FILES["jpeg rgb"]},
    )
    assert all(len(content) < 2000 for content in traps.values())
    if source == "list":
        lines = [f"{name},ant" for name in sorted({**traps, **small, **tiles})]
        (data / "train.csv").write_text("\n".join(lines))
        (data / "val.csv").write_text("val/ant/0.jpg,ant")
    if source == "tar":
        for split in ("train", "val"):
            with tarfile.open(data / split / "0.tar", "w") as shard:
                for file in sorted((data / split / "ant").iterdir()):
                    shard.add(file, f"{file.name.replace('.', '-')}.jpg")
                    label = tarfile.TarInfo(f"{file.name.replace('.', '-')}.cls")
                    label.size = 1
                    shard.addfile(label, io.BytesIO(b"0"))
    if source == "predict":
        found = open_unlabelled(
            data / "train", Data(manifest_dir=tmp_path / "cache"), content="images"
        )
        kept, left_out = (
            found.split.columns,
            [found.errors[place] for place in sorted(found.errors)],
        )
    else:
        kept = opened(data, source="folder" if source == "folder" else source)[
            "train"
        ].columns
        left_out = [why for _, why in sorted(reasons(kept).items())]
    assert len(kept) == 4
    assert [re.sub(r"in \d+ bytes", "in N bytes", why) for why in left_out] == [
        "claims 13000 x 13000 pixels in N bytes, which is blank or a trap: save it smaller",
        "claims 13000 x 13000 pixels in N bytes, which is blank or a trap: save it smaller",
        "TIFF has tiles of 16384 x 16384 pixels, more than the image has",
        "claims 13000 x 13000 pixels in N bytes, which is blank or a trap: save it smaller",
    ]


def test_a_decoder_sees_the_size_that_the_scan_has_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the two readers of a header do not agree nothing is decoded: not of a file, nor in a pair."""
    assert pillow_rgb(FILES["png rgb"]).size == (37, 23)
    with monkeypatch.context() as here:
        here.setattr(
            PngImagePlugin.PngImageFile, "size", property(lambda _: (60_000, 60_000))
        )
        with pytest.raises(
            Undecodable, match="60000 x 60000 pixels, its header 37 x 23"
        ):
            pillow_rgb(FILES["png rgb"])
    pixels = np.zeros((4, 6, 3), np.uint8)
    whole = entry.encoded(pixels, pixels[::2, ::2], "png")
    trap = entry.encoded(np.zeros((4, 90, 3), np.uint8), pixels[::2, ::2], "png")
    assert list(
        entry.read(
            len(whole), lambda at, n: whole[at : at + n], [], scale=2, small=False
        )
    )
    with pytest.raises(Rejected, match="its PNG has 90 x 4 pixels"):
        entry.read(len(trap), lambda at, n: trap[at : at + n], [], scale=2, small=False)


def test_cocos_images_too(tmp_path: Path) -> None:
    data = write_coco(tmp_path / "data", splits={"train2017": 2, "val2017": 2})
    written = document(data, "train2017")
    written["images"][0] |= {"width": 65_500, "height": 65_500}
    write(data, "train2017", written)
    (data / "train2017" / written["images"][0]["file_name"]).write_bytes(
        jpeg_claiming(65_500, 65_500)
    )
    columns = opened(data, content="instances")["train"].columns
    assert len(columns) == 1
    assert (
        "claims 65500 x 65500 pixels" in (columns.folder / "rejected.txt").read_text()
    )


def test_videos_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = make(
        tmp_path / "data" / "train" / "run" / "large.mp4", frames=6, size=(64, 64)
    )
    make(large.with_name("small.mp4"), frames=6, size=(32, 32))
    make(tmp_path / "data" / "val" / "run" / "small.mp4", frames=6, size=(32, 32))
    columns = opened(tmp_path / "data", videos=True, max_pixels=64 * 64 - 1)[
        "train"
    ].columns
    assert np.unique(columns.height).tolist() == [32]
    assert list(reasons(columns).values()) == [
        "claims 64 x 64 pixels, more than --max-pixels 4095"
    ]
    monkeypatch.setattr(cache, "ANY_FILE", 1)
    monkeypatch.setattr(cache, "A_BYTE", 0)
    with pytest.raises(
        UserError, match=r"claims 64 x 64 pixels in \d+ bytes, which is blank or a trap"
    ):
        opened(tmp_path / "data", videos=True, rescan=True)
