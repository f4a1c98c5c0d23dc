"""Every preset parses, says what it sets and names what exists."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from saturate.dataset.synthetic import synthetic
from saturate.engine.distributed import ProcessWorld
from saturate.engine.schedules import learning_rate, settled
from saturate.loaders import open_loader
from saturate.models import AUXILIARY_WEIGHTS
from saturate.run.build import resolve, training_feed
from saturate.settings.config import parse, read_preset, recipe
from saturate.tasks import architecture, kind_of
from saturate.tasks.initial_state import Start
from tests.end_to_end.runs import ROOT
from tests.unit.steps import CPU, composed

PRESETS = [
    path
    for path in sorted((ROOT / "configs").rglob("*.yaml"))
    if path.parent.name not in ("published", "planted")
]


@pytest.mark.parametrize(
    "path", PRESETS, ids=lambda path: str(path.relative_to(ROOT / "configs"))
)
def test_preset(path: Path) -> None:
    config = parse(["--config", str(path)])
    for key, value in read_preset(path).items():
        got = config.flat()[key.replace("-", "_")]
        assert (
            got == value or str(got) == str(value) or got == pytest.approx(float(value))
        ), key
    arch = str(config.model.arch)
    known = recipe(parse([]), arch)
    is_known = any(str(path).endswith(line.split()[1]) for line in known)
    assert is_known == (path.stem not in ("demo", "finetune")), known
    assert recipe(config, arch) == []
    kind = kind_of(config)
    registry, name = architecture(kind, arch)
    assert name == arch and arch in registry.names()
    assert config.loading.loader in (*kind.loaders, "auto")


SMALL = "--image-size 64 --batch-size 4"
STEPPED = {
    "imagenet/resnet50.v2": SMALL,
    "imagenet/deit3_small_patch16_224": SMALL,
    "imagenet/resnetblur50.ffcv": f"{SMALL} --image-size-start 32",
    "imagenet/resnetblur50.mosaic": f"{SMALL} --image-size-start 32",
    "imagenet/resnet50.mlperf": SMALL,
    "video/r2plus1d_18": "--image-size 32 --short-side 36 36 --val-resize 36 --batch-size 2",
    "video/mvit_v2_s": "--batch-size 2",
    "coco/finetune": "--image-size 64 --short-sides 64 --longer-side 96 --batch-size 1",
    "coco/retinanet_resnet50_fpn_v2": "--image-size 64 --short-sides 64 --longer-side 96 --batch-size 1",
    **{
        f"coco/{name}_resnet50_fpn_v2": "--image-size 32 --val-image-size 32 --longer-side 48 --batch-size 2"
        for name in ("fasterrcnn", "maskrcnn")
    },
}
"""Preset, of each family of networks -> flags that make its steps small."""
STOOD_IN = "mvit_v2_s"
"""An architecture of one size, which would take a minute here: a small network takes its steps."""


@pytest.mark.parametrize("name", STEPPED)
@pytest.mark.usefixtures("one_thread")
def test_two_steps(name: str) -> None:
    """The preset takes two steps in this process, with few and small images."""
    path = ROOT / "configs" / f"{name}.yaml"
    # some processors have bf16, which is the default then
    own = ["--loader", "synthetic", "--precision", "fp32"]
    flags = [*STEPPED[name].split(), *own]
    config = parse(["--config", str(path), *flags])
    start = Start.from_config(config, (), {}, path=None, origin="flags")
    resolved = resolve(start, ProcessWorld(CPU))
    kind, registry, arch = resolved.kind, resolved.registry, resolved.arch
    sets = synthetic(kind.content)
    plans = kind.plans(sets, resolved.native, resolved.batching)
    tasks = kind.tasks(sets, AUXILIARY_WEIGHTS.get(arch, 0.0))
    plan = plans[0]
    torch.manual_seed(0)
    heads = kind.building(sets["train"].columns)
    if "weights_backbone" in heads:
        heads["weights_backbone"] = None  # which would be downloaded
    module, _ = registry.build(
        arch, shape=(plan.batches.rows, *plan.batches.sample_shape), **heads
    )
    if arch == STOOD_IN:
        pool = torch.nn.AdaptiveAvgPool3d((4, 14, 14))
        module = torch.nn.Sequential(
            pool, torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 14 * 14, 400)
        )
    settings, _ = settled(config.optimisation, plan.samples, plan.global_batch_size)
    step = composed(module.train(), tasks[0], settings)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    feed = training_feed(resolved, sets["train"])
    with open_loader("synthetic", feed) as loader:
        batches = loader.batches(0, 0)
        for at in range(2):
            rate = learning_rate(1.0, settings)
            outcome = step(batches, lr=rate, epoch=0, position=plan.batches.rows * at)
            assert torch.isfinite(outcome[0])
    moved = [
        not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)
    ]
    # but for what stands behind a scale of 1e-6, as in DeiT III
    assert sum(moved) > min(10, len(before) - 1)
