"""`python -m scripts.export RUN/best.pt --format onnx`: a trained classifier as one file, for other programs.

    onnx    for onnxruntime, TensorRT and others; needs the packages onnx, onnxscript and onnxruntime
    pt2     torch.export's archive, for PyTorch without this repository

The file takes images as they are decoded, uint8 [B, H, W, 3] of any size, and resizes, crops and normalises them as
the validation did. It gives logits, fp32 [B, C], for any B. Names of the classes and the preprocessing are metadata
of the file. It is run on real images beside PyTorch, and the largest difference of a logit is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from contracts import UserError, utf8
from dataset.open import open_splits
from dataset.unlabelled import open_unlabelled
from engine.checkpoint import Resume
from loaders.images.decoders import pillow_rgb
from models import Unusable
from report.console import Console
from scripts import Parser, exit_code
from scripts._preprocessing import FILTERS, Framing, Preprocessed
from settings.config import given, parse
from tasks import architecture, kind_of
from tasks._plans import image_policies
from tasks.initial_state import Start

NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}
"""--format -> packages that it needs beside PyTorch."""
CHECKED = 16
"""Images on which the file is compared with PyTorch."""
TOLERANCE = 0.01
"""Largest difference of a logit, as a share of the largest logit, with which a file is right.

A sum in another order may round a pixel to the next grey level."""
Run = Callable[[np.ndarray], np.ndarray]


def load(
    checkpoint: Path, *, arch: str | None = None
) -> tuple[Preprocessed, Start, tuple[str, ...], str]:
    """Return the network with its preprocessing, its settings, its classes and its architecture.

    `arch` is --arch. Raises UserError, and Unusable.
    """
    if not checkpoint.is_file():
        raise UserError(f"{checkpoint}: is no file; name best.pt of a run")
    words = [
        "--evaluate",
        "true",
        "--resume",
        str(checkpoint),
        *(["--arch", arch] if arch else []),
    ]
    asked = parse(words)
    resume = Resume.find(asked.run)
    start = Start.of(
        asked, given(words), resume.content, path=resume.path, origin=str(checkpoint)
    )
    config = start.config
    kind = kind_of(config)
    if kind.name != "classification":
        raise UserError(
            f"{checkpoint}: --task {kind.name} is not exported, image classifiers alone are"
        )
    registry, arch = architecture(kind, config.model.arch)
    native = start.native(registry, arch)
    if native.interpolation not in FILTERS:
        known = " or ".join(FILTERS)
        raise UserError(
            f"{checkpoint}: --interpolation {native.interpolation} is not exported, {known} is: its figures "
            "with one of these are those of --evaluate true --interpolation NAME"
        )
    _, policy = image_policies(config.augmentation, native)
    framing = Framing(
        window="stretch" if policy.window == "stretch" else "center",
        resize=policy.resize,
        image_size=policy.image_size,
        mean=native.mean,
        std=native.std,
        interpolation=native.interpolation,
        exif=config.data.exif,
    )
    heads = kind.building(config, SimpleNamespace(classes=start.trained))
    shape = (2, 3, native.size, native.size)
    network = start.network(registry, arch, shape, heads, Console(enabled=False)).eval()
    return Preprocessed(network, framing).eval(), start, start.trained, arch


def images(start: Start, named: Path | None) -> Iterator[np.ndarray]:
    """Yield a few real images, uint8 [H, W, 3]: of a folder, or of the checkpoint's validation data.

    Raises UserError where there are none.
    """
    data = start.config.data
    if named is not None:
        split = open_unlabelled(named, data, content="images", flag="--images").split
    elif data.data is not None:
        console = Console(enabled=False)
        split = open_splits(data, loader="torchvision", evaluate=True, console=console)[
            "val"
        ]
    else:
        raise UserError("there are no images to check the file on: --images FOLDER")
    for sample in range(len(split.columns)):
        try:
            yield np.asarray(pillow_rgb(split.source.read(sample)))
        except Exception:  # PIL raises whatever the bytes make it stumble over
            continue


def as_onnx(
    module: nn.Module, example: torch.Tensor, shapes: Any, about: dict[str, str]
) -> tuple[bytes, Run]:
    """Return an ONNX file's content and what runs it. `shapes` are the axes of the input that may vary."""
    import onnx
    import onnxruntime

    with _silent():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=(shapes,),
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, about)
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(batch: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {"images": batch})[0])

    return content, run


