"""One training step of each family in torchvision's registry, as train.py builds it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Batch
from models import AUXILIARY_WEIGHTS
from models import classification as registry
from settings.optimisation import Optimisation
from tasks.classification import Classification
from tests.unit.steps import composed

# family -> (its smallest member, a size that it can train on: the smallest that its layers allow, or the only
# one)
FAMILIES = {
    "alexnet": ("alexnet", 64),
    "convnext": ("convnext_tiny", 32),
    "densenet": ("densenet121", 32),
    "efficientnet": ("efficientnet_b0", 32),
    "efficientnet_v2": ("efficientnet_v2_s", 32),
    "googlenet": ("googlenet", 32),
    "inception": ("inception_v3", 299),
    "maxvit": ("maxvit_t", 224),
    "mnasnet": ("mnasnet0_5", 32),
    "mobilenet_v2": ("mobilenet_v2", 32),
    "mobilenet_v3": ("mobilenet_v3_small", 32),
    "regnet_x": ("regnet_x_400mf", 32),
    "regnet_y": ("regnet_y_400mf", 32),
    "resnet": ("resnet18", 32),
    "resnext": ("resnext50_32x4d", 32),
    "shufflenet_v2": ("shufflenet_v2_x0_5", 32),
    "squeezenet": ("squeezenet1_1", 32),
    "swin": ("swin_t", 32),
    "swin_v2": ("swin_v2_t", 32),
    "vgg": ("vgg11", 32),
    "vgg_bn": ("vgg11_bn", 32),
    "vit": ("vit_b_32", 32),
    "wide_resnet": ("wide_resnet50_2", 32),
}
CLASSES, BATCH = 3, 2


def family(name: str) -> str:
    """`regnet_y_16gf` -> `regnet_y`, `vgg16_bn` -> `vgg_bn`, `efficientnet_v2_l` -> `efficientnet_v2`."""
    if name.startswith("vgg"):
        return "vgg_bn" if name.endswith("_bn") else "vgg"
    stem = re.match(
        r"(efficientnet_v2|mobilenet_v\d|shufflenet_v2|swin_v2|regnet_[xy]|wide_resnet|inception|[a-z]+)",
        name,
    )
    assert stem
    return stem.group(1)


def test_every_family_is_here() -> None:
    assert {family(name) for name in registry.names()} == set(FAMILIES)
    assert all(family(name) == its for its, (name, _) in FAMILIES.items())


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow beside other tests: maxvit took 29 s instead of 2."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", FAMILIES)
def test_one_step(name: str) -> None:
    arch, size = FAMILIES[name]
    torch.manual_seed(0)
    module, _ = registry.build(arch, classes=CLASSES, shape=(BATCH, 3, size, size))
    module.to(memory_format=torch.channels_last)
    task = Classification(
        np.arange(BATCH), auxiliary_weight=AUXILIARY_WEIGHTS.get(arch, 0.0)
    )
    step = composed(module, task, Optimisation(weight_decay=0.0))
    batch = Batch(
        images=torch.randn(BATCH, 3, size, size).to(memory_format=torch.channels_last),
        sizes=torch.full((BATCH, 2), size),
        targets={"labels": torch.arange(BATCH)},
        valid=torch.ones(BATCH, dtype=torch.bool),
        ids=np.arange(BATCH),
    )
    outputs: Any = module.train()(batch.images)
    assert isinstance(outputs, torch.Tensor) == (AUXILIARY_WEIGHTS.get(arch, 0.0) == 0)
    before = {
        key: parameter.detach().clone() for key, parameter in module.named_parameters()
    }
    # a head that starts at zero gives the layers before it no gradient in the first step
    for position in range(2):
        outcome = step(
            iter([batch]), lr=0.005, epoch=0, position=position, want_norm=True
        )
        assert outcome[1] == BATCH and (position or torch.isfinite(outcome[0]))
    still = [
        key
        for key, parameter in module.named_parameters()
        if torch.equal(parameter, before[key])
    ]
    # a bias before a batch norm over 1 x 1 pixels, or what a layer scale of 1e-6 holds back, does not
    assert len(still) < 0.15 * len(before), still
    assert not {next(iter(before)), next(reversed(before))} & set(still)
