"""Every combination of loader and flags that README, --help or the advice recommends trains on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import reels, scenes
from tests.conformance.scenes import scene
from tests.unit.coco_files import write_coco
from tests.unit.superres_files import write

ROOT = Path(__file__).parents[2]
GRAPHS = ("--graphs", "true")
COMPILED = (*GRAPHS, "--compile", "true")
COMBINATIONS: dict[str, tuple[str, ...]] = {
    # a GPU's steps are graphs unless something is in the way
    "auto": (),
    **{
        name: ("--loader", name, *GRAPHS)
        for name in ("dali-cpu", "dali-gpu", "dali-fed", "torchvision")
    },
    **{
        f"{name} compiled": ("--loader", name, *COMPILED)
        for name in ("dali-cpu", "dali-gpu", "dali-fed", "torchvision")
    },
    "synthetic": ("--loader", "synthetic", *GRAPHS),
    "accumulated and clipped": (*GRAPHS, "--accumulate", "2", "--clip-grad-norm", "1"),
    "adamw": (*GRAPHS, "--optimizer", "adamw", "--lr", "0.001"),
    "fp16": (*GRAPHS, "--precision", "fp16"),
    "bf16": (*GRAPHS, "--precision", "bf16"),
    "fp32": (*GRAPHS, "--precision", "fp32"),
    "fine-tuned": (
        *GRAPHS,
        "--config",
        "configs/finetune.yaml",
        "--freeze",
        "conv1|bn1|layer[123]",
    ),
    "eager compiled": ("--graphs", "false", "--compile", "true"),
    "profiled": (*GRAPHS, "--profile", "true"),
    "ceilings": (*GRAPHS, "--ceilings", "true"),
}
CLIPS: dict[str, tuple[str, ...]] = {
    name: ("--task", "video", "--loader", name, *GRAPHS)
    for name in ("pyav", "nvdec", "nvdec+pyav", "dali-video")
} | {"nvdec+pyav compiled": ("--task", "video", "--loader", "nvdec+pyav", *COMPILED)}
PATCHES: dict[str, tuple[str, ...]] = {
    "patches": ("--task", "superres", "--loader", "paired", *GRAPHS),
    "patches compiled": ("--task", "superres", "--loader", "paired", *COMPILED),
}

DETECTORS: dict[str, tuple[str, ...]] = {
    name: ("--task", "detection", "--loader", name)
    for name in ("dali-cpu", "dali-gpu", "dali-fed", "torchvision")
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    files = scenes.small(37)
    for split in ("train", "val"):
        scene(root / f"of-{split}", dict(files))
        (root / split).symlink_to(root / f"of-{split}" / "data")
    return root


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clips")
    for split in ("train", "val"):
        reels.quick(root / f"of-{split}", count=9)
        (root / split).symlink_to(root / f"of-{split}" / "data")
    return root


def trained(data: Path, output: Path, *flags: str) -> dict[str, object]:
    """Run train.py, and return its summary."""
    command = [
        sys.executable,
        "train.py",
        "--data",
        str(data),
        "--output",
        str(output),
        "--epochs",
        "2",
    ]
    own = (
        "--manifest-dir",
        str(output.parent / "manifests"),
        "--workers",
        "2",
        "--lr",
        "0.001",
    )
    ended = subprocess.run(
        [*command, *own, *flags],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    told: dict[str, object] = json.loads(
        (output / "summary.json").read_text(encoding="utf-8")
    )
    assert told["finished"] is True
    return told


@pytest.mark.parametrize("name", COMBINATIONS)
def test_images(name: str, images: Path, tmp_path: Path) -> None:
    flags = ("--arch", "resnet18", "--image-size", "64", "--batch-size", "8")
    quiet = () if name == "ceilings" else ("--ceilings", "false")
    named = () if name == "auto" else ("--loader", "dali-gpu")
    told = trained(
        images, tmp_path / "run", *flags, *quiet, *named, *COMBINATIONS[name]
    )
    assert told["graphs"] is (name != "eager compiled")
    phases = told["warm_up_ms"]
    assert (
        isinstance(phases, dict)
        and ({"forward", "backward", "update"} <= {*phases}) is told["graphs"]
    )
    assert (told["loader_auto"] is None) is (name != "auto")


@pytest.mark.parametrize("name", CLIPS)
def test_clips(name: str, clips: Path, tmp_path: Path) -> None:
    flags = (
        "--arch",
        "r3d_18",
        "--image-size",
        "64",
        "--batch-size",
        "2",
        "--clip-frames",
        "4",
    )
    told = trained(clips, tmp_path / "run", *flags, "--ceilings", "false", *CLIPS[name])
    assert told["graphs"] is True


@pytest.mark.parametrize("name", PATCHES)
def test_patches(name: str, tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / "data" / split, 9)
    flags = (
        "--arch",
        "espcn",
        "--patch-size",
        "16",
        "--batch-size",
        "4",
        "--patches-per-image",
        "2",
    )
    told = trained(
        tmp_path / "data",
        tmp_path / "run",
        *flags,
        "--ceilings",
        "false",
        *PATCHES[name],
    )
    assert told["graphs"] is True


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors(name: str, tmp_path: Path) -> None:
    data = write_coco(tmp_path / "data")
    flags = (
        "--arch",
        "fcos_tiny",
        "--image-size",
        "64",
        "--longer-side",
        "96",
        "--batch-size",
        "3",
    )
    told = trained(
        data, tmp_path / "run", *flags, "--ceilings", "false", *DETECTORS[name]
    )
    assert "many shapes" in str(told["graphs_off"])
