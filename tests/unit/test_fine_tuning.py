"""What fine-tuning needs: frozen parameters, weights of uneven classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.models import resnet18

from saturate.models.frozen import freeze
from saturate.settings.config import build
from saturate.tasks.classification import Classification, balancing
from tests.unit.test_classification import batch_of, random, rows


def test_frozen_layers_stay_as_they_are() -> None:
    module = resnet18(num_classes=3)
    assert freeze(module, "conv1|bn1|layer[123]") == (
        "--freeze 'conv1|bn1|layer[123]' leaves 45 of 62 parameters untrained"
    )
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.train()
    optimizer = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=0.1
    )
    module(torch.randn(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    moved = {
        name
        for name, value in module.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert moved and all(name.startswith(("layer4", "fc")) for name in moved)


def test_a_norm_without_parameters_is_as_frozen_as_its_part() -> None:
    norms = [torch.nn.BatchNorm2d(3, affine=False) for _ in range(2)]
    parts = [torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), norm) for norm in norms]
    module = torch.nn.Sequential(*parts)
    freeze(module, "0")
    module.train()
    module(torch.randn(4, 3, 2, 2) + 5)
    means = [norm.running_mean for norm in norms]
    assert [bool(mean is not None and mean.any()) for mean in means] == [False, True]


def test_every_class_counts_alike() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [3])
    config = build({"balance": "loss"})
    columns = SimpleNamespace(label=labels, classes=list("abcd"))
    weights: Any = balancing(config.optimisation, config.augmentation, columns)
    sums = np.bincount(labels, weights)
    assert weights.mean() == pytest.approx(1) and np.allclose(sums[[0, 1, 3]], sums[0])
    logits, _, _ = random(10, 4)
    batch = batch_of(torch.from_numpy(labels))
    batch.targets |= {
        name: torch.from_numpy(value)
        for name, value in Classification(labels, weights=weights)
        .targets(rows(list(range(10))))
        .items()
    }
    plain = Classification(labels).losses(logits, batch)
    weighed = Classification(labels, weights=weights).losses(logits, batch)
    assert torch.allclose(weighed, plain * torch.from_numpy(weights).float())
