"""--arch timm/NAME and --arch package.module:function."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data import create_transform, resolve_data_config

from saturate.contracts import UserError
from saturate.engine.distributed import ProcessWorld
from saturate.models import Unusable
from saturate.models import timm as registry
from saturate.report.hardware import versions
from saturate.run import archs
from saturate.run.build import resolve
from saturate.settings.config import build, parse
from saturate.tasks import architecture, kind_named
from saturate.tasks._plans import image_policies
from saturate.tasks.initial_state import Start
from tests.unit.test_house import ROOT

IMAGES = kind_named("classification")


CROPS = (
    *("resnet50.a1_in1k", "efficientnet_b4", "vit_small_patch16_224"),
    "convnext_base.fb_in22k_ft_in1k_384",
)


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("arch", CROPS)
def test_the_validations_crop_is_timms(arch: str, evaluated: bool) -> None:
    """At sizes of its own, and at any other. timm's train.py and validate.py read other keys of a network."""
    published = timm.get_pretrained_cfg(arch).to_dict()
    flags = {"arch": f"timm/{arch}", "weights": "DEFAULT", "evaluate": evaluated}
    for size in (None, 117, 144, 256, 351):
        given = {} if size is None else {"image_size": size}
        config = build({**flags, **given}, origin="flags")
        start = Start.from_config(
            config, {*flags, *given}, {}, path=None, origin="flags"
        )
        native = start.native(registry, f"timm/{arch}")
        _, policy = image_policies(config.augmentation, native)
        theirs = resolve_data_config(
            {"img_size": size} if size else {},
            pretrained_cfg=published,
            use_test_size=evaluated,
        )
        resize, crop, *_ = create_transform(**theirs).transforms
        length = resize.size
        if policy.window == "stretch":
            assert length == crop.size == (policy.image_size,) * 2
        else:
            assert (policy.resize, (policy.image_size,) * 2) == (length, crop.size), (
                size
            )
        found = (*native.mean, *native.std, native.interpolation)
        assert found == (*theirs["mean"], *theirs["std"], theirs["interpolation"])


@pytest.mark.parametrize("flag", ["--val-resize 400", "--val-crop-share 0.9"])
def test_a_crop_is_refused_where_the_networks_own_window_has_none(
    flag: str, tmp_path: Path
) -> None:
    """timm's published configuration of the first network is of squash, that of the second of a crop in the center."""
    world = ProcessWorld(torch.device("cpu"))

    def window(words: str, given: set[str], checkpoint: dict[str, Any]) -> str | None:
        config = parse(["--loader", "synthetic", *words.split()])
        start = Start.from_config(config, given, checkpoint, path=None, origin="")
        return resolve(start, world).config.augmentation.val_window

    squash, center = "convnext_base.fb_in22k_ft_in1k_384", "resnet18.a1_in1k"
    modes = [timm.get_pretrained_cfg(arch).crop_mode for arch in (squash, center)]
    assert modes == ["squash", "center"]
    arch = f"--arch timm/{squash}"
    says = f"^{flag.split()[0]} is for --val-window center, and this network's own is"
    with pytest.raises(UserError, match=says):
        window(f"{arch} {flag}", set(), {})
    window(f"--arch timm/{center} {flag}", set(), {})
    window(f"{arch} {flag} --val-window center", set(), {})
    # a preset may keep what --arch has made idle, and a run's last.pt has what came of it
    preset = tmp_path / "preset.yaml"
    preset.write_text(flag.removeprefix("--").replace(" ", ": "))
    window(f"--config {preset} {arch}", set(), {})
    kept = {
        "config": {"arch": f"timm/{squash}"},
        "used": {"val_window": "stretch", "image_size": 384, "val_resize": 384},
        "arch": f"timm/{squash}",
        "classes": ["a", "b"],
    }
    assert window("--evaluate true --weights x", {"evaluate"}, kept) == "stretch"


