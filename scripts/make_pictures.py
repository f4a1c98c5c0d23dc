"""`python -m scripts.make_pictures [NAME ...]`: draws the pictures of README and docs from demo runs on this machine.

What a picture is of is run once, and lies in runs/, PHOTOS/ and NEW/ from then on: delete it there to have it anew. Two
cores take about half an hour. runs/rates has to be there, since a GPU makes it: docs/benchmarks/train.md has its
command. Needs the Debian packages chromium and curl. A picture is in docs/images, and beside it NAME-dark
where it has a ground.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

from saturate.contracts import Array

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SAID = ROOT / "runs" / "said"
"""What each of RUNS has printed."""
COLUMNS = 92
"""Width of a terminal, in letters."""
WIDEST = 1100
"""Pixels of a picture, at most."""
WHITE = 205
"""Level of a sheet's ground, at least: JPEG's is not even."""
INK, PAPER = "#e6edf3", (13, 17, 23)
"""GitHub's, of what is dark."""
RUNS = {
    "drawn": """python -m scripts.demo_set runs/drawn --train-per-class 100 \\
  --val-per-class 5
mv runs/drawn/train PHOTOS && mv runs/drawn/val NEW""",
    "photos": """python train.py --data PHOTOS --val-share 0.2 \\
  --config configs/demo.yaml --output runs/photos""",
    "mistake": "python train.py --data PHOTOS --bach-size 8",
    "predicted": """python train.py --predict NEW --resume runs/photos/best.pt \\
  --output runs/new""",
    "exported": "python -m scripts.export runs/photos/best.pt",
    "served": "python scripts/serve_example.py runs/photos/best.onnx NEW/ring/*",
    "boxes": """python -m scripts.demo_coco runs/shapes
python train.py --config configs/coco/demo.yaml --data runs/shapes --epochs 8 \\
  --output runs/boxes
python train.py --predict runs/shapes/val2017 --resume runs/boxes/best.pt \\
  --output runs/found""",
    "sharper": """python -m scripts.demo_superres runs/textures
python train.py --config configs/superres/demo.yaml --data runs/textures \\
  --epochs 20 --output runs/sharper""",
    "motions": """python -m scripts.demo_videos runs/videos --train-per-class 60 \\
  --val-per-class 12
python train.py --config configs/video/demo.yaml --data runs/videos --epochs 8 \\
  --output runs/motions""",
}
"""Name -> commands, as a person types them in a checkout; a picture needs those before its own."""
Drawn = Image.Image | bytes
"""A picture, or what is its file as it is."""


class Picture(NamedTuple):
    """A file of docs/images, and how it is drawn."""

    alt: str
    draw: Callable[..., Drawn]  # gets `about`, and whether it is to be dark
    about: tuple[Any, ...]
    has_ground: bool = True


