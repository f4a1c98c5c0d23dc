"""Detectors' weights: what is frozen, what starts anew, and what does not fit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models._api import WeightsEnum
from torchvision.ops.misc import FrozenBatchNorm2d

from saturate.models import Unusable
from saturate.models.detection import EPS_FREE, STAGES, _backbone, _FrozenNorm, build
from tests.unit.test_detection_models import (
    CLASSES,
    KEYPOINTS,
    SMALL,
    TORCHVISION,
    made,
    outline,
    shape_of,
    stock_of,
)


@cache
def small_state() -> dict[str, torch.Tensor]:
    """Return the state of a small detector of ours, to be loaded."""
    torch.manual_seed(5)
    return made(SMALL)[0].state_dict()


def is_the_small_ones(state: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, small_state()[name]) for name, value in state.items())


def save(path: Path, content: Any) -> str:
    torch.save(content, path)
    return str(path)


def frozen(module: nn.Module) -> tuple[set[str], dict[str, tuple[type, float]]]:
    norms = {
        name: one
        for name, one in module.named_modules()
        if isinstance(one, FrozenBatchNorm2d | nn.BatchNorm2d)
    }
    kinds = {
        name: (
            FrozenBatchNorm2d if isinstance(one, FrozenBatchNorm2d) else nn.BatchNorm2d,
            one.eps,
        )
        for name, one in norms.items()
    }
    return {
        name for name, one in module.named_parameters() if not one.requires_grad
    }, kinds


@pytest.mark.parametrize("arch", TORCHVISION)
def test_the_same_layers_are_frozen_as_in_torchvision(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = _backbone(arch)
    with torch.device("meta"):
        states = {
            "IMAGENET1K": torchvision.models.get_model(classifier).state_dict(),
            "COCO": stock_of(arch, num_classes=91).state_dict(),
        }
    if arch == "keypointrcnn_resnet50_fpn":
        with torch.device("meta"):
            states["COCO"] = stock_of(
                arch, num_classes=2, num_keypoints=17
            ).state_dict()
    monkeypatch.setattr(
        WeightsEnum,
        "get_state_dict",
        lambda self, **_: dict(states[self.name.split("_")[0]]),
    )
    name = "IMAGENET1K_FEATURES" if classifier == "vgg16" else "IMAGENET1K_V1"
    backbone = torchvision.models.get_model_weights(classifier)[name]
    stages = len(STAGES[classifier]) or 5
    halved = arch.startswith("ssdlite")  # which takes no whole backbone
    for trained in (
        (None, 0, stages)
        if arch in ("fasterrcnn_resnet50_fpn_v2", "ssd300_vgg16", SMALL)
        else (None,) * (not halved)
    ):
        with torch.device("meta"):
            wanted = stock_of(
                arch, weights_backbone=backbone, trainable_backbone_layers=trained
            )
        got = outline(arch, weights_backbone=name, trainable_layers=trained)
        assert frozen(got) == frozen(wanted), trained
        assert got.state_dict().keys() == wanted.state_dict().keys()
    with torch.device("meta"):
        whole_weights = torchvision.models.get_model_weights(arch)["COCO_V1"]
        wanted = torchvision.models.get_model(arch, weights=whole_weights)
        with patch("saturate.models.detection._fit_to_shape"):
            got, new = build(
                arch,
                classes=len(whole_weights.meta["categories"]),
                shape=shape_of(arch),
                weights="COCO_V1",
                keypoints=17,
            )
    assert new.anew == [] and frozen(got)[0] == frozen(wanted)[0]
    assert any(eps == 0 for _, eps in frozen(wanted)[1].values()) == (arch in EPS_FREE)


def test_heads_of_other_classes_start_anew(tmp_path: Path) -> None:
    path = save(tmp_path / "five.pt", small_state())
    same, new = made(SMALL, weights=path)
    assert new.anew == [] and is_the_small_ones(same.state_dict())
    other, new = made(SMALL, classes=7, weights=path)
    assert new.anew == [
        f"roi_heads.box_predictor.{layer}.{part}"
        for layer in ("cls_score", "bbox_pred")
        for part in ("weight", "bias")
    ]
    kept = {
        name: value
        for name, value in other.state_dict().items()
        if name not in new.anew
    }
    assert is_the_small_ones(kept)


def test_published_norms_without_eps_keep_their_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision gives these an eps of 0; ours have the usual one and variances that are smaller by it, so
    checkpoints agree.
    """
    monkeypatch.setattr("saturate.models.detection.EPS_FREE", (SMALL,))
    state = dict(small_state())
    variances = {
        name: torch.rand(value.shape) * 2 + 1e-4
        for name, value in state.items()
        if name.endswith(".running_var")
    }
    for value in variances.values():
        value[0] = 5e-45  # dead: a scale of 1e22 in fp32, which fp16 does not have
    published = torchvision.models.get_model_weights(SMALL)["COCO_V1"].url.rpartition(
        "/"
    )[2]
    for file, eps in ((published, 0.0), ("mine.pt", 1e-5)):
        module, _ = made(SMALL, weights=save(tmp_path / file, state | variances))
        norms: dict[str, Any] = {
            name: one
            for name, one in module.named_modules()
            if isinstance(one, _FrozenNorm)
        }
        assert len(norms) == len(variances) and all(
            one.eps == 1e-5 for one in norms.values()
        )
        for name, norm in norms.items():
            scale = (norm.running_var + norm.eps).rsqrt()
            torch.testing.assert_close(
                scale[1:],
                (variances[f"{name}.running_var"][1:] + eps).rsqrt(),
                rtol=1e-5,
                atol=0,
            )
            assert scale[0] < torch.finfo(torch.float16).max


@pytest.mark.parametrize(
    ("arch", "chosen", "said"),
    [
        (
            SMALL,
            {"weights": "COCO_V9"},
            "--weights COCO_V9: no such file, and .* are COCO_V1",
        ),
        (
            SMALL,
            {"weights": "DEFAULT", "weights_backbone": "DEFAULT"},
            "--weights DEFAULT has a backbone already; give either",
        ),
        (SMALL, {"trainable_layers": 7}, "--trainable-layers 7: .* 6 stages"),
        ("keypointrcnn_resnet50_fpn", {"keypoints": 0}, "needs keypoints"),
        ("fcos_tiny", {"trainable_layers": 3}, "the backbone of --arch fcos_tiny"),
        ("ssd300_vgg16", {"shape": (2, 3, 512, 512)}, "for 300 pixels alone"),
    ],
)
def test_misuse_gets_one_line(arch: str, chosen: dict[str, Any], said: str) -> None:
    with torch.device("meta"), pytest.raises(Unusable, match=said) as caught:
        build(
            arch,
            **dict[str, Any](classes=CLASSES, shape=shape_of(arch), keypoints=KEYPOINTS)
            | chosen,
        )
    assert "\n" not in str(caught.value)
