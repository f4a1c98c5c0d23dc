"""The training step in fp16 on a GPU."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Batch
from engine.checkpoint import on_host
from engine.distributed import ProcessWorld
from engine.loss_log import LossLog
from engine.step import Step
from models import AUXILIARY_WEIGHTS
from models import classification as registry
from settings.optimisation import Optimisation
from tasks.classification import Classification
from tests.conformance import scenes
from tests.conformance.scenes import scene
from tests.end_to_end.runs import losses
from tests.unit.steps import composed

ROOT = Path(__file__).parents[2]
CLASSES, BATCH = 5, 8
LABELS = np.arange(BATCH) % CLASSES


def made_step(arch: str, device: torch.device, image_size: int) -> Step:
    torch.manual_seed(0)
    module, _ = registry.build(
        arch, classes=CLASSES, shape=(2, 3, image_size, image_size)
    )
    module = module.to(device).to(memory_format=torch.channels_last)
    task = Classification(LABELS, auxiliary_weight=AUXILIARY_WEIGHTS.get(arch, 0.0))
    return composed(
        module, task, Optimisation(lr=0.01), precision="fp16", device=device
    )


def made_batch(device: torch.device, image_size: int) -> Batch:
    generator = torch.Generator(device).manual_seed(1)
    images = torch.randn(
        (BATCH, 3, image_size, image_size), generator=generator, device=device
    )
    return Batch(
        images=images.to(torch.float16, memory_format=torch.channels_last),
        sizes=torch.full((BATCH, 2), image_size, device=device),
        targets={"labels": torch.from_numpy(LABELS).to(device)},
        valid=torch.ones(BATCH, dtype=torch.bool, device=device),
        ids=np.arange(BATCH),
    )


@pytest.mark.parametrize(
    "arch",
    ["resnet50", "googlenet", "vit_b_16", "convnext_tiny", "mobilenet_v3_small"],
)
def test_fp16_steps_learn_one_batch(arch: str, device: torch.device) -> None:
    """The loss of one resident batch is finite and falls; the loss scale is dynamic and steps are taken."""
    image_size = registry.native(arch).size
    step, batch = made_step(arch, device, image_size), made_batch(device, image_size)
    # it diverges with 0.01 in fp32 too: eight samples, and no warm-up
    lr = 0.001 if arch == "resnet50" else 0.01
    losses = []
    for position in range(12):
        outcome = step(itertools.repeat(batch, 1), lr=lr, epoch=0, position=position)
        losses.append(float(outcome[0] / outcome[1]))
    assert np.isfinite(losses).all()
    assert min(losses[-3:]) < losses[0]
    assert 1 <= step.scaler.get_scale() <= 2**24
    assert all(
        parameter.dtype == torch.float32 for parameter in step.module.parameters()
    )


def test_outcomes_are_read_in_order_while_steps_go_on(device: torch.device) -> None:
    """A read does not take a later step's outcome for an earlier one's."""
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


def test_two_ranks_on_one_gpu_validate_like_one(tmp_path: Path) -> None:
    """By gloo, since NCCL refuses two ranks on one GPU; an odd number of samples."""
    folder = small_images(tmp_path, 24, 37)
    trained = launched(1, folder, "--batch-size 6 --epochs 1")
    flags = f"--batch-size 6 --evaluate true --weights {trained}/last.pt"
    one, two = (told(launched(ranks, folder, flags)) for ranks in (1, 2))
    assert one["validation"] == two["validation"]
    assert 0 <= one["validation"]["top1"] <= 1


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
