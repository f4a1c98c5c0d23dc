"""scripts/serve_example.py: its pixels are those of --predict, and what it cannot take is one line."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from saturate.contracts import Array
from saturate.dataset.unlabelled import open_unlabelled
from saturate.loaders.images.decoders import shown_rgb
from saturate.settings.config import build
from scripts import serve_example

NOTES = {
    "task": "classification",
    "classes": '["a", "b", "c"]',
    "preprocessing": '{"exif": "stored"}',
    "probabilities": "softmax",
}
RAMP = np.arange(40 * 30, dtype=np.int64).reshape(40, 30)
COLOURS = np.stack([RAMP % 256, RAMP // 5, 255 - RAMP // 5], 2).astype(np.uint8)
XMP = b'<x xmlns:tiff="t" tiff:Orientation="6"/>'


def model(path: Path, *, name: str = "images", outputs: int = 3, **notes: Any) -> str:
    """Write a network whose logits are the means of an image's channels; a note None is left out."""
    form = [1, "h", "w", outputs]
    nodes = [
        helper.make_node("Cast", [name], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["levels"], ["logits"], axes=[1, 2], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info(name, TensorProto.UINT8, form)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, outputs])],
    )
    opset = [helper.make_opsetid("", 13)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    for key, value in (NOTES | notes).items():
        if value is not None:
            made.metadata_props.add(key=key, value=value)
    onnx.save(made, path)
    return str(path)


def pictures(folder: Path) -> None:
    """Write images of every mode, with and without tags of a turn, and what is no image."""
    folder.mkdir()
    colour = Image.fromarray(COLOURS)
    turned = Image.Exif()
    turned[0x0112] = 6
    for ending in ("jpg", "png", "webp", "tif"):
        colour.save(folder / f"plain.{ending}")
        colour.save(folder / f"turned.{ending}", exif=turned)
    colour.save(folder / "xmp.jpg", xmp=XMP)
    colour.save(folder / "xmp.webp", xmp=XMP)
    colour.save(folder / "damaged.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    for mode in ("L", "LA", "P", "RGBA", "1"):
        colour.convert(mode).save(folder / f"{mode}.png")
    colour.quantize(9).save(folder / "clear.png", transparency=2)
    colour.convert("CMYK").save(folder / "CMYK.jpg")
    colour.save(folder / "a.gif")
    colour.save(folder / "a.bmp")
    deep = Image.fromarray((RAMP * 50).astype(np.uint16))
    for name in ("16.png", "16.tif", "16.pgm"):
        deep.save(folder / name)
    Image.fromarray((RAMP * 500_000).astype(np.int32)).save(folder / "32.tif")
    Image.fromarray(RAMP.astype(np.float32)).save(folder / "float.tif")
    colour.convert("LAB").save(folder / "lab.tif")
    colour.save(folder / "raw.tif", tiffinfo={254: 1})
    whole = (folder / "plain.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("hi")
    (folder / "empty.png").touch()
    os.mkfifo(folder / "pipe.jpg")
    (folder / "gone.png").symlink_to(folder / "nowhere")


@pytest.mark.filterwarnings("ignore:.*EXIF")  # as the program does
@pytest.mark.parametrize("exif", ["stored", "shown"])
def test_pixels_are_those_of_predict(exif: str, tmp_path: Path) -> None:
    """And what it does not read, --predict does not read either."""
    pictures(tmp_path / "new")
    data = build({"manifest_dir": tmp_path / "cache", "exif": exif}).data
    found = open_unlabelled(tmp_path / "new", data, content="images")
    turns = found.split.columns.exif
    read = {}
    for name, sample in zip(found.names, found.samples.tolist(), strict=True):
        wanted: Array | None = None
        if sample >= 0:
            turn = 0 if turns is None else int(turns[sample])
            try:
                wanted = np.asarray(shown_rgb(found.split.source.read(sample), turn))
            except (OSError, ValueError):  # cut.jpg
                wanted = None
        try:
            pixels = serve_example.pixels_of(name, exif == "shown")
        except (OSError, ValueError):
            assert wanted is None, name
            continue
        assert wanted is not None, name
        assert pixels.tolist() == wanted.tolist(), name
        read[Path(name).name] = pixels
    # by hand: a quarter turn by EXIF and not by XMP; the high eight bits of sixteen; a TIFF is always shown
    plain = read["plain.png"]
    assert (plain == COLOURS).all() and (read["xmp.webp"].shape == plain.shape)
    shown = np.rot90(COLOURS, -1)
    assert (read["turned.png"] == (shown if exif == "shown" else COLOURS)).all()
    assert (read["turned.tif"] == shown).all()
    assert (read["16.png"] == (RAMP * 50 >> 8)[..., None]).all()
    unread = {Path(name).name for name in found.names} - read.keys()
    broken = {"cut.jpg", "empty.png", "gone.png", "notes.txt", "pipe.jpg"}
    assert unread == broken | {"32.tif", "float.tif", "raw.tif"}


def served(*words: object) -> subprocess.CompletedProcess[str]:
    """Run it as users do; one that hangs is ended."""
    command = [sys.executable, "scripts/serve_example.py", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )


def test_each_file_has_a_row(tmp_path: Path) -> None:
    pictures(tmp_path / "new")
    files = sorted((tmp_path / "new").iterdir())
    said = served(model(tmp_path / "m.onnx"), *files, tmp_path / "none.png")
    assert (said.returncode, said.stderr) == (0, "")
    table = [*csv.DictReader(said.stdout.splitlines())]
    assert [row["path"] for row in table] == [*map(str, files), f"{tmp_path}/none.png"]
    assert all(bool(row["class"]) != bool(row["error"]) for row in table)
    rows = {Path(row["path"]).name: row for row in table}
    assert rows["plain.png"]["class"] == "abc"[COLOURS.mean((0, 1)).argmax()]
    assert rows["32.tif"]["error"].startswith("has 32 bits a component")
    assert (
        rows["pipe.jpg"]["error"]
        == rows["none.png"]["error"]
        == "no regular file is there"
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"task": "detection"}, "is of --task detection, and this example"),
        (
            dict.fromkeys(NOTES),
            "is no ONNX file of scripts.export (KeyError('classes'))",
        ),
        ({"classes": "3"}, "is no ONNX file of scripts.export"),
        ({"preprocessing": '{"exif": "upright"}'}, "is no ONNX file of scripts.export"),
        ({"probabilities": "none"}, "is no ONNX file of scripts.export"),
        ({"name": "input"}, "is no ONNX file of scripts.export"),
    ],
    ids=json.dumps,
)
def test_a_file_of_another_kind_is_one_line(
    how: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = model(tmp_path / "m.onnx", **how)
    with pytest.raises(SystemExit) as ended:
        serve_example.main(file, "a.png")
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith(f"serve_example: {file} {said}")
