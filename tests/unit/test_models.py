"""Architectures by name: heads fitted to the classes, and weights from files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from saturate.models import Loaded, Unusable
from saturate.models.classification import build, native
from saturate.settings.augmentation import AugmentationSettings
from saturate.tasks._plans import image_policies

OF_A_KIND = ["googlenet", "inception_v3", "maxvit_t", "resnet18", "vit_b_32"]
"""Architectures that are built otherwise, and one of the others, which torchvision builds by `num_classes` alone."""


def of(side: int) -> tuple[int, ...]:
    return (2, 3, side, side)


def small(
    classes: int = 10, *, weights: Path | None = None, arch: str = "squeezenet1_1"
) -> tuple[nn.Module, Loaded]:
    return build(
        arch,
        classes=classes,
        shape=of(64),
        weights=None if weights is None else str(weights),
    )


def save(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def assert_equal(one: nn.Module, other: nn.Module, *, but: list[str]) -> None:
    for (name, a), b in zip(
        one.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert (name in but) or torch.equal(a, b), name


@pytest.mark.parametrize("arch", OF_A_KIND)
def test_heads_are_fitted_to_the_classes(arch: str) -> None:
    """All else is torchvision's own network."""
    with torch.device("meta"):
        module, fresh = build(arch, classes=7, shape=of(native(arch).size))
        more = {"init_weights": False} if arch in ("googlenet", "inception_v3") else {}
        stock = torchvision.models.get_model(arch, **more).state_dict()
    seven = module.state_dict()
    assert fresh.anew == [] and seven.keys() == stock.keys()
    other = {name for name in seven if seven[name].shape != stock[name].shape}
    heads = {name.rpartition(".")[0] for name in other}
    assert len(heads) == {"googlenet": 3, "inception_v3": 2}.get(arch, 1)
    assert {len(seven[f"{head}.weight"]) for head in heads} == {7}


def test_what_older_versions_of_torchvision_have_written(tmp_path: Path) -> None:
    dense, _ = small(arch="densenet121")
    older = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", name): value
        for name, value in dense.state_dict().items()
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in older
    assert_equal(
        small(arch="densenet121", weights=save(tmp_path / "b.pt", older))[0],
        dense,
        but=[],
    )
    mnas, _ = small(arch="mnasnet0_5")
    unversioned = save(tmp_path / "c.pt", dict(mnas.state_dict()))
    assert_equal(small(arch="mnasnet0_5", weights=unversioned)[0], mnas, but=[])


def test_how_weights_were_measured() -> None:
    """All is as torchvision's own presets have it, of all weights: those that are named, and those of a file."""
    for arch in torchvision.models.list_models(module=torchvision.models):
        for weights in torchvision.models.get_model_weights(arch):
            found = native(arch, weights.name)
            assert native(arch, f"fetched/{Path(weights.url).name}") == found
            _, policy = image_policies(AugmentationSettings(), found)
            theirs = weights.transforms()
            assert [policy.image_size, policy.resize] == [
                *theirs.crop_size,
                *theirs.resize_size,
            ], weights
            assert [*found.mean, *found.std] == [*theirs.mean, *theirs.std], weights
    swag = native("regnet_y_16gf", "IMAGENET1K_SWAG_E2E_V1")
    assert (swag.size, swag.interpolation) == (384, "bicubic")
    assert native("regnet_y_16gf").interpolation == "bilinear"
    assert (
        native("resnet50", "last.pt") == native("resnet50")
        and native("resnet50").crop_share == 0.875
    )


HEADS = {
    "squeezenet1_1": ["classifier.1.weight", "classifier.1.bias"],
    "googlenet": [
        f"{head}.{part}"
        for head in ("aux1.fc2", "aux2.fc2", "fc")
        for part in ("weight", "bias")
    ],
}


@pytest.mark.parametrize("arch", HEADS)
def test_for_other_classes_the_head_alone_starts_anew_and_is_named(
    arch: str, tmp_path: Path
) -> None:
    module, _ = small(10, arch=arch)
    loaded, fresh = small(
        7, arch=arch, weights=save(tmp_path / "a.pt", module.state_dict())
    )
    assert fresh.anew == HEADS[arch]
    assert_equal(loaded, module, but=fresh.anew)
    assert loaded.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_stochastic_depth_is_torchvisions_up_to_the_largest() -> None:
    with torch.device("meta"):
        module, _ = build(
            "convnext_tiny", classes=10, shape=of(64), stochastic_depth=0.5
        )
    with torch.device("meta"):
        theirs = torchvision.models.convnext_tiny(stochastic_depth_prob=0.5)
    ours, expected = (
        [
            one.p
            for one in network.modules()
            if isinstance(one, torchvision.ops.StochasticDepth)
        ]
        for network in (module, theirs)
    )
    assert max(expected) == 0.5 and ours == pytest.approx(expected)


def test_a_network_without_stochastic_depth_takes_0_alone() -> None:
    build("squeezenet1_1", classes=10, shape=of(64), stochastic_depth=0.0)
    with pytest.raises(Unusable, match="squeezenet1_1, which has none"):
        build("squeezenet1_1", classes=10, shape=of(64), stochastic_depth=0.1)
