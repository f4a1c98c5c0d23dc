"""`python -m scripts.export RUN/best.pt --format onnx`: a trained network as one file, for other programs.

    onnx    for onnxruntime, TensorRT and others; needs the packages onnx, onnxscript and onnxruntime
    pt2     torch.export's archive, for PyTorch without this repository; of classifiers

The file takes RGB of any size as it is decoded, and resizes, crops and normalises it as the validation did:

    image classifiers    images uint8 [B, H, W, 3]      -> logits fp32 [B, C]
    video classifiers    images uint8 [B, T, H, W, 3]   -> logits fp32 [B, C], of T frames that are a clip
    detectors            images uint8 [H, W, 3], one    -> boxes fp32 [N, 4], labels int64 [N], scores fp32 [N]

Boxes are x0 y0 x1 y1 in pixels of the image, best first. Names of the classes, whose places labels are, and the
preprocessing are metadata of the file. It is run on real data, and the difference from --predict is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saturate.contracts import Array, UserError, one_line, utf8
from saturate.engine.checkpoint import Resume
from saturate.engine.distributed import ProcessWorld
from saturate.models import Unusable
from saturate.plan.clips import ClipPlan
from saturate.plan.epoch import EpochPlan
from saturate.report.console import Console
from saturate.run import _export_check, build
from saturate.run._export_check import Run, Sample, Verdict
from saturate.run._preprocessing import FILTERS, Clips, Detections, Images, Preprocessed
from saturate.run.build import Assembly, Resolved
from saturate.run.program import Parser
from saturate.settings.config import given, parse
from saturate.system.exit_codes import of_program
from saturate.tasks.initial_state import Start


@dataclass(frozen=True)
class Exported:
    """How the networks of a task are exported."""

    module: type[Preprocessed]
    read: _export_check.Read
    answered: _export_check.Answered
    check: Callable[[Run, Iterator[Sample]], Verdict]


EXPORTED = {
    "classification": Exported(
        Images, _export_check.image, _export_check.logits_of, _export_check.logits
    ),
    "detection": Exported(
        Detections,
        _export_check.image,
        _export_check.detections_of,
        _export_check.detections,
    ),
    "video": Exported(
        Clips, _export_check.clip, _export_check.logits_of, _export_check.logits
    ),
}
"""--task -> how it is exported; no other one is."""
ALONE = ("--precision", "fp32", "--batch-size", "2", "--workers", "0")
"""Flags of a network that is only looked at."""
NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}
"""--format -> packages that it needs beside PyTorch."""
VARYING = {"batch": (1, 1 << 16), "height": (2, 1 << 15), "width": (2, 1 << 15)}
"""Axis that varies -> its smallest and its largest length."""


def load(
    checkpoint: Path, *, arch: str | None = None, images: Path | None = None
) -> tuple[Preprocessed, Resolved, Iterator[Sample]]:
    """Return the network with its preprocessing, its settings, and real data to check it on.

    `arch` and `images` are --arch and --images. Raises UserError, and Unusable.
    """
    if not checkpoint.is_file():
        raise UserError(f"{checkpoint}: is no file; name best.pt of a run")
    world = ProcessWorld(torch.device("cpu"))
    settings = require_exportable(build.resolve(started(checkpoint, arch), world))
    exported = EXPORTED[settings.kind.name]
    assembly = assembled(settings, images, world)
    settings, network = assembly.settings, assembly.module.eval()
    plan = assembly.val_plan
    assert isinstance(plan, EpochPlan)
    pixels = {
        "mean": settings.native.mean,
        "std": settings.native.std,
        "interpolation": settings.native.interpolation,
        "exif": settings.config.data.exif,
    }
    framing = exported.module.framing_of(plan.policy, pixels)
    whole = exported.module(network, framing).eval()
    single = replace(plan, batch_size=1)
    if isinstance(single, ClipPlan):  # of several views a file is of the middle one
        single = replace(single, policy=replace(single.policy, clips=1, crops=1))
    samples = _export_check.predicted(
        network,
        replace(assembly.val_feed, plan=single),
        assembly.val_task,
        assembly.splits["val"],
        settings.loaders[0],
        read=exported.read,
        answered=exported.answered,
    )
    return whole, settings, samples


def started(checkpoint: Path, arch: str | None) -> Start:
    """Return the start of an evaluation of a checkpoint, in fp32 and without workers. Raises UserError."""
    words = ["--evaluate", "true", "--resume", str(checkpoint), *ALONE]
    words += ["--arch", arch] if arch else []
    asked = parse(words)
    resume = Resume.find(asked.run)
    return Start.from_config(
        asked, given(words), resume.content, path=resume.path, origin=str(checkpoint)
    )


def require_exportable(settings: Resolved) -> Resolved:
    """Return the settings. Raises UserError for a network or a preprocessing that no file can have."""
    origin, arch, native = settings.start.origin, settings.arch, settings.native
    if settings.kind.name not in EXPORTED:
        known = ", ".join(EXPORTED)
        raise UserError(
            f"{origin}: --task {settings.kind.name} is not exported, {known} are"
        )
    if not settings.kind.exports:
        raise UserError(
            f"{origin}: --arch {arch} is not exported: a file has boxes, and neither masks nor keypoints"
        )
    if native.interpolation not in FILTERS:
        known = " or ".join(FILTERS)
        raise UserError(
            f"{origin}: --interpolation {native.interpolation} is not exported, {known} is: its figures "
            "with one of these are those of --evaluate true --interpolation NAME"
        )
    return settings


def assembled(settings: Resolved, named: Path | None, world: ProcessWorld) -> Assembly:
    """Return the network, and what the file is checked on: a folder, or the checkpoint's validation data.

    Raises UserError.
    """
    console = Console(enabled=False)
    if named is not None:
        files = build.open_files(settings, named, console, flag="--images")
        asked = settings.kind.predicting(files.split, settings.start.trained, named)
        return build.build(settings, asked.splits, world, console, predicted=asked.task)
    if settings.config.data.data is None:
        raise UserError("there is no data to check the file on: --images FOLDER")
    try:
        settings, splits = build.open_data(settings, world, console, None)
    except UserError as error:  # moved since then, mostly
        raise UserError(f"{error}; or check the file on --images FOLDER") from None
    return build.build(settings, splits, world, console)


def as_onnx(module: Preprocessed, about: dict[str, str]) -> tuple[bytes, Run]:
    """Return an ONNX file's content and what runs it."""
    import onnx
    import onnxruntime

    names: dict[str, Any] = {
        "input_names": ["images"],
        "output_names": list(module.outputs),
    }
    with _silent():
        if module.traced:
            file: Any = io.BytesIO()
            torch.onnx.export(
                module,
                (example(module),),
                file,
                dynamo=False,
                dynamic_axes={
                    "images": varying(module),
                    **{name: {0: "found"} for name in module.outputs},
                },
                **names,
            )
            model = onnx.load_from_string(file.getvalue())
        else:
            program = torch.onnx.export(
                module,
                (example(module),),
                dynamo=True,
                dynamic_shapes=(shapes(module),),
                verbose=False,
                **names,
            )
            assert program is not None
            model = program.model_proto
    onnx.helper.set_model_props(model, about)
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(given: Array) -> list[Array]:
        return [np.asarray(one) for one in session.run(None, {"images": given})]

    return content, run