def as_pt2(
    module: nn.Module, example: torch.Tensor, shapes: Any, about: dict[str, str]
) -> tuple[bytes, Run]:
    """Return torch.export's archive, with the metadata as metadata.json, and what runs it."""
    # in memory: on a full disk PyTorch's own writer ends the process
    archive = io.BytesIO()
    metadata = {"metadata.json": json.dumps(about)}
    with _silent():
        program = torch.export.export(module, (example,), dynamic_shapes=(shapes,))
        torch.export.save(program, archive, extra_files=metadata)
        archive.seek(0)
        loaded = torch.export.load(archive).module()

    def run(batch: np.ndarray) -> np.ndarray:
        return np.asarray(loaded(torch.from_numpy(batch)).detach())

    return archive.getvalue(), run


FORMATS = {"onnx": as_onnx, "pt2": as_pt2}
"""--format -> (module, example, axes that vary, metadata) -> the file's content, and what runs it."""


def export(options: argparse.Namespace, console: Console) -> int:
    """Write the file and check it; return 1 where it does not compute what PyTorch does. Raises UserError."""
    needs = NEEDS[options.format]
    lacking = [name for name in needs if importlib.util.find_spec(name) is None]
    if lacking:
        raise UserError(
            f"--format {options.format} needs packages: pip install {' '.join(lacking)}"
        )
    whole, start, classes, arch = load(options.checkpoint, arch=options.arch)
    weights = "the average of its weights" if start.of_average else "its network"
    console.info(f"{options.checkpoint}: {weights} is exported")
    side = whole.framing.image_size
    axes = {
        0: torch.export.Dim("batch", min=1, max=1 << 16),
        1: torch.export.Dim("height", min=2, max=1 << 15),
        2: torch.export.Dim("width", min=2, max=1 << 15),
    }
    example = (255 * torch.rand(2, side + 13, side + 7, 3)).to(torch.uint8)
    path = options.output or options.checkpoint.with_suffix(f".{options.format}")
    if path.exists() and path.samefile(options.checkpoint):
        raise UserError(f"--output {path} is the checkpoint itself; name another file")
    separate = start.config.optimisation.loss == "bce" or start.config.data.multi_label
    about = {
        "classes": json.dumps([utf8(name) for name in classes]),
        "arch": arch,
        "probabilities": "sigmoid" if separate else "softmax",
        "preprocessing": json.dumps({"where": "inside", **asdict(whole.framing)}),
    }
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-")
    with temporary as folder:
        # a file that is not whole, or wrong, never has the name
        new = Path(folder) / path.name
        content, run = FORMATS[options.format](whole, example, axes, about)
        count, largest, scale = compared(run, whole, images(start, options.images))
        share = largest / max(scale, 1e-6)
        difference = f"{largest:.2g}, where the largest logit is {scale:.3g}"
        console.info(
            f"largest difference from PyTorch in fp32 over {count} images: {difference}"
        )
        if share > TOLERANCE:
            most = f"{TOLERANCE:.0%} of the largest logit"
            console.warn(f"{path} is not written: it may differ by {most} at most")
            return 1
        with _writing(path):
            new.write_bytes(content)
            new.replace(path)
    console.info(f"{path}: {len(classes)} classes")
    return 0


def compared(
    run: Run, whole: Preprocessed, samples: Iterator[np.ndarray]
) -> tuple[int, float, float]:
    """Return how many images were compared, the largest difference of a logit, and the largest logit."""
    count = 0
    largest = scale = 0.0
    for pixels in islice(samples, CHECKED):
        # of one, and of two
        batch = np.stack([pixels, pixels[:, ::-1]] if count % 2 else [pixels])
        with torch.inference_mode():
            expected = whole(torch.from_numpy(batch)).numpy()
            difference = np.abs(run(batch) - expected).max()
        largest = max(largest, float(np.nan_to_num(difference, nan=np.inf)))
        scale = max(scale, float(np.abs(expected).max()))
        count += 1
    if not count:
        raise UserError(
            "none of the images to check the file on can be read: --images FOLDER"
        )
    return count, largest, scale


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise UserError for what cannot be written inside: the user knows `path`, and no temporary name."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}; choose another --output"
        ) from None


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the exporters' notes to themselves inside."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0; 1 where the file is wrong, 2 for a user's mistake, 130 on Ctrl-C."""
    parser = Parser("export", __doc__)
    parser.add_argument("checkpoint", type=Path, help="best.pt of a run")
    parser.add_argument(
        "--arch",
        help="package.module:function, where a function of yours built the network",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="onnx", help="default: onnx"
    )
    parser.add_argument("--output", type=Path, help="default: beside the checkpoint")
    parser.add_argument(
        "--images", type=Path, help="a folder to check on; default: the validation data"
    )
    options = parser.parse_args(arguments)
    return exit_code("export", lambda: export(options, Console()), Unusable)


if __name__ == "__main__":
    sys.exit(main())