@pytest.mark.parametrize(
    ("arch", "head"), [("resnet18", "fc"), ("vit_tiny_patch16_224", "head")]
)
def test_weights_of_a_file(arch: str, head: str, tmp_path: Path) -> None:
    """Also at another size than that of the weights, for which a transformer has to be told."""
    shape = (2, 3, 64, 64)
    module, _ = registry.build(f"timm/{arch}", classes=5, shape=shape)
    torch.save(module.state_dict(), tmp_path / "a.pt")
    again, loaded = registry.build(
        f"timm/{arch}", classes=7, shape=shape, weights=str(tmp_path / "a.pt")
    )
    assert loaded.anew == [f"{head}.weight", f"{head}.bias"]
    for name, value in again.state_dict().items():
        assert name in loaded.anew or torch.equal(value, module.state_dict()[name]), (
            name
        )
    assert again(torch.zeros(shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("arch", "weights"),
    [("resnet18", "fb_ssl_yfcc100m_ft_in1k"), ("resnet18.tv_in1k", "DEFAULT")],
)
def test_published_weights_by_name(
    arch: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for by the tag, and all but the head of other classes is theirs."""
    package = registry._timm()
    create = package.create_model
    published: dict[str, Any] = {}

    def create_model(name: str, *, pretrained: bool, **options: Any) -> Any:
        made = create(name, pretrained=False, **options)
        return published.setdefault(name, made) if pretrained else made

    monkeypatch.setattr(package, "create_model", create_model)
    module, loaded = registry.build(
        f"timm/{arch}", classes=5, shape=(2, 3, 64, 64), weights=weights
    )
    ((name, theirs),) = published.items()
    assert name == f"resnet18.{'tv_in1k' if weights == 'DEFAULT' else weights}"
    assert loaded.anew == ["fc.weight", "fc.bias"] and torch.equal(
        module.state_dict()["conv1.weight"], theirs.conv1.weight
    )


def test_weights_of_another_size_of_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """timm resizes what it has published; a file's weights are for their own size."""
    arch, tag = "timm/vit_tiny_patch16_224", "augreg_in21k_ft_in1k"
    package = registry._timm()
    create = package.create_model
    file = str(tmp_path / "a.pt")
    torch.save(create("vit_tiny_patch16_224").state_dict(), file)

    def create_model(name: str, *, pretrained: bool, **options: Any) -> Any:
        overlay = {"pretrained_cfg_overlay": {"file": file}} if pretrained else {}
        return create(name, pretrained=pretrained, **overlay, **options)

    monkeypatch.setattr(package, "create_model", create_model)
    shape = (2, 3, 64, 64)
    module, loaded = registry.build(arch, classes=5, shape=shape, weights=tag)
    assert loaded.anew == ["head.weight", "head.bias"]
    assert module.get_parameter("pos_embed").shape[1] == 17
    with pytest.raises(Unusable, match=r"'pos_embed' is .*: --image-size N, that of"):
        registry.build(arch, classes=5, shape=shape, weights=file)


def test_published_weights_name_their_classes() -> None:
    names = registry.classes("timm/resnet50", "a1_in1k")
    assert (len(names), names[0]) == (1000, "n01440764")
    assert len(registry.classes("timm/convnext_tiny", "in12k")) == 11821


def test_timm_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        Unusable,
        match=r"--arch timm/NAME is of timm, which cannot be imported .*: pip install timm",
    ):
        architecture(IMAGES, "timm/resnet50")
    assert architecture(IMAGES, "resnet50")[0] is IMAGES.registry
    with pytest.raises(UserError, match=r"'resnet26d'.*python -m scripts.archs lists"):
        architecture(IMAGES, "resnet26d")


def test_names_are_listed_and_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("resnet26d", "vit_small_patch16_224"):
        with pytest.raises(UserError, match=f"'{name}', which is timm/{name} here$"):
            architecture(IMAGES, name)
    with pytest.raises(UserError, match=r"did you mean timm/vit_small_\w+ or timm/"):
        architecture(IMAGES, "vit_s")
    with pytest.raises(UserError, match=r"did you mean resnet\d+ or"):
        architecture(IMAGES, "resnet1")
    assert archs.main(["resnet26d"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["classification", "timm/resnet26d", "224"] in lines
    assert all("resnet26d" in name and "." not in name for _, name, _ in lines)
    assert archs.main(["nothing"]) == 2


OWN = """
import torch
from torch import nn

def images(num_classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))

def clips(num_classes):
    return nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, num_classes))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)


@pytest.mark.parametrize(
    ("task", "name", "shape"),
    [("classification", "images", (2, 3, 9, 9)), ("video", "clips", (2, 3, 4, 9, 9))],
)
@pytest.mark.usefixtures("own")
def test_a_function_of_ones_own(
    task: str, name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    kind = kind_named(task)
    found, arch = architecture(kind, f"own_networks:{name}")
    assert found.native(arch) == kind.registry.native(kind.arch)
    module, loaded = found.build(arch, classes=4, shape=shape)
    assert module(torch.zeros(shape)).shape == (2, 4) and not loaded.anew
    torch.save(module.state_dict(), tmp_path / "a.pt")
    again, _ = found.build(arch, classes=4, shape=shape, weights=str(tmp_path / "a.pt"))
    assert torch.equal(again[2].weight, module[2].weight)  # type: ignore[index]


def test_the_pages_network_begins_with_a_small_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name that the page's table has, and with the task's pixels, not those of timm's network."""
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    *_, code = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "nets.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    found, arch = architecture(IMAGES, "nets:convnext")
    assert (
        found.native(arch).crop_share < registry.native("timm/convnext_tiny").crop_share
    )
    module, _ = found.build(arch, classes=4, shape=(2, 3, 64, 64))
    assert 0 < module.get_parameter("head.fc.weight").std() < 1e-4


def test_a_summary_has_timms_version() -> None:
    assert versions()["timm"] == timm.__version__
