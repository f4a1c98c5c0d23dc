"""A set of few steps on a GPU: its last step is filled up with samples, in a CUDA graph and by each loader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tests.conformance import scenes
from tests.end_to_end.networks import tiny
from tests.end_to_end.test_small_sets import CLASSES, SIDE, draw, read
from tests.gpu.conftest import CUDA

ROOT = Path(__file__).parents[2]
FLAGS = f"""--arch tests.end_to_end.networks:tiny --image-size {SIDE} --train-window stretch --flip 0 --precision fp16
    --ceilings false --warmup-epochs 0 --lr 1e-9 --epochs 1 --val-every 0 --batch-size 8 --accumulate 8 --quiet true"""


@pytest.mark.parametrize("loader", [one.name for one in scenes.lone(CUDA, clips=False)])
@pytest.mark.parametrize("graphs", ["true", "false"])
def test_running_statistics_are_those_of_a_dataloader(
    tmp_path: Path, loader: str, graphs: str
) -> None:
    """257 images in steps of 64: of the last micro-batches most have no sample of their own."""
    data = draw(tmp_path / "data", 257, 0)
    words = f"--loader {loader} --graphs {graphs} {FLAGS}".split()
    places = ["--data", str(data), "--output", str(tmp_path / "run")]
    subprocess.run([sys.executable, "train.py", *places, *words], cwd=ROOT, check=True)
    weights = torch.load(tmp_path / "run/last.pt", weights_only=True)["model"]
    net = tiny(CLASSES)
    net.load_state_dict(weights)
    norm = net.get_submodule("1")
    assert isinstance(norm, torch.nn.BatchNorm2d) and norm.running_var is not None
    norm.reset_running_stats()
    torch.manual_seed(0)
    with torch.no_grad():
        for images, _ in DataLoader(read(data / "train"), 8, shuffle=True):
            net.train()(images)
    ours = weights["1.running_var"].cpu()
    assert (ours / norm.running_var).mean() == pytest.approx(1, abs=0.05)
