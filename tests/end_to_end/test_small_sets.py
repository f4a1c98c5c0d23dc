"""Sets of few steps, whose last one is short, beside a loop by hand around torch's DataLoader.

The loop reads the same files by Pillow, drops nothing, and has nothing of ours. Its last batch is short.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.end_to_end.networks import tiny
from tests.end_to_end.runs import Runner, summary

SIDE, CLASSES, LR = 24, 3, 0.02
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLAGS = f"""--arch tests.end_to_end.networks:tiny --loader torchvision --workers 0 --image-size {SIDE}
    --train-window stretch --val-window stretch --flip 0 --precision fp32 --ceilings false --warmup-epochs 0
    --schedule constant --weight-decay 0 --lr {LR} --val-every 100"""
CASES = [(257, 8, 8, 1, 7), (73, 2, 3, 2, 9)]
"""Images, --batch-size, --accumulate, ranks, epochs. Those of units have more."""


def draw(folder: Path, count: int, seed: int) -> Path:
    """Write noise of which a class is a hint of colour."""
    rng = np.random.default_rng(seed)
    for split, size in (("train", count), ("val", 200)):
        for i in range(size):
            pixels = rng.integers(0, 200, (SIDE, SIDE, 3), dtype=np.uint8)
            pixels[..., i % CLASSES] += 25
            path = folder / split / f"class-{i % CLASSES}" / f"{i:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


def read(folder: Path) -> TensorDataset:
    files = sorted(folder.glob("*/*.png"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in files])
    scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))
    labels = [int(path.parent.name[-1]) for path in files]
    return TensorDataset((scaled - mean) / std, torch.tensor(labels))


def by_hand(data: Path, batch: int, accumulate: int, epochs: int) -> float:
    """Train by a loop as people write it; return the share of right answers."""
    torch.manual_seed(0)
    net = tiny(CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    loader = DataLoader(read(data / "train"), batch, shuffle=True)
    for _ in range(epochs):
        batches = list(loader)
        for begin in range(0, len(batches), accumulate):
            step = batches[begin : begin + accumulate]
            samples = sum(len(labels) for _, labels in step)
            for images, labels in step:
                loss = nn.functional.cross_entropy(net(images), labels, reduction="sum")
                (loss / samples).backward()
            optimizer.step()
            optimizer.zero_grad()
    images, labels = read(data / "val").tensors
    with torch.no_grad():
        right = net.eval()(images).argmax(1) == labels
    return float(right.float().mean())


@pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, case)))
def test_it_learns_what_a_loop_by_hand_learns(
    train: Runner, tmp_path: Path, case: tuple[int, ...]
) -> None:
    count, batch, accumulate, ranks, epochs = case
    data = draw(tmp_path / "data", count, 0)
    flags = f"--batch-size {batch} --accumulate {accumulate} --epochs {epochs}"
    argv = ("--data", data, "--output", "run", f"{FLAGS} {flags}")
    for process in train.ranks(ranks, *argv):
        assert process.wait() == 0, process.err
    top1 = summary(train.cwd / "run")["validation"]["top1"]
    assert top1 > by_hand(data, batch, accumulate * ranks, epochs) - 0.02


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        ("--ema 0.01", "ema"),
        ("--repeats 3", "model"),
        ("--balance sampler", "model"),
        ("--teacher teacher/last.pt", "model"),
    ],
)
def test_running_statistics_are_those_of_a_dataloader(
    train: Runner, tmp_path: Path, flags: str, state: str
) -> None:
    """257 images in steps of 8 micro-batches of 8: of the last one, most have no sample of their own."""
    data = draw(tmp_path / "data", 257, 0)
    where = ("--data", data, FLAGS, "--batch-size 8 --accumulate 8 --lr 1e-9")
    if "--teacher" in flags:
        own = "--arch shufflenet_v2_x0_5 --output teacher --epochs 1"
        train(*where, own).done()
    train(*where, flags, "--output run --epochs 3").done()
    kept = torch.load(train.cwd / "run/last.pt", weights_only=True)
    net = tiny(CLASSES)
    net.load_state_dict(kept["model"])
    norm = net.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None
    norm.reset_running_stats()
    torch.manual_seed(0)
    loader = DataLoader(read(data / "train"), 8, shuffle=True)
    with torch.no_grad():
        for _ in range(3):
            for images, _ in loader:
                net.train()(images)
    (ours,) = (v for name, v in kept[state].items() if name.endswith("running_var"))
    assert (ours / norm.running_var).mean() == pytest.approx(1, abs=0.05)
