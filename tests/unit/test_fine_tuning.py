"""What fine-tuning needs: frozen parameters, weights of uneven classes, patience, a learning-rate test."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torchvision.models import resnet18

from config import Config, build, recipe
from contracts import UserError
from engine import schedules
from models import Unusable
from models.frozen import freeze
from scripts import _lr_range, tune
from settings.optimisation import Optimisation
from tasks.classification import Classification, balancing
from tests.unit.folders import JPEG, fill
from tests.unit.test_classification import batch_of, random, rows


def test_frozen_layers_stay_as_they_are() -> None:
    module = resnet18(num_classes=3)
    assert freeze(module, "conv1|bn1|layer[123]") == (
        "--freeze 'conv1|bn1|layer[123]': 45 of 62 parameters are not trained"
    )
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.train()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    module(torch.randn(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith(("layer4", "fc")) for name in moved)


@pytest.mark.parametrize(
    ("pattern", "said"), [("nothing", "none of"), (".", "all of"), ("(", "is no regular")]
)
def test_a_pattern_that_cannot_be_meant(pattern: str, said: str) -> None:
    with pytest.raises(Unusable, match=said):
        freeze(nn.Linear(2, 2), pattern)


def test_every_class_counts_alike() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [3])
    weights: Any = balancing(build({"balance": "loss"}), SimpleNamespace(label=labels, classes=list("abcd")))
    sums = np.bincount(labels, weights)
    assert weights.mean() == pytest.approx(1) and np.allclose(sums[[0, 1, 3]], sums[0])
    logits, _, _ = random(10, 4)
    batch = batch_of(torch.from_numpy(labels))
    batch.targets |= {
        name: torch.from_numpy(value)
        for name, value in Classification(labels, weights=weights).targets(rows(list(range(10)))).items()
    }
    plain = Classification(labels).losses(logits, batch)
    weighed = Classification(labels, weights=weights).losses(logits, batch)
    assert torch.allclose(weighed, plain * torch.from_numpy(weights).float())


def test_weights_are_pointed_to_the_preset_for_them() -> None:
    (line,) = recipe(build({"weights": "DEFAULT"}), "resnet18")
    assert "configs/finetune.yaml" in line
    assert "configs/imagenet/resnet18.yaml" in recipe(build({}), "resnet18")[0]


def test_the_rate_rises_tenfold() -> None:
    rising = Optimisation(schedule="range", lr=1e-6, warmup_epochs=0, lr_step_epochs=0.5)
    assert [schedules.learning_rate(epoch, rising) for epoch in (0, 0.5, 1.5)] == pytest.approx(
        [1e-6, 1e-5, 1e-3]
    )


def test_the_test_of_a_rate_measures_no_loader_and_writes_the_recipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def run(recipe: Config, more: dict[str, Any]) -> dict[str, Any]:
        asked.append(recipe.loading.loader)
        return {"summary": {}, "train": [{"losses": [3.0, 2.0, 1.0, 9.0]}]}

    monkeypatch.setattr(_lr_range, "_run", run)
    root = fill(tmp_path / "photos", {f"{name}/{i}.jpg": JPEG for name in ("ant", "bee") for i in range(9)})
    data = {"data": str(root), "val_share": 0.3, "manifest_dir": str(tmp_path / "cache")}
    found = _lr_range.measured(build({**data, "loader": "auto"}), gpu=False)
    assert asked == ["torchvision", "torchvision"]
    words = ["--lr", "--data", str(root), "--output", str(tmp_path / "lr.yaml"), "--", "--momentum", "0.8"]
    assert tune.main([*words, "--val-share", "0.3", "--manifest-dir", str(tmp_path / "cache")]) == 0
    written = yaml.safe_load((tmp_path / "lr.yaml").read_text())
    assert (written["lr"], written["momentum"], "data" in written) == (found.advised, 0.8, False)


def test_a_rate_is_advised_where_the_loss_falls(tmp_path: Path) -> None:
    rates = [1e-6 * 10 ** (step / 20) for step in range(140)]
    losses = [
        3 - 2 / (1 + math.exp(-4 * (math.log10(rate) + 2.5))) + 1e3 * max(rate - 0.1, 0) for rate in rates
    ]
    found = _lr_range.advised(rates, losses)
    assert 1e-3 <= found.advised <= 1e-2 and len(found.smoothed) < 140
    _lr_range.draw(found, tmp_path / "lr.png")
    assert (tmp_path / "lr.png").stat().st_size > 10_000
    with pytest.raises(UserError, match="does not fall"):
        _lr_range.advised(rates, [3.0] * 140)
