"""A whole run of super-resolution: figures, predictions, ranks."""

from __future__ import annotations

import shutil

import numpy as np
from PIL import Image, ImageOps

from scripts import demo_superres
from tests.end_to_end.runs import Runner, rows, summary
from tests.unit.test_report_tensorboard import read

SMALL = (
    """--task superres --patch-size 16 --patches-per-image 4 --batch-size 4 --workers 1
    --precision fp32 --epochs 2 --warmup-epochs 0 --lr 0.01 --log-every 1
    --ceilings false""",
)

EXIF_ORIENTATION = 274


def test_a_run_and_its_evaluation_on_two_ranks(train: Runner) -> None:
    """The set has six pictures to train on, and three to validate."""
    textures = train.cwd / "data"
    demo_superres.write(textures, 6, 3, progress=False, processes=1)
    of_set = (*SMALL, "--data", textures)
    said = train(*of_set, "--output run").done().out
    found = summary(train.cwd / "run")
    wanted = {
        "task": "superres",
        "loader": "paired",
        "steps": 12,
        "samples": 48,
        "image_size": 8,
    }
    assert {name: found[name] for name in wanted} == wanted
    val = found["validation"]
    assert (
        val["samples"] == 3 and 20 < val["psnr_bicubic"] < 40 and 0 < val["ssim"] <= 1
    )
    assert "PSNR of bicubic" in said and (train.cwd / "run/best.pt").exists()
    board = read(train.cwd / "run")
    assert {"val/psnr", "val/psnr_bicubic"} <= set(board.Tags()["scalars"])
    assert {"val/crops", "augmented"} <= set(board.Tags()["images"])

    photos = train.cwd / "photos"
    shutil.copytree(textures / "val", photos)
    (photos / "notes.txt").write_text("hi")
    predicted = train(
        "--predict",
        photos,
        "--resume run/best.pt --workers 0 --output new",
    ).done()
    assert "transparent" not in predicted.out and "8 bits" not in predicted.out
    *table, broken = rows(train.cwd / "new/predictions.csv")
    assert (
        len(table) == 3
        and "no known image format" in broken["error"]
        and not broken["enlarged"]
    )
    for row in table:
        given, made = (
            Image.open(row["path"]),
            Image.open(train.cwd / "new" / row["enlarged"]),
        )
        assert made.size == (2 * given.width, 2 * given.height)
        interpolated = np.asarray(
            given.resize(made.size, Image.Resampling.BICUBIC), np.float64
        )
        assert np.corrcoef(np.asarray(made).ravel(), interpolated.ravel())[0, 1] > 0.9

    assert train.evaluated(2, "--data", textures) == val

    # the same pixels with what a phone, a logo, a scanner and a palette add
    others = train.cwd / "others"
    others.mkdir()
    plain = Image.open(table[0]["path"]).crop((0, 0, 40, 30))
    plain.save(others / "0-plain.png")
    turned = Image.Exif()
    turned[EXIF_ORIENTATION] = 6
    plain.save(others / "1-phone.png", exif=turned)
    plain.putalpha(Image.linear_gradient("L").resize(plain.size))
    plain.save(others / "2-logo.png")
    grey = np.asarray(plain.convert("L"), np.uint16)
    Image.fromarray(grey * 257).save(others / "3-scan.png")
    Image.fromarray(grey.astype(np.uint8)).save(others / "4-grey.png")
    few = plain.convert("RGB").quantize(16)
    few.save(others / "5-palette.png", transparency=3)
    few.convert("RGB").save(others / "6-of-palette.png")
    predicted = train(
        "--predict", others, "--resume run/best.pt --workers 0 --output enlarged"
    ).done()
    assert "is transparent, is dropped: 2 of 7 images" in predicted.out
    assert "the 8 highest are enlarged: 1 of 7 images" in predicted.out
    files = [
        train.cwd / "enlarged" / row["enlarged"]
        for row in rows(train.cwd / "enlarged/predictions.csv")
    ]
    enlarged = [Image.open(file).copy() for file in files]
    assert not enlarged[1].getexif()
    tagged = enlarged[0].copy()
    tagged.getexif()[EXIF_ORIENTATION] = 6
    enlarged[0] = ImageOps.exif_transpose(tagged)
    pixels = [np.asarray(image) for image in enlarged]
    np.testing.assert_array_equal(pixels[1], pixels[0])
    np.testing.assert_array_equal(pixels[2], np.asarray(tagged))
    np.testing.assert_array_equal(pixels[3], pixels[4])
    np.testing.assert_array_equal(pixels[5], pixels[6])
