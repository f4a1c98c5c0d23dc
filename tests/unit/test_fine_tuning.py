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

from contracts import UserError
from models import Unusable
from models.frozen import freeze
from scripts import _lr_range, _trials, tune
from settings.config import Config, build
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


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("nothing", "none of"), (".", "all of"), ("(", "is no regular")],
)
def test_a_pattern_that_cannot_be_meant(pattern: str, said: str) -> None:
    with pytest.raises(Unusable, match=said):
        freeze(nn.Linear(2, 2), pattern)


def test_every_class_counts_alike() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [3])
    weights: Any = balancing(
        build({"balance": "loss"}), SimpleNamespace(label=labels, classes=list("abcd"))
    )
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


def test_the_test_of_a_rate_measures_no_loader_and_writes_the_recipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def run(config: Config, limit_s: float) -> _trials.Trial:
        asked.append(config.loading.loader)
        trained = [
            {"losses": [3.0, 3.0], "lrs": [1e-6, 1e-5]},
            {"losses": [2.0, 9.0], "lrs": [2e-5, 1e-4]},
        ]
        return _trials.Trial(
            code=0, said="", summary={"epoch_steps": 2}, points=trained
        )

    monkeypatch.setattr(_trials, "run", run)
    root = fill(
        tmp_path / "photos",
        {f"{name}/{i}.jpg": JPEG for name in ("ant", "bee") for i in range(9)},
    )
    data = {
        "data": str(root),
        "val_share": 0.3,
        "manifest_dir": str(tmp_path / "cache"),
    }
    said: list[str] = []
    found = _lr_range.measured(
        build({**data, "loader": "auto"}), gpu=False, say=said.append
    )
    assert asked == ["torchvision", "torchvision"] and "140 steps" in said[-1]
    assert found.rates == [1e-6, 1e-5, 2e-5, 1e-4], (
        "as the steps were trained, and not by their number"
    )
    words = [
        "--lr",
        "--data",
        str(root),
        "--output",
        str(tmp_path / "lr.yaml"),
        "--",
        "--momentum",
        "0.8",
    ]
    assert (
        tune.main(
            [*words, "--val-share", "0.3", "--manifest-dir", str(tmp_path / "cache")]
        )
        == 0
    )
    written = yaml.safe_load((tmp_path / "lr.yaml").read_text())
    assert (written["lr"], written["momentum"], "data" in written) == (0.1, 0.8, False)


def test_a_loss_that_is_no_number_at_once_is_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "the loss is nan at step 1"
    trial = _trials.Trial(code=3, said=said, summary={}, points=[])
    monkeypatch.setattr(_trials, "run", lambda *_: trial)
    with pytest.raises(UserError, match=said):
        _lr_range.measured(build({"loader": "synthetic"}), gpu=False, say=print)


RATES = [1e-6 * 10 ** (step / 20) for step in range(140)]


def losses(
    *,
    falls_at: float,
    climbs_at: float,
    by: float = 2.0,
    noise: float = 0.0,
    seed: int = 0,
) -> Any:
    """Return the losses of a range test, whose fall of `by` is in the middle at 10 ** falls_at."""
    scatter = noise * np.random.default_rng(seed).standard_normal(len(RATES))
    return [
        3
        - by / (1 + math.exp(-4 * (math.log10(rate) - falls_at)))
        + 1e3 * max(rate - climbs_at, 0)
        + extra
        for rate, extra in zip(RATES, scatter, strict=True)
    ]


def test_a_rate_is_advised_where_the_loss_falls(tmp_path: Path) -> None:
    found = _lr_range.advised(RATES, losses(falls_at=-2.5, climbs_at=0.1))
    assert (
        found.advised is not None
        and 3e-3 <= found.advised <= 1.2e-2
        and len(found.smoothed) < 140
    )
    _lr_range.draw(found, tmp_path / "lr.png")
    assert (tmp_path / "lr.png").stat().st_size > 10_000


def test_the_advice_is_no_noise() -> None:
    """Other draws of the losses give about the same rate; a set that is learned early one near the climb."""
    for how in (
        {"falls_at": -2.5, "climbs_at": 0.1},
        {"falls_at": -4.0, "climbs_at": 0.05},
    ):
        found = [
            _lr_range.advised(RATES, losses(**how, noise=0.1, seed=seed)).advised
            for seed in range(20)
        ]
        rates = [rate for rate in found if rate is not None]
        assert len(rates) == 20 and max(rates) <= 4 * min(rates) and min(rates) >= 3e-3


@pytest.mark.parametrize(
    "found",
    [
        [3.0] * 140,
        losses(falls_at=-2.5, climbs_at=0.1, by=0.0, noise=0.1),
        losses(falls_at=-2.5, climbs_at=0.1, by=0.05, noise=0.1),
        [
            *np.linspace(6.0, 3.0, 14),
            *[3.0] * 126,
        ],  # in the first tenth, where a loss settles at any rate
        [math.nan] * 140,
        [],
    ],
    ids=["flat", "noise", "weak", "first-tenth", "nan", "none"],
)
def test_without_a_clear_fall_there_is_no_advice(
    found: list[float], tmp_path: Path
) -> None:
    test = _lr_range.advised(RATES[: len(found)], found)
    assert test.advised is None
    _lr_range.draw(test, tmp_path / "lr.png")
