"""The training step in fp16 on a GPU."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts import Batch
from engine.distributed import ProcessWorld
from engine.loss_log import LossLog
from engine.step import Step, seed
from models import AUXILIARY_WEIGHTS
from models import classification as registry
from report.ceilings import compute_ceiling
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
    [
        "alexnet",
        "resnet18",
        "resnet50",
        "shufflenet_v2_x0_5",
        "googlenet",
        "inception_v3",
        "vit_b_16",
        "convnext_tiny",
        "mobilenet_v3_small",
    ],
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


@pytest.mark.parametrize("arch", ["resnet18", "vit_b_16"])
def test_a_compute_ceiling_leaves_no_trace(arch: str, device: torch.device) -> None:
    step, batch = made_step(arch, device, 224), made_batch(device, 224)
    for position in range(5):
        step(itertools.repeat(batch, 1), lr=0.01, epoch=0, position=position)
    before = [tensor.detach().clone() for tensor in step.state_tensors()]
    lr = [group["lr"] for group in step.optimizer.param_groups]
    world = ProcessWorld(device)
    found = compute_ceiling(
        step, [batch], accumulate=1, world=world, synchronise=world.synchronise
    )
    assert found["rate"] > 0
    after = step.state_tensors()
    assert len(after) == len(before)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert lr == [group["lr"] for group in step.optimizer.param_groups]


def test_what_a_step_writes_to_the_device(device: torch.device) -> None:
    """A rate that stays is not written again; groups share it; a seed is that of torch.cuda."""
    step, batch = made_step("resnet18", device, 64), made_batch(device, 64)
    rate = step.optimizer.param_groups[0]["lr"]
    assert len(step.optimizer.param_groups) > 1
    assert all(group["lr"] is rate for group in step.optimizer.param_groups)
    before = rate._version
    for position, (lr, writes) in enumerate(((0.01, 1), (0.01, 1), (0.02, 2))):
        step(itertools.repeat(batch, 1), lr=lr, epoch=0, position=position)
        assert float(rate) == pytest.approx(lr) and rate._version == before + writes
    seed(7, device)
    drawn = torch.rand(4, device=device)
    torch.cuda.manual_seed(7)
    assert torch.equal(drawn, torch.rand(4, device=device))


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


def launched(ranks: int, *flags: str) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "train.py",
        *flags,
    ]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]


def test_two_ranks_on_one_gpu_validate_like_one(tmp_path: Path) -> None:
    """By gloo, since NCCL refuses two ranks on one GPU; an odd number of samples."""
    files = list(scenes.small(37).items())
    scene(tmp_path / "one", dict(files[:24]))
    scene(tmp_path / "two", dict(files))
    data = tmp_path / "set"
    data.mkdir()
    (data / "train").symlink_to(tmp_path / "one" / "data")
    (data / "val").symlink_to(tmp_path / "two" / "data")
    common = [
        *(
            "--data",
            str(data),
            "--manifest-dir",
            str(tmp_path / "manifests"),
            "--arch",
            "resnet18",
            "--image-size",
            "64",
        ),
        *(
            "--loader",
            "torchvision",
            "--workers",
            "1",
            "--batch-size",
            "6",
            "--ceilings",
            "false",
        ),
    ]
    launched(1, *common, "--epochs", "1", "--output", str(tmp_path / "trained"))
    results = []
    for ranks in (1, 2):
        output = tmp_path / f"ranks-{ranks}"
        weights = str(tmp_path / "trained" / "last.pt")
        launched(
            ranks,
            *common,
            "--evaluate",
            "true",
            "--weights",
            weights,
            "--output",
            str(output),
        )
        results.append(json.loads((output / "summary.json").read_text())["validation"])
    print(results)
    assert results[0] == results[1]
    assert 0 <= results[0]["top1"] <= results[0].get("top5", 1) <= 1


def of_small_images(folder: Path, count: int) -> list[str]:
    """Return the flags of a run on so many images, which train and validate."""
    scene(folder / "one", dict(list(scenes.small(37).items())[:count]))
    data = folder / "set"
    data.mkdir()
    for split in ("train", "val"):
        (data / split).symlink_to(folder / "one" / "data")
    common = [
        "--data",
        str(data),
        "--manifest-dir",
        str(folder / "manifests"),
        "--arch",
        "resnet18",
    ]
    common += [
        "--image-size",
        "64",
        "--loader",
        "torchvision",
        "--workers",
        "1",
        "--precision",
        "fp32",
    ]
    return common


def test_two_ranks_with_sync_bn_train_like_one(tmp_path: Path) -> None:
    """Statistics of batch norm are of both ranks' rows: those of one rank with twice the batch."""
    common = of_small_images(tmp_path, 24)
    common += [
        "--steps",
        "1",
        "--val-every",
        "0",
        "--ceilings",
        "false",
        "--graphs",
        "false",
    ]
    means = {}
    for name, ranks, more in (
        ("one", 1, []),
        ("synced", 2, ["--sync-bn", "true"]),
        ("apart", 2, []),
    ):
        output = tmp_path / name
        launched(
            ranks,
            *common,
            *more,
            "--batch-size",
            str(12 // ranks),
            "--output",
            str(output),
        )
        state = torch.load(output / "last.pt", weights_only=True, map_location="cpu")[
            "model"
        ]
        means[name] = torch.cat(
            [value for key, value in state.items() if key.endswith("running_mean")]
        )
    off = {
        name: float((mean - means["one"]).abs().max()) for name, mean in means.items()
    }
    print(off)
    assert off["synced"] < 1e-3 < off["apart"]


def test_a_graph_of_all_gpus_trains_like_eager_steps(tmp_path: Path) -> None:
    """Its all-reduces are captured, after two micro-batches and before clipping; one GPU is one rank."""
    ranks = min(2, torch.cuda.device_count())
    common = of_small_images(tmp_path, 37)
    common += [
        "--batch-size",
        "4",
        "--accumulate",
        "2",
        "--clip-grad-norm",
        "1",
        "--lr",
        "0.001",
    ]
    common += [
        "--epochs",
        "100",
        "--steps",
        "12",
        "--val-every",
        "0",
        "--ceilings",
        "false",
    ]
    found = {}
    for graphs in ("false", "true"):
        output = tmp_path / graphs
        launched(ranks, *common, "--graphs", graphs, "--output", str(output))
        told = json.loads((output / "summary.json").read_text())
        assert (told["world_size"], told["graphs"]) == (ranks, graphs == "true")
        found[graphs] = losses(output)
    print(found)
    assert len(found["true"]) == 12
    np.testing.assert_allclose(
        found["true"], found["false"], rtol=1e-2
    )  # kernels that race
