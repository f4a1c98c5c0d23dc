"""What is installed: the requirements against the imports, and the Dockerfile."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.unit.test_house import python, text_of
from tests.unit.test_setup import ROOT, program

DISTRIBUTION = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "faster_coco_eval": "faster-coco-eval",
    "nvidia.dali": "nvidia-dali-cuda120",
    "nvidia.nvimgcodec": "nvidia-nvimgcodec-cu12",
    "pynvml": "nvidia-ml-py",
    "triton": "torch",
    "typing_extensions": "pydantic",
    "yaml": "pyyaml",
}
"""Module -> its distribution, where that has another name."""
OPTIONAL = {
    "coverage",
    *("albumentations", "apex", "cleanlab", "cleanvision", "h5py", "imagehash"),
    *("kornia", "lz4", "mlflow", "onnx", "pandas", "sklearn"),
    *("onnxruntime", "pillow_heif", "pytest", "scipy", "tfrecord", "timm"),
    *("traceml_ai", "wandb"),
}
"""Imported only where a user has installed it; never in requirements.txt."""


def requirements(name: str) -> dict[str, str]:
    """Distribution -> its specifiers, from a file of requirements."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9-]+)([^;]*)(;.*)?", line)
            assert match, f"{name}: {line!r} is not 'name>=version'"
            found[match[1].lower()] = match[2].strip()
    return found


def third_party(source: str, ours: set[str]) -> Iterator[str]:
    """Distributions that a piece of code imports."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    for module in modules:
        top, _, below = module.partition(".")
        if top in sys.stdlib_module_names or top in ours or top in OPTIONAL:
            continue
        longer = f"{top}.{below.partition('.')[0]}"
        found = DISTRIBUTION.get(longer) or DISTRIBUTION.get(top, top)
        yield found.lower().replace("_", "-")


def test_every_requirement_has_a_floor() -> None:
    for name, specifiers in requirements("requirements.txt").items():
        assert re.fullmatch(r">=[0-9.]+", specifiers), (name, specifiers)
    development = requirements("requirements-dev.txt")
    assert all(development.values())


def test_every_import_is_required() -> None:
    run = set(requirements("requirements.txt"))
    development = run | set(requirements("requirements-dev.txt"))
    ours = {path.parts[0].removesuffix(".py") for path in python()}
    missing = [
        f"{path} imports {name}"
        for path in python()
        for name in third_party(text_of(path), ours)
        if name not in (development if path.parts[0] == "tests" else run)
    ]
    assert not missing, "\n".join(missing)
    planted = (
        "import os, polars\nfrom nvidia import dali\nimport nvidia.nvimgcodec as n\n"
        "from PIL import Image\nfrom saturate.tasks import x\n"
    )
    expected = ["polars", "nvidia-nvimgcodec-cu12", "nvidia-dali-cuda120", "pillow"]
    assert sorted(third_party(planted, ours)) == sorted(expected)


DOCKERFILE = (ROOT / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """(instruction, argument) of the Dockerfile, continued lines joined as Docker joins them."""
    lines = [line for line in DOCKERFILE.splitlines() if line.strip()]
    joined = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    parts = [line.partition(" ") for line in joined.replace("\\\n", "").splitlines()]
    return [(word, rest.strip()) for word, _, rest in parts]


def test_dockerfile_passes_hadolint() -> None:
    words = [program("hadolint"), str(ROOT / "Dockerfile")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dockerfile_checks_every_import() -> None:
    steps = " ".join(rest for word, rest in instructions() if word == "RUN")
    checked = " ".join(re.findall(r"import ([\w., ]+)", steps))
    modules = {name: module for module, name in DISTRIBUTION.items()}
    modules |= {"torch": "torch", "pydantic": "pydantic"}
    for name in requirements("requirements.txt"):
        # without a driver none imports it: it is looked for
        if name != "pynvvideocodec":
            module = re.escape(modules.get(name, name))
            assert re.search(rf"(^|[ ,]){module}\b", checked), name
    assert "PyNvVideoCodec" in steps


def test_the_lock_has_each_requirement_above_its_floor() -> None:
    def numbers(said: str) -> list[int]:
        return [*map(int, re.findall(r"\d+", said))]

    pinned = requirements("requirements.lock")
    floors = requirements("requirements.txt")
    assert floors.keys() <= pinned.keys()
    assert all(said.startswith("==") for said in pinned.values())
    for name, floor in floors.items():
        assert floor.startswith(">=")
        assert numbers(pinned[name]) >= numbers(floor), name
