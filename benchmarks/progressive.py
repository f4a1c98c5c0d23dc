"""`python -m benchmarks progressive IMAGES`: how many times as long a progressive JPEG decodes as a baseline one.

The same pixels are written in both ways, by Pillow, and decoded by it on one core. A row of its table is of one quality
and size: the time of all files by that of all others, the fastest of five decodes each.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path

import PIL
from PIL import Image

from saturate.contracts import UserError
from saturate.run.program import Parser
from saturate.system.exit_codes import of_program

QUALITIES = (75, 85, 95)
SIZES = (0.5, 1.0, 2.0)
"""Times the sides of the images as they are."""


def decoded_s(content: bytes) -> float:
    """Return the CPU seconds of a decode, the least of five."""
    took = []
    for _ in range(5):
        began = time.process_time()
        Image.open(io.BytesIO(content)).convert("RGB")
        took.append(time.process_time() - began)
    return min(took)


def ratio(files: Sequence[Path], quality: int, size: float) -> float:
    """Return the time of all files as progressive JPEGs by that of all as baseline ones."""
    took_s = {True: 0.0, False: 0.0}
    for path in files:
        image = Image.open(path).convert("RGB")
        image = image.resize((round(image.width * size), round(image.height * size)))
        for progressive in took_s:
            file = io.BytesIO()
            image.save(file, "JPEG", quality=quality, progressive=progressive)
            took_s[progressive] += decoded_s(file.getvalue())
    return took_s[True] / took_s[False]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = Parser("progressive", __doc__)
    parser.add_argument("images", type=Path, help="folder of photographs, as JPEGs")
    parser.add_argument("--count", type=int, default=25, help="of them. Default: 25")
    options = parser.parse_args(arguments)

    def work() -> int:
        endings = (".jpg", ".jpeg")
        paths = sorted(options.images.rglob("*"))
        found = [path for path in paths if path.suffix.lower() in endings]
        if not found:
            raise UserError(f"{options.images}: no .jpg there")
        files = found[:: max(len(found) // options.count, 1)]
        print(f"Pillow {PIL.__version__}, {len(files)} images")
        print(
            "| quality | times the sides | progressive by baseline |\n| --- | --- | --- |"
        )
        for quality in QUALITIES:
            for size in SIZES:
                print(f"| {quality} | {size} | {ratio(files, quality, size):.2f} |")
        return 0

    return of_program("progressive", work)
