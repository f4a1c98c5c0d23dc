"""What is installed: the requirements against the imports, and the Dockerfile."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_setup import ROOT, program

# Modules whose distribution has another name. The longest prefix wins.
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
# Imported only where a user has installed it; never in requirements.txt.
OPTIONAL = {
    *(
        "albumentations",
        "apex",
        "h5py",
        "mlflow",
        "onnx",
        "onnxruntime",
        "scipy",
        "timm",
        "torchcodec",
    ),
    "wandb",
}


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
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top in ours or top in OPTIONAL:
                continue
            parts = module.split(".")
            prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
            found = next(
                (DISTRIBUTION[prefix] for prefix in prefixes if prefix in DISTRIBUTION),
                top,
            )
            yield found.lower().replace("_", "-")


def python_files() -> list[Path]:
    folders = [
        path
        for path in ROOT.iterdir()
        if path.is_dir()
        and not path.name.startswith(".")
        and path.name not in {"runs", "shared"}
    ]
    return [
        *ROOT.glob("*.py"),
        *(path for folder in folders for path in folder.rglob("*.py")),
    ]


def test_every_requirement_has_a_floor():
    for name, specifiers in requirements("requirements.txt").items():
        assert re.fullmatch(r">=[0-9.]+", specifiers), (
            f"{name}: wanted '>=version', got {specifiers!r}"
        )
    assert all(
        specifiers for specifiers in requirements("requirements-dev.txt").values()
    )
    # the index's apex is a web toolkit by another author
    assert "apex" not in requirements("requirements.txt") | requirements(
        "requirements-dev.txt"
    )


def test_every_import_is_required():
    run = set(requirements("requirements.txt"))
    development = run | set(requirements("requirements-dev.txt"))
    files = python_files()
    ours = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in files}
    missing = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in third_party(path.read_text(), ours)
        if name not in (development if "tests" in path.relative_to(ROOT).parts else run)
    ]
    assert not missing, "\n".join(missing)


def test_the_import_check_finds_a_plant():
    planted = (
        "import os, pandas, apex\nfrom nvidia import dali\nimport nvidia.nvimgcodec as n\n"
        "from PIL import Image\nfrom tasks import x\n"
    )
    assert list(third_party(planted, {"tasks"})) == [
        "pandas",
        "nvidia-dali-cuda120",
        "nvidia-nvimgcodec-cu12",
        "pillow",
    ]


def instructions() -> list[tuple[str, str]]:
    """(instruction, argument) of the Dockerfile, continued lines joined as Docker joins them."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    said = "\n".join(
        line for line in lines if line.strip() and not line.lstrip().startswith("#")
    )
    parts = [line.partition(" ") for line in said.replace("\\\n", "").splitlines()]
    return [(word, rest.strip()) for word, _, rest in parts]


def steps(containing: str) -> list[str]:
    found = [
        argument
        for word, argument in instructions()
        if word == "RUN" and containing in argument
    ]
    assert found, f"no RUN with {containing!r}"
    return found


