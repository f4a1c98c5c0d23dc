"""`python scripts/serve_example.py MODEL.onnx IMAGE ...`: what an exported classifier says of images.

It needs onnxruntime, NumPy and Pillow, and nothing of this repository: copy it. The answers are those of
train.py --predict, but for rounding: the file computes in fp32.
"""

import csv
import json
import os
import re
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last four in full width
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def inert(cell: str) -> str:
    """Return a name as a CSV may have it: UTF-8, and a spreadsheet runs a text that begins like a formula."""
    cell = os.fsencode(cell).decode("utf-8", "backslashreplace")
    is_formula = cell.startswith(FORMULA) and not NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def main(model: str, *images: str) -> None:
    if folder := next(filter(os.path.isdir, images), None):
        print(
            f"serve_example: {folder} is a folder, and it takes files", file=sys.stderr
        )
        sys.exit(2)
    try:
        session = onnxruntime.InferenceSession(
            model, providers=onnxruntime.get_available_providers()
        )
        about = session.get_modelmeta().custom_metadata_map
        classes = json.loads(about["classes"])
    # a missing file and a damaged one have classes of their own
    except Exception as error:
        first = str(error).partition("\n")[0]
        said = f"{model} is no ONNX file of scripts.export ({first})"
        print(f"serve_example: {said}", file=sys.stderr)
        sys.exit(2)
    if (task := about.get("task", "classification")) != "classification":
        said = f"{model} is of --task {task}, and this example of image classifiers"
        print(f"serve_example: {said}", file=sys.stderr)
        sys.exit(2)
    table = csv.writer(sys.stdout)
    table.writerow(["path", "class", "probability", "error"])
    for path in images:
        try:
            picture: Image.Image = Image.open(path)
            if json.loads(about["preprocessing"])["exif"] == "shown":
                picture = ImageOps.exif_transpose(picture)
            if picture.mode.startswith("I"):  # grey of 16 bits, which Pillow would clip
                picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
            pixels = np.asarray(picture.convert("RGB"))
        # of damaged files
        except (
            OSError,
            SyntaxError,
            ValueError,
            Image.DecompressionBombError,
        ) as error:
            table.writerow([inert(path), "", "", error])
            continue
        logits = session.run(["logits"], {"images": pixels[None]})[0][0]
        shares = np.exp(logits - np.logaddexp.reduce(logits))
        if about["probabilities"] == "sigmoid":  # --loss bce: each class has its own
            shares = 1 / (1 + np.exp(-logits))
        best = int(logits.argmax())  # of shares several may be rounded to 1
        table.writerow([inert(path), inert(classes[best]), f"{shares[best]:.6f}", ""])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print("serve_example: MODEL.onnx IMAGE ... are needed", file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
