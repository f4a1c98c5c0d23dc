"""Two training steps of families in torchvision's registry, as train.py builds it."""

from __future__ import annotations

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

# a member of families whose layers are unlike, and the smallest size that it can train on, or the only one
ARCHITECTURES = {
    "alexnet": 64,
    "googlenet": 32,
    "mnasnet0_5": 32,
    "mobilenet_v3_small": 32,
    "squeezenet1_1": 32,
    "swin_v2_t": 32,
    "vit_b_32": 32,
}
CLASSES, BATCH = 3, 2


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow beside other tests: maxvit took 29 s instead of 2."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_one_step(arch: str) -> None:
    size = ARCHITECTURES[arch]
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