def test_dockerfile_passes_hadolint():
    done = subprocess.run(
        [program("hadolint"), ROOT / "Dockerfile"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dockerfile_has_what_a_gpu_and_any_user_need():
    found = instructions()
    words = [word for word, _ in found]
    assert re.fullmatch(
        r"BASE=nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3", dict(found)["ARG"]
    )
    assert words.index("ARG") < words.index("FROM")
    assert dict(found)["FROM"] == "${BASE}"
    variables = dict(
        re.findall(
            r"(\w+)=(\S+)",
            " ".join(argument for word, argument in found if word == "ENV"),
        )
    )
    assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility,video"
    assert dict(found)["USER"] not in ("0", "root")
    folder = dict(found)["WORKDIR"]
    assert dict(found)["ENTRYPOINT"] == f'["python", "{folder}/scripts/entry_point.py"]'
    # In the folder that users share the entry point makes each a cache of their own; nothing else lies there.
    shared = variables["SATURATE_CACHES"]
    assert "${SATURATE_CACHES}" in steps("install -d -m 1777")[0]
    assert f"-v saturate-cache:{shared} " in (ROOT / "README.md").read_text()
    assert not Path(shared).is_relative_to(variables["HOME"])
    assert not [
        name for name, value in variables.items() if value.startswith(f"{shared}/")
    ]


def test_dockerfile_checks_every_import():
    checked = " ".join(
        re.findall(r"import ([\w., ]+)", " ".join(steps("import torch, torchvision")))
    )
    modules = {
        distribution: module
        for module, distribution in DISTRIBUTION.items()
        if module not in ("triton", "typing_extensions")
    }
    names = requirements("requirements.txt")
    assert names.pop("pynvvideocodec") and "PyNvVideoCodec" in "".join(
        steps("import decord")
    ), "it is looked for: without a driver none imports it"
    for name in names:
        assert re.search(rf"(^|[ ,]){re.escape(modules.get(name, name))}\b", checked), (
            f"{name} is not imported at build"
        )


def test_dockerignore_keeps_history_environments_and_results_out() -> None:
    ignored = {*(ROOT / ".dockerignore").read_text().split()}
    by_name = {
        line.strip("/")
        for line in (ROOT / ".gitignore").read_text().splitlines()
        if line.startswith("/")
    }
    assert {".git", ".venv", "runs", ".gpu", "**/__pycache__"} | by_name <= ignored
    assert "requirements.txt" not in ignored


class Image:
    """A fresh Python environment that stands for NVIDIA's image: RUN lines see it first on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "environment"
        self.work = folder / "work"
        self.work.mkdir()
        venv.create(self.prefix, symlinks=True)
        self.site = next((self.prefix / "lib").glob("python3*")) / "site-packages"
        shutil.copy(ROOT / "requirements.txt", self.work)

    def module(self, name: str, version: str = "0") -> None:
        folder = self.site
        for part in name.split("."):
            folder /= part
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / "__init__.py").write_text(f"__version__ = {version!r}\n")

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        }
        clean["PATH"] = f"{self.prefix / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.work,
            env=clean,
            capture_output=True,
            text=True,
        )

    def filtered(self) -> list[str]:
        """Names that the Dockerfile's first step leaves of requirements.txt."""
        done = self.run(*steps("> requirements.image.txt"))
        assert done.returncode == 0, done.stderr
        lines = (self.work / "requirements.image.txt").read_text().splitlines()
        return [
            re.split(r"[^A-Za-z0-9-]", line)[0]
            for line in lines
            if line and not line.startswith("#")
        ]


@pytest.mark.parametrize(
    "bundled", [[], ["nvidia.dali"], ["nvidia.dali", "nvidia.nvimgcodec"]]
)
def test_what_the_image_brings_is_not_installed(
    tmp_path: Path, bundled: list[str]
) -> None:
    image = Image(tmp_path)
    for name in bundled:
        image.module(name)
    owned = {"torch", "torchvision", *(DISTRIBUTION[name] for name in bundled)}
    assert image.filtered() == [
        name for name in requirements("requirements.txt") if name not in owned
    ]


def test_the_filter_takes_whole_names(tmp_path: Path) -> None:
    image = Image(tmp_path)
    image.module("nvidia.dali")
    ours = [
        "torch",
        "Torch>=2",
        "torch==2.11 ; python_version>'3'",
        "torchvision",
        "nvidia-dali-cuda130",
    ]
    others = ["torch-other", "torchmetrics", "nvidia-ml-py"]
    (image.work / "requirements.txt").write_text("\n".join([*ours, *others]) + "\n")
    assert image.filtered() == others


@pytest.mark.parametrize(
    ("version", "code"), [("2.1.1", 1), ("2.2.0", 0), ("2.10.0", 0)]
)
def test_an_image_whose_dali_is_too_old_is_refused(
    tmp_path: Path, version: str, code: int
):
    image = Image(tmp_path)
    image.module("nvidia.dali", version)
    parts = steps("import nvidia.dali as d")[0].split("; python ")
    check = next(part for part in parts if "import nvidia.dali as d" in part)
    # The step is cut at the next command, which needs the whole repository.
    done = image.run("python " + check.split(";     python train.py")[0])
    assert done.returncode == code, done.stderr
    assert ("too old" in done.stderr) == bool(code)