def as_pt2(module: Preprocessed, about: dict[str, str]) -> tuple[bytes, Run]:
    """Return torch.export's archive, with the metadata as metadata.json, and what runs it. Raises UserError."""
    if module.traced:
        raise UserError(
            "--format pt2 is not for detectors, as torch.export wants sizes that do not depend on what is "
            "found: --format onnx"
        )
    # in memory: on a full disk PyTorch's own writer ends the process
    archive = io.BytesIO()
    metadata = {"metadata.json": json.dumps(about)}
    with _silent():
        program = torch.export.export(
            module, (example(module),), dynamic_shapes=(shapes(module),)
        )
        torch.export.save(program, archive, extra_files=metadata)
        archive.seek(0)
        loaded = torch.export.load(archive).module()

    def run(given: Array) -> list[Array]:
        return [np.asarray(loaded(torch.from_numpy(given)).detach())]

    return archive.getvalue(), run


def example(module: Preprocessed) -> torch.Tensor:
    """Return an input, uint8: what it shows is of no matter, nor are its height and width."""
    side = module.framing.resize
    sizes = {"batch": 2, "height": side + 13, "width": side + 7}
    shape = [axis if isinstance(axis, int) else sizes[axis] for axis in module.axes]
    return (255 * torch.rand(shape)).to(torch.uint8)


def varying(module: Preprocessed) -> dict[int, str]:
    """Return the axes of the input that vary, and their names."""
    return {
        at: axis for at, axis in enumerate(module.axes) if not isinstance(axis, int)
    }


def shapes(module: Preprocessed) -> dict[int, Any]:
    """Return the axes of the input that vary, as torch.export has them."""
    return {
        at: torch.export.Dim(name, min=VARYING[name][0], max=VARYING[name][1])
        for at, name in varying(module).items()
    }


FORMATS = {"onnx": as_onnx, "pt2": as_pt2}
"""--format -> (module, metadata) -> the file's content, and what runs it."""


def export(options: argparse.Namespace, console: Console) -> int:
    """Write the file and check it; return 1 where it does not compute what --predict does. Raises UserError."""
    needs = NEEDS[options.format]
    lacking = [name for name in needs if importlib.util.find_spec(name) is None]
    if lacking:
        raise UserError(
            f"--format {options.format} needs packages: pip install {' '.join(lacking)}"
        )
    whole, settings, samples = load(
        options.checkpoint, arch=options.arch, images=options.images
    )
    start = settings.start
    task = start.config.model.task
    weights = "the average of its weights" if start.of_average else "its network"
    console.info(f"{options.checkpoint}: {weights} is exported")
    path = options.output or options.checkpoint.with_suffix(f".{options.format}")
    if path.exists() and path.samefile(options.checkpoint):
        raise UserError(f"--output {path} is the checkpoint itself; name another file")
    about = {
        "task": task,
        "classes": json.dumps([utf8(name) for name in start.trained]),
        "arch": settings.arch,
        "preprocessing": json.dumps({"where": "inside", **asdict(whole.framing)}),
    }
    if "logits" in whole.outputs:
        config = start.config
        separate = config.optimisation.loss == "bce" or config.data.multi_label
        about["probabilities"] = "sigmoid" if separate else "softmax"
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-")
    with temporary as folder:
        # a file that is not whole, or wrong, never has the name
        new = Path(folder) / path.name
        content, run = FORMATS[options.format](whole, about)
        try:
            verdict = EXPORTED[task].check(run, samples)
        except UserError:
            raise
        except Exception as error:  # each runtime has its own
            console.warn(
                f"{path} is not written: it does not run: {one_line(str(error))}"
            )
            return 1
        console.info(verdict.finding)
        if not verdict.right:
            console.warn(f"{path} is not written: {verdict.wanted}")
            return 1
        with _writing(path):
            new.write_bytes(content)
            new.replace(path)
    console.info(f"{path}: written")
    return 0


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
        "--images",
        type=Path,
        help="a folder of images, or of videos, to check on; default: the validation data",
    )
    options = parser.parse_args(arguments)
    return of_program("export", lambda: export(options, Console()), Unusable)
