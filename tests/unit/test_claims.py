"""What claims more pixels than --max-pixels, or than its bytes may stand for, is left out by name before it is
decoded, whatever the format and the source."""

from __future__ import annotations

import io
import re
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import PngImagePlugin

from contracts import UserError
from dataset.scan import cache
from dataset.unlabelled import open_unlabelled
from loaders import Undecodable
from loaders.images.decoders import pillow_rgb
from settings.data import Data
from tests.unit.folders import fill, reasons
from tests.unit.test_headers import FILES
from tests.unit.test_splits import opened
from tests.unit.video_files import make


def claiming(format: str, width: int, height: int) -> bytes:
    """A file of 37 x 23 pixels whose header says another size."""
    content = bytearray(FILES[f"{format} rgb" if format in ("jpeg", "png") else format])
    if format == "jpeg":
        at = content.index(b"\xff\xc0") + 5
        content[at : at + 4] = struct.pack(">HH", height, width)
    elif format == "png":
        content[16:24] = struct.pack(">II", width, height)
    elif format == "gif":
        content[6:10] = struct.pack("<HH", width, height)
    elif format == "webp lossless":
        content[21:25] = struct.pack("<I", width - 1 | height - 1 << 14)
    elif format == "bmp":
        content[18:26] = struct.pack("<ii", width, -height)
    elif format == "ppm":
        return bytes(content).replace(b"37 23", b"%d %d" % (width, height))
    return bytes(content)


def tiff_claiming(width: int, height: int) -> bytes:
    """A grey TIFF, deflated, of so many pixels: 14 bytes of header, 12 a tag."""
    strip = zlib.compress(bytes(64))
    tags = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 273: 0, 277: 1}
    tags |= {278: height, 279: len(strip)}
    tags[273] = 14 + 12 * len(tags)
    written = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()]
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    return head + b"".join(written) + bytes(4) + strip


FORMATS = ("jpeg", "png", "gif", "webp lossless", "bmp", "ppm")
SIZES = {"trap": (13_000, 13_000), "small": (4_000, 4_000), "large": (65_500, 65_500)}


@pytest.mark.parametrize("source", ["folder", "list", "tar", "predict"])
def test_some_hundred_bytes_are_no_huge_picture(source: str, tmp_path: Path) -> None:
    files = {
        f"train/ant/{size}-{format}": claiming(format, *sides)
        for size, sides in SIZES.items()
        for format in FORMATS
        # of these a header has fewer bits for a side
        if size != "large" or format in ("png", "bmp")
    }
    files |= {
        f"train/ant/{size}-tiff": tiff_claiming(*sides) for size, sides in SIZES.items()
    }
    assert all(len(content) < 8000 for content in files.values())
    data = fill(tmp_path / "data", {**files, "val/ant/0.jpg": FILES["jpeg rgb"]})
    if source == "list":
        lines = [f"{name},ant" for name in sorted(files)]
        (data / "train.csv").write_text("\n".join(lines))
        (data / "val.csv").write_text("val/ant/0.jpg,ant")
    if source == "tar":
        for split in ("train", "val"):
            with tarfile.open(data / split / "0.tar", "w") as shard:
                for file in sorted((data / split / "ant").iterdir()):
                    shard.add(file, f"{file.name}.jpg")
                    label = tarfile.TarInfo(f"{file.name}.cls")
                    label.size = 1
                    shard.addfile(label, io.BytesIO(b"0"))
    if source == "predict":
        settings = Data(manifest_dir=tmp_path / "cache")
        found = open_unlabelled(data / "train", settings, content="images")
        kept = len(found.split.columns)
        left_out = {found.names[place]: why for place, why in found.errors.items()}
    else:
        columns = opened(data, source=source)["train"].columns
        kept, left_out = len(columns), reasons(columns)
    said = {
        "trap": r"claims 13000 x 13000 pixels in \d+ bytes, which is blank or a trap",
        "large": "claims 65500 x 65500 pixels, more than --max-pixels 178956970",
    }
    assert kept == len(FORMATS) + 1 and kept + len(left_out) == len(files)
    for name, why in left_out.items():
        size = re.search("trap|large", name)
        assert size and re.match(said[size[0]], why), (name, why)


def test_the_limit_is_a_part_of_what_a_scan_is_found_by(tmp_path: Path) -> None:
    good = FILES["jpeg rgb"]  # of 37 x 23 pixels
    content = {"train/ant/0.jpg": claiming("png", 40, 23), "train/ant/1.jpg": good}
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


def test_videos_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    make(data / "train/run/large.mp4", frames=6, size=(64, 64))
    make(data / "train/run/small.mp4", frames=6, size=(32, 32))
    make(data / "val/run/small.mp4", frames=6, size=(32, 32))
    columns = opened(data, videos=True, max_pixels=64 * 64 - 1)["train"].columns
    assert np.unique(columns.height).tolist() == [32]
    said = "claims 64 x 64 pixels, more than --max-pixels 4095"
    assert [*reasons(columns).values()] == [said]
    monkeypatch.setattr(cache, "ANY_FILE", 1)
    monkeypatch.setattr(cache, "A_BYTE", 0)
    with pytest.raises(UserError, match=r"64 x 64 pixels in \d+ bytes, which is blank"):
        opened(data, videos=True, rescan=True)
