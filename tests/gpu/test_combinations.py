"""Every combination of loader and flags that README, --help or the advice recommends trains on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import reels, scenes
from tests.conformance.scenes import scene
from tests.gpu.conftest import CUDA
from tests.unit.coco_files import write_coco
from tests.unit.superres_files import write

ROOT = Path(__file__).parents[2]
LOADERS = ("dali-cpu", "dali-gpu", "dali-fed", "torchvision")
IMAGES: dict[str, str] = {
    # a GPU's steps are graphs unless something is in the way
    "auto": "",
    "synthetic": "--loader synthetic --graphs true",
    **{f"{name} compiled": f"--loader {name} --compile true" for name in LOADERS},
    "eager compiled": "--loader torchvision --graphs false --compile true",
    "accumulated": "--loader dali-gpu --accumulate 2 --clip-grad-norm 1 --precision fp16",
    "adamw": "--loader dali-gpu --optimizer adamw --precision fp16",
    "bf16": "--loader dali-fed --precision bf16 --ceilings true",
    "fp32": "--loader dali-cpu --precision fp32 --profile true",
    "fine-tuned": "--loader dali-gpu --config configs/finetune.yaml --freeze conv1|bn1|layer[123]",
}
OF_VIDEOS = [
    *(loader.name for loader in scenes.lone(CUDA, clips=True)),
    "nvdec+pyav --compile true",
]
CLIPS = [f"--task video --loader {flags}" for flags in OF_VIDEOS]
PATCHES = [
    f"--task superres --loader paired --compile {on}" for on in ("false", "true")
]
DETECTORS = [
    *(f"--task detection --loader {name}" for name in LOADERS),
    *(
        f"--task detection --loader dali-gpu --arch {arch}_resnet50_fpn --precision fp16"
        for arch in ("maskrcnn", "keypointrcnn", "retinanet")
    ),
]
ROWS = [flags.split() for flags in (*IMAGES.values(), *CLIPS, *PATCHES, *DETECTORS)]
SMALL = {
    "classification": "--arch resnet18 --image-size 64 --batch-size 8",
    "video": "--arch r3d_18 --image-size 64 --batch-size 2 --clip-frames 4",
    "superres": "--arch espcn --patch-size 16 --batch-size 4 --patches-per-image 2",
    "detection": "--arch fcos_tiny --image-size 64 --longer-side 96 --batch-size 3",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each task, of which train/ and val/ have the same files."""
    root = tmp_path_factory.mktemp("data")
    for split in ("train", "val"):
        scene(root / f"images-{split}", dict(scenes.small(37)))
        reels.quick(root / f"clips-{split}", count=9)
        for task, kind in (("classification", "images"), ("video", "clips")):
            (root / task).mkdir(exist_ok=True)
            (root / task / split).symlink_to(root / f"{kind}-{split}" / "data")
        write(root / "superres" / split, 9)
    write_coco(root / "detection")
    return root


def trained(data: Path, output: Path, *flags: str) -> dict[str, object]:
    """Run train.py for two epochs, and return its summary."""
    same = f"--epochs 2 --workers 2 --lr 0.001 --manifest-dir {output.parent / 'manifests'}"
    command = [sys.executable, "train.py", "--data", str(data), "--output", str(output)]
    ended = subprocess.run(
        [*command, *same.split(), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    told: dict[str, object] = json.loads((output / "summary.json").read_text())
    assert told["finished"] is True
    return told


def run(data: Path, output: Path, flags: str) -> dict[str, object]:
    """Train for the task that the flags name; they come last, and so win."""
    task = next((name for name in SMALL if f"--task {name}" in flags), "classification")
    words = f"--task {task} {SMALL[task]} --ceilings false {flags}"
    return trained(data / task, output, *words.split())


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, data: Path, tmp_path: Path) -> None:
    told = run(data, tmp_path / "run", IMAGES[name])
    assert told["graphs"] is (name != "eager compiled")
    phases = told["warm_up_ms"]
    assert isinstance(phases, dict)
    assert ({"forward", "backward", "update"} <= {*phases}) is told["graphs"]
    assert (told["loader_auto"] is None) is (name != "auto")


@pytest.mark.parametrize("flags", [*CLIPS, *PATCHES])
def test_clips_and_patches(flags: str, data: Path, tmp_path: Path) -> None:
    assert run(data, tmp_path / "run", flags)["graphs"] is True


@pytest.mark.parametrize("flags", DETECTORS)
def test_detectors(flags: str, data: Path, tmp_path: Path) -> None:
    assert "many shapes" in str(run(data, tmp_path / "run", flags)["graphs_off"])


@pytest.mark.parametrize("name", LOADERS)
def test_ssds(name: str, data: Path, tmp_path: Path) -> None:
    flags = f"--task detection --arch ssd300_vgg16 --augment ssd --batch-size 3 --loader {name}"
    told = trained(data / "detection", tmp_path / "run", *flags.split())
    assert told["graphs"] is True
