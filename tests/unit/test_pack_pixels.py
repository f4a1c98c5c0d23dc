"""scripts.pack --pixels: what is stored are Pillow's pixels, and loaders deliver them as from the files."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from saturate.contracts import UserError
from saturate.dataset.pairs.scan import open_pairs
from saturate.loaders.images.decoders import shown_rgb
from saturate.run import pack
from tests.conformance import pictures, scenes
from tests.conformance.scenes import Scene
from tests.unit.folders import fill
from tests.unit.superres_files import feed_of, halved
from tests.unit.test_pack import command, in_place, opened, stored
from tests.unit.test_superres_loader import check, passed

lz4 = pytest.importorskip("lz4.frame")
FILES = {
    f"{'ab'[place % 2]}/{place:02d}-{name}.png": content
    for place, (name, content) in enumerate(
        {**pictures.odd_files(), **scenes.small(3)}.items()
    )
}
PIXELS = pytest.mark.parametrize("kind", ["raw", "lz4"])
PAIRS = [("lmdb", "raw"), ("tar", "lz4"), ("arrow", "raw")]


def packed(data: Path, form: str, kind: str, *more: str) -> Path:
    assert pack.main([*command(data, form), "--pixels", kind, *more]) == 0
    return data.parent / form


def data_of(tmp_path: Path, files: dict[str, bytes]) -> Path:
    data = tmp_path / "data"
    for split in ("train", "val"):
        fill(data / split, files)
    return data


@pytest.mark.parametrize(("form", "kind"), PAIRS)
def test_what_is_stored_are_pillows_pixels(
    form: str, kind: str, tmp_path: Path
) -> None:
    """Entries are what the packages of the store, of LZ4 and Pillow read; what cannot be decoded is as it was."""
    damaged = FILES["a/00-cmyk-jpeg.png"][:900]
    files = {**FILES, "a/damaged.png": damaged}
    target = packed(data_of(tmp_path, files), form, kind)
    for split in ("train", "val"):
        rows = stored(target, split, form)
        assert [(name, label) for name, label, _ in rows] == [
            (name, name[0]) for name in sorted(files)
        ]
        for name, _, content in rows:
            if name == "a/damaged.png":
                assert content == damaged
                continue
            ppm = lz4.decompress(content) if kind == "lz4" else content
            with Image.open(io.BytesIO(ppm)) as image:
                assert image.format == "PPM"
                np.testing.assert_array_equal(
                    np.asarray(image), pictures.pil(FILES[name])
                )


@pytest.mark.parametrize(
    ("form", "kind", "loader"),
    [("tar", "raw", "torchvision"), ("arrow", "lz4", "dali-fed")],
)
def test_batches_are_those_of_the_files(
    form: str, kind: str, loader: str, tmp_path: Path
) -> None:
    if loader == "dali-fed":
        pytest.importorskip("nvidia.dali")
    data = data_of(tmp_path, FILES)
    target = packed(data, form, kind)
    batches: list[list[Any]] = []
    for place in (data, target):
        split = opened(place)["train"]
        made = Scene(folder=place, manifest=split.columns, bytes_of=(), names=())
        feed = made.feed(image_size=32, source=split.source)
        with scenes.Backend(name=loader).open(feed) as opened_loader:
            batches.append([*opened_loader.batches(0, 0)])
    assert len(batches[0]) == len(batches[1]) > 4
    for one, other in zip(*batches, strict=True):
        assert not other.failed and torch.equal(one.images, other.images)


@pytest.mark.parametrize(("form", "kind"), PAIRS[1:])
def test_patches_are_cut_out_of_stored_pixels(
    form: str, kind: str, tmp_path: Path
) -> None:
    files = {
        f"all/{seed}.png": pictures.png(pictures.photograph(seed, 40 + seed, 52 - seed))
        for seed in range(8)
    }
    target = packed(data_of(tmp_path, files), form, kind)
    split, _ = open_pairs(target, "train", scale=2, least=16, cache=tmp_path / "cache")
    if kind == "raw":
        # the patch alone is read
        source: Any = split.source
        source.source.read = None
    large = [pictures.pil(content) for content in files.values()]
    small = [halved(pixels, 2) for pixels in large if pixels is not None]
    assert check(passed(feed_of(split)), large, small) == 8


def test_exif_turns_pixels_where_it_is_asked_to(tmp_path: Path) -> None:
    upright = np.zeros((8, 16, 3), np.uint8)
    upright[:, 8:] = 255
    files = {"a/1.jpg": pictures.turned(upright, 6), "b/2.jpg": pictures.jpeg(upright)}
    data = data_of(tmp_path, files)
    found = opened(packed(data, "tar", "raw"))["train"]
    assert found.columns.width.tolist() == [16, 16]
    shutil.rmtree(tmp_path / "tar")
    found = opened(packed(data, "tar", "raw", "--exif", "shown"))["train"]
    assert found.columns.width.tolist() == [8, 16]
    shown = np.asarray(shown_rgb(found.source.read(0), 0))
    # orientation 6: its rows are a viewer's columns, from right to left
    assert shown.shape == (16, 8, 3) and shown[0].max() < 50 < 200 < shown[-1].min()


@PIXELS
def test_damage_is_masked_and_named(kind: str, tmp_path: Path) -> None:
    """Pixels that are cut short; or, where a checksum tells, others."""
    target = packed(data_of(tmp_path, scenes.of_two_classes(6)), "folder", kind)
    broken = target / "train" / "a" / "small-002.jpg"
    content = broken.read_bytes()
    if kind == "raw":
        broken.write_bytes(content[:-1])
    else:
        in_place(broken, content[300:310], bytes(10))
    split = opened(target)["train"]
    made = Scene(folder=target, manifest=split.columns, bytes_of=(), names=())
    feed = made.feed(image_size=32, batch_size=6, workers=0, source=split.source)
    with scenes.Backend(name="torchvision").open(feed) as loader:
        (batch,) = loader.batches(0, 0)
    assert batch.failed == (1,)


def test_without_lz4_a_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To pack, to scan, and to read what was scanned where it was there."""
    data = data_of(tmp_path, scenes.of_two_classes(2))
    target = packed(data, "tar", "lz4")
    split = opened(target)["train"]
    shutil.rmtree(tmp_path / "cache-tar")
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    for call in (
        lambda: opened(target),
        lambda: shown_rgb(split.source.read(0), 0),
    ):
        with pytest.raises(UserError, match="pip install lz4"):
            call()
    assert pack.main([*command(data, "arrow"), "--pixels", "lz4"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("pip install lz4")
