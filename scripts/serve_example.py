"""`python scripts/serve_example.py MODEL.onnx IMAGE ...`: what an exported classifier says of images.

It needs onnxruntime, NumPy and Pillow, and nothing of this repository: copy it. The answers are those of
train.py --predict, but for rounding: the file computes in fp32.
"""

import csv
import json
import os
import re
import sys
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last four in full width
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def inert(cell: str) -> str:
    """Return a name as a CSV may have it: UTF-8, and a spreadsheet runs a text that begins like a formula."""
    cell = os.fsencode(cell).decode("utf-8", "backslashreplace")
    is_formula = cell.startswith(FORMULA) and not NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def opened(model: str) -> tuple[Any, list[str], bool, bool]:
    """Return the session, the classes, if EXIF turns images, and if each class has a probability of its own.

    Raises ValueError for a file that scripts.export has not made of an image classifier.
    """
    if not os.path.isfile(model):  # a pipe would be waited for
        raise ValueError("is no ONNX file that is there")
    providers = onnxruntime.get_available_providers()
    try:
        session = onnxruntime.InferenceSession(model, providers=providers)
        about = session.get_modelmeta().custom_metadata_map
        task = about.get("task", "classification")
        if task == "classification":
            classes = [str(name) for name in json.loads(about["classes"])]
            exif = json.loads(about["preprocessing"])["exif"]
            (given,) = session.get_inputs()
            known = (given.name, given.type) == ("images", "tensor(uint8)")
            if not known or exif not in ("stored", "shown"):
                raise ValueError(f"input {given.name} of {given.type}, EXIF {exif!r}")
            is_binary = {"softmax": False, "sigmoid": True}[about["probabilities"]]
            return session, classes, exif == "shown", is_binary
    # a damaged file has a class of onnxruntime's own, and notes of another program may be anything
    except Exception as error:
        first = repr(error).partition("\\n")[0]
        raise ValueError(f"is no ONNX file of scripts.export ({first})") from None
    raise ValueError(f"is of --task {task}, and this example of image classifiers")


def pixels_of(path: str, is_turned: bool) -> np.ndarray:
    """Return an image's pixels, uint8 [H, W, 3], as --predict takes them. Raises whatever Pillow raises."""
    if not os.path.isfile(path):  # a pipe would be waited for
        raise ValueError("no regular file is there")
    picture: Image.Image
    with Image.open(path, formats=FORMATS) as picture:
        tags = getattr(picture, "tag_v2", {})  # of TIFF, which Pillow turns itself
        is_deep = picture.mode.startswith("I")  # grey, which Pillow would clip
        depth = max(tags.get(258, (16 if is_deep else 8,)))
        if depth > 16 or picture.mode == "F":
            raise ValueError(f"has {max(depth, 32)} bits a component: save 8 or 16")
        if tags.get(254, 0) & 1:
            raise ValueError("begins with a preview, as camera raw does")
        exif = b"" if tags or not is_turned else picture.info.get("exif", b"")
        picture.load()
        if is_deep:
            levels = np.asarray(picture).clip(0, (1 << depth) - 1) >> (depth - 8)
            picture = Image.fromarray(levels.astype(np.uint8))
        # a new image, without XMP: an orientation there is not EXIF's
        picture = Image.fromarray(np.asarray(picture.convert("RGB")))
    with suppress(Exception):  # damaged EXIF costs no image
        picture.getexif().load(exif)
        picture = ImageOps.exif_transpose(picture)
    return np.asarray(picture)


def main(model: str, *images: str) -> None:
    folder = next(filter(os.path.isdir, images), None)
    try:
        if folder:
            raise ValueError("is a folder, and it takes files")
        session, classes, is_turned, is_binary = opened(model)
    except ValueError as error:
        print(f"serve_example: {folder or model} {error}", file=sys.stderr)
        sys.exit(2)
    table = csv.writer(sys.stdout)
    table.writerow(["path", "class", "probability", "error"])
    for path in images:
        try:
            batch = pixels_of(path, is_turned)[None]
            logits = session.run(["logits"], {"images": batch})[0][0]
            if len(logits) != len(classes) or not np.isfinite(logits).all():
                raise ValueError(f"outputs {logits[:5]} of {len(classes)} classes")
        # of damaged files Pillow raises OSError, SyntaxError, ValueError, struct.error and more
        except Exception as error:
            table.writerow([inert(path), "", "", inert(str(error))])
            continue
        shares = np.exp(logits - np.logaddexp.reduce(logits))
        if is_binary:  # --loss bce: each class has its own
            shares = 1 / (1 + np.exp(-logits))
        best = int(logits.argmax())  # of shares several may be rounded to 1
        table.writerow([inert(path), inert(classes[best]), f"{shares[best]:.6f}", ""])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print("serve_example: MODEL.onnx IMAGE ... are needed", file=sys.stderr)
        sys.exit(2)
    warnings.simplefilter("ignore")  # Pillow's, of damaged tags
    main(*sys.argv[1:])