def printed(name: str) -> str:
    """Return what the commands of a name have printed, which are run where they were not."""
    path = SAID / f"{name}.txt"
    if not path.exists():
        ended = subprocess.run(
            ["bash", "-ec", f"exec 2>&1\n{RUNS[name]}"],
            cwd=ROOT,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "COLUMNS": "80",
            },
            capture_output=True,
            text=True,
            check=name != "mistake",
        )
        SAID.mkdir(parents=True, exist_ok=True)
        path.write_text(ended.stdout, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def terminal(name: str, pattern: str, dark: bool) -> Drawn:
    """Draw what the commands of a name have printed and a pattern finds; if it begins with ".", behind the commands."""
    shown = Text(re.findall(pattern, printed(name), re.MULTILINE | re.DOTALL)[0])
    if pattern.startswith("."):
        shown = Text.assemble((f"$ {RUNS[name]}\n", "bold"), shown)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(shown)
    # a viewer's own letters: those that rich names are fetched from the net
    form = re.sub(r"@font-face {{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    theme = SVG_EXPORT_THEME if dark else DEFAULT_TERMINAL_THEME
    svg = console.export_svg(title="", theme=theme, code_format=form, unique_id=name)
    return svg.replace("rgba(255,255,255,0.35)", "#8886").encode()


def chart(path: str, dark: bool) -> Drawn:
    """Take a chart without its ground, in the ink of the page."""
    svg = (ROOT / path).read_text(encoding="utf-8").replace("#ffffff", "none")
    if dark:
        svg = svg.replace("#000000", INK).replace("<svg ", f'<svg fill="{INK}" ')
    return svg.encode()


def page(path: str, width: int, height: int, dark: bool) -> Drawn:
    """Take a picture of a page as a browser shows it."""
    with tempfile.TemporaryDirectory() as work:
        flags = f"--headless --no-sandbox --hide-scrollbars --user-data-dir={work}"
        # 0 and 1 are Blink's numbers for dark and light
        flags += f" --blink-settings=preferredColorScheme={int(not dark)}"
        flags += f" --window-size={width},{height} --screenshot={work}/page.png"
        command = ["chromium", *flags.split(), (ROOT / path).as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        return Image.open(f"{work}/page.png").convert("RGB")


def board(
    folder: str, tab: str, height: int, corner: tuple[int, int], dark: bool
) -> Drawn:
    """Take a page of TensorBoard over a folder of runs, from a corner (x, y) on."""
    with tempfile.TemporaryDirectory() as work:
        asked = {"PAGES": tab, "HEIGHT": f"{height}", "DARK": f"{dark:d}"}
        command = ["scripts/tensorboard_pictures.sh", folder, work, "1280"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **asked}, check=True)
        shot = Image.open(f"{work}/{tab}-1280.png").convert("RGB")
        return shot.crop((*corner, *shot.size))


def sheet(
    path: str, across: int, down: int, first: int, shown: int, dark: bool
) -> Drawn:
    """Take some of the `down` rows of a sheet of pictures (system/drawing.py).

    Of a dark one the ground and the letters are dark, and the pictures as they are.
    """
    pixels = np.asarray(Image.open(ROOT / path).convert("RGB"))
    tall, wide = len(pixels) // down, pixels.shape[1] // across
    pixels = pixels[first * tall : (first + shown) * tall]
    if not dark:
        return Image.fromarray(pixels)
    turned = darkened(pixels)
    for row, column in np.ndindex(shown, across):
        cell = np.s_[row * tall : (row + 1) * tall, column * wide : (column + 1) * wide]
        inked: Any = (pixels[cell] < WHITE).any(2)
        rows = np.flatnonzero(inked.any(1))
        # below the picture is a white row, and then come letters
        height = np.argmin(inked[rows[0] :].any(1))
        columns = np.flatnonzero(inked[rows[0] : rows[0] + height].any(0))
        box = np.s_[rows[0] : rows[0] + height, columns[0] : columns[-1] + 1]
        turned[cell][box] = pixels[cell][box]
    return Image.fromarray(turned)


def whole(path: str, dark: bool) -> Drawn:
    """Take a picture as it is; a dark one is a chart, which has no pictures in it."""
    pixels = np.asarray(Image.open(ROOT / path).convert("RGB"))
    return Image.fromarray(darkened(pixels) if dark else pixels)


def darkened(pixels: Array) -> Array:
    """Return uint8 [H, W, 3] with what is light dark and the other way round, in the same hues."""
    levels = pixels.astype(int)
    sums = levels.max(2, keepdims=True) + levels.min(2, keepdims=True)
    return np.maximum(levels + 255 - sums, PAPER).astype(np.uint8)


def encoded(drawn: Drawn, suffix: str) -> bytes:
    """Return a picture as a small file: PNG of 256 colours, or JPEG."""
    if isinstance(drawn, bytes):
        return drawn
    drawn.thumbnail((WIDEST, 2 * WIDEST))
    buffer = io.BytesIO()
    if suffix == ".png":
        drawn.quantize(256).save(buffer, "PNG", optimize=True)
    else:
        drawn.save(buffer, "JPEG", quality=80, optimize=True)
    return buffer.getvalue()


PICTURES = {
    "rates.svg": Picture(
        "ResNet-18 on one H100: images a second by loader, beside the same training by hand",
        chart,
        ("docs/images/rates.svg",),
    ),
    "training.svg": Picture(
        "The first lines of a training: its data, its settings, a validation",
        terminal,
        ("photos", r".*?(?=^epoch 2)"),
    ),
    "table.svg": Picture(
        "The closing table: accuracy, rate, both ceilings, what bound the run, what to change first",
        terminal,
        ("photos", r"^resnet18 \|.*"),
    ),
    "hparams.png": Picture(
        "TensorBoard's HPARAMS: two networks, three batch sizes and three loaders on one machine",
        board,
        ("runs/rates", "hparams", 850, (261, 65)),
    ),
    "scalars.png": Picture(
        "TensorBoard's curves of a run",
        board,
        ("runs/photos", "scalars", 780, (0, 0)),
    ),
    "report.png": Picture(
        "report.html: the best figure, what to change first, the closing table",
        page,
        ("runs/photos/report.html", 1000, 800),
    ),
    "phone.png": Picture(
        "The same page on a phone", page, ("runs/photos/report.html", 390, 844)
    ),
    "results.svg": Picture(
        "Loss, top-1, learning rate and rate over the epochs, the best one with a star",
        chart,
        ("runs/photos/results.svg",),
    ),
    "confusion.png": Picture(
        "A row a class, a column an answer: numbers and shares, right in blue, wrong in orange",
        whole,
        ("runs/photos/confusion.png",),
    ),
    "mistakes.jpg": Picture(
        "The most confident mistakes: label, answer and file below each",
        sheet,
        ("runs/photos/mistakes.png", 5, 4, 0, 2),
    ),
    "train-batch.jpg": Picture(
        "The first training batch as the network gets it, with the names of its classes",
        sheet,
        ("runs/photos/train_batch.jpg", 4, 4, 0, 2),
    ),
    "val-batch.jpg": Picture(
        "Images of a validation: the label, and below it the answer, blue where it is right",
        sheet,
        ("runs/photos/val_batch.jpg", 2, 4, 0, 2),
    ),
    "boxes.jpg": Picture(
        "Images of a validation of a detector: to the left what is there, to the right what was found",
        sheet,
        ("runs/boxes/val_batch.jpg", 2, 4, 1, 1),
    ),
    "found.jpg": Picture(
        "What a detector found in a new image: boxes with class and score",
        whole,
        ("runs/found/drawn/000000200045.jpg",),
        has_ground=False,
    ),
    "sharper.jpg": Picture(
        "Crops of a validation: bicubic interpolation, the network's, the original",
        sheet,
        ("runs/sharper/val_batch.jpg", 3, 3, 0, 2),
    ),
    "motions.jpg": Picture(
        "Videos of a validation: four frames of each, its class, and below it the answer",
        sheet,
        ("runs/motions/val_batch.jpg", 2, 4, 1, 2),
    ),
    "mistake.svg": Picture(
        "A mistyped flag: one line, with the one that was meant",
        terminal,
        ("mistake", ".*"),
    ),
}
"""Name in docs/images -> the picture."""


if __name__ == "__main__":
    for run in RUNS:
        printed(run)
    for name in sys.argv[1:] or PICTURES:
        picture = PICTURES[name]
        stem, suffix = os.path.splitext(name)
        for dark in (False, True)[: 1 + picture.has_ground]:
            path = IMAGES / f"{stem}{'-dark' * dark}{suffix}"
            path.write_bytes(encoded(picture.draw(*picture.about, dark), suffix))
            print(f"{path}: {path.stat().st_size:,} bytes")
