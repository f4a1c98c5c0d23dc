"""scripts.pack --max-side: photographs become smaller JPEGs once, and what is not larger stays byte for byte."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from saturate.contracts import Array
from saturate.run import pack
from tests.unit.folders import fill
from tests.unit.test_pack import command, stored

ORIENTATION = 0x0112


def photo(width: int, height: int, form: str, orientation: int = 1) -> bytes:
    """An image that is smooth, as photographs are, and no two of its corners alike."""
    across, down = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    waves = np.sin(across * 9) * np.cos(down * 7)
    colours = [across + 0 * down, down + 0 * across, (waves + 1) / 2]
    image = Image.fromarray((np.stack(colours, 2) * 255).astype(np.uint8))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    file = io.BytesIO()
    more: dict[str, Any] = {"quality": 95} if form == "JPEG" else {}
    image.save(file, form, exif=exif, **more)
    return file.getvalue()


FILES = {
    "a/large.jpg": photo(1600, 900, "JPEG"),
    "a/turned.jpg": photo(1200, 700, "JPEG", 6),
    "a/upright.png": photo(500, 900, "PNG"),
    "b/small.jpg": photo(200, 150, "JPEG", 8),
    "b/as-large.jpg": photo(400, 300, "JPEG"),
    "b/tiff.tif": photo(900, 500, "TIFF", 6),
    "b/damaged.jpg": photo(1600, 900, "JPEG")[:5000],
}
KEPT = {"b/small.jpg", "b/as-large.jpg", "b/damaged.jpg"}


def near(found: Array, wanted: Image.Image) -> bool:
    """Whether pixels are those of an image, but for what a JPEG loses."""
    apart = np.abs(found.astype(int) - np.asarray(wanted.convert("RGB")).astype(int))
    return bool(apart.mean() < 2.5 and np.percentile(apart, 99) < 14)


@pytest.mark.parametrize(("form", "exif"), [("tar", "stored"), ("folder", "shown")])
def test_larger_images_are_made_smaller_once(
    form: str, exif: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for split in ("train", "val"):
        fill(data / split, FILES)
    words = [*command(data, form), "--max-side", "400", "--exif", exif]
    assert pack.main(words) == 0
    if form == "folder":
        target = tmp_path / form / "train"
        found = {name: (target / name).read_bytes() for name in FILES}
    else:
        rows = stored(tmp_path / form, "train", form)
        assert [name for name, *_ in rows] == sorted(FILES)
        found = {name: content for name, _, content in rows}
    for name, content in found.items():
        if name in KEPT:
            assert content == FILES[name], name
            continue
        with Image.open(io.BytesIO(content)) as made:
            assert made.format == "JPEG" and max(made.size) == 400, name
            told = made.getexif().get(ORIENTATION, 1)
            pixels = np.asarray(made)
        with Image.open(io.BytesIO(FILES[name])) as whole:
            # Pillow shows a TIFF as it is to be seen
            turned = exif == "shown" and whole.format != "TIFF"
            asked = whole.getexif().get(ORIENTATION, 1)
            shown = ImageOps.exif_transpose(whole) if turned else whole
            shown.load()
        assert told == (1 if turned or name.endswith("tif") else asked), name
        share = 400 / max(shown.size)
        size = round(shown.width * share), round(shown.height * share)
        assert near(pixels, shown.resize(size, Image.Resampling.LANCZOS)), name


def test_flags_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "data" / "train", FILES)
    for more in (["--max-side", "0"], ["--max-side", "400", "--pixels", "raw"]):
        assert pack.main([*command(tmp_path / "data", "lmdb"), *more]) == 2
        assert "--max-side" in capsys.readouterr().err


def of_profile(space: bytes, mode: str) -> bytes:
    """A large JPEG with a profile of a colour space, which its bytes 16 to 20 name (ICC.1, 7.2.6)."""
    file = io.BytesIO()
    profile = bytes(16) + space + bytes(108)
    Image.new(mode, (600, 300)).save(file, "JPEG", icc_profile=profile)
    return file.getvalue()


def test_what_a_jpeg_of_rgb_cannot_hold_is_left_out(tmp_path: Path) -> None:
    """That are 64 KiB of EXIF and more, and profiles of other colours than RGB."""
    long = Image.Exif()
    long[ORIENTATION], long[0x010E] = 6, "x" * 80_000
    file = io.BytesIO()
    Image.new("RGB", (600, 300)).save(file, "PNG", exif=long)
    files = {
        "a/cmyk.jpg": of_profile(b"CMYK", "CMYK"),
        "a/grey.jpg": of_profile(b"GRAY", "L"),
        "b/rgb.jpg": of_profile(b"RGB ", "RGB"),
        "b/exif.png": file.getvalue(),
    }
    fill(tmp_path / "data" / "train", files)
    fill(tmp_path / "data" / "val", files)
    words = command(tmp_path / "data", "folder")
    assert pack.main([*words, "--max-side", "200", "--exif", "stored"]) == 0
    spaces, turns = {}, {}
    for name in files:
        with Image.open(tmp_path / "folder" / "train" / name) as made:
            assert (made.format, made.mode, made.size) == ("JPEG", "RGB", (200, 100))
            spaces[name] = made.info.get("icc_profile", b"")[16:20]
            turns[name] = made.getexif().get(ORIENTATION)
    assert spaces == dict.fromkeys(files, b"") | {"b/rgb.jpg": b"RGB "}
    assert turns == dict.fromkeys(files) | {"b/exif.png": 6}
