"""Outcomes, graphs of several ranks and checkpoints on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saturate.engine.checkpoint import on_host
from saturate.engine.distributed import ProcessWorld
from saturate.engine.loss_log import LossLog
from tests.conformance import scenes
from tests.conformance.scenes import scene
from tests.end_to_end.runs import losses

ROOT = Path(__file__).parents[2]


def test_outcomes_are_read_in_order_while_steps_go_on(device: torch.device) -> None:
    """Events are used again, and a read does not take a later step's outcome for an earlier one's."""
    world = ProcessWorld(device)
    found = []
    with world.own_stream():
        recent = LossLog(4, world, precision="fp32")
        outcome = torch.ones(4, device=device)
        for at in range(1, 101):
            outcome[0].fill_(at)
            recent.add(at, outcome, [np.arange(4)])
            if recent.full():
                found += recent.read(everything=False)
        found += recent.read()
    assert [(point["step"], point["loss"]) for point in found] == [
        (at, float(at)) for at in range(1, 101)
    ]
    assert len(recent._spare) <= 2 * 6


def launched(ranks: int, folder: Path, flags: str) -> Path:
    """Run train.py in so many ranks on the folder's set; return its --output."""
    output = folder / f"run-{len(list(folder.iterdir()))}"
    run = f"-m torch.distributed.run --standalone --nproc-per-node={ranks} train.py"
    data = f"--data {folder}/set --manifest-dir {folder}/manifests --output {output}"
    small = "--arch resnet18 --image-size 64 --loader torchvision --workers 1 --ceilings false"
    ended = subprocess.run(
        [sys.executable, *f"{run} {data} {small} {flags}".split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return output


def small_images(folder: Path, train: int, val: int) -> Path:
    """Make a set of so many images. Returns the folder."""
    files = list(scenes.small(37).items())
    (folder / "set").mkdir()
    for split, count in (("train", train), ("val", val)):
        scene(folder / f"of-{split}", dict(files[:count]))
        (folder / "set" / split).symlink_to(folder / f"of-{split}" / "data")
    return folder


def told(output: Path) -> Any:
    return json.loads((output / "summary.json").read_text())


def test_a_graph_of_all_gpus_trains_like_eager_steps(tmp_path: Path) -> None:
    """Its all-reduces are captured, after two micro-batches and before clipping; one GPU is one rank."""
    ranks = min(2, torch.cuda.device_count())
    folder = small_images(tmp_path, 37, 37)
    flags = """--batch-size 4 --accumulate 2 --clip-grad-norm 1 --lr 0.001 --epochs 100 --steps 12 --val-every 0
        --precision fp32 --graphs"""
    found = []
    for graphs in ("false", "true"):
        output = launched(ranks, folder, f"{flags} {graphs}")
        assert told(output)["world_size"] == ranks
        assert told(output)["graphs"] is (graphs == "true")
        found.append(losses(output))
    assert len(found[1]) == 12
    np.testing.assert_allclose(found[1], found[0], rtol=1e-2)  # kernels that race


def test_a_checkpoint_is_of_its_step(device: torch.device) -> None:
    """The steps before, which the device has not reached, are in it, and the next replay is not."""
    with ProcessWorld(device).own_stream():
        weight = torch.zeros(1 << 24, device=device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            weight += 1
        for step in range(1, 6):
            torch.cuda._sleep(100_000_000)
            graph.replay()
            copied = on_host({"model": [weight]})["model"][0]
            graph.replay()
            graph.replay()
            assert copied.is_pinned()
            assert set(copied[:: 1 << 16].tolist()) == {3 * step - 2}


def test_two_ranks_with_sync_bn_train_like_one(tmp_path: Path) -> None:
    """Statistics of batch norm are of both ranks' rows: those of one rank with twice the batch."""
    folder = small_images(tmp_path, 24, 24)
    flags = "--steps 1 --val-every 0 --graphs false --precision fp32 --batch-size"
    means = []
    for ranks, more in ((1, "12"), (2, "6 --sync-bn true"), (2, "6")):
        path = launched(ranks, folder, f"{flags} {more}") / "last.pt"
        state = torch.load(path, weights_only=True, map_location="cpu")["model"]
        names = [name for name in state if name.endswith("running_mean")]
        means.append(torch.cat([state[name] for name in names]))
    one, synced, apart = means
    assert (synced - one).abs().max() < 1e-3 < (apart - one).abs().max()
