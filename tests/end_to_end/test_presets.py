"""Every preset parses, says what it sets and names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torchvision

from config import parse, read_preset, recipe
from tasks import kind_of
from tests.end_to_end.runs import ROOT

PRESETS = [path for path in sorted((ROOT / "configs").rglob("*.yaml")) if path.parent.name != "published"]
DETECTORS = torchvision.models.list_models(module=torchvision.models.detection)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_preset(path: Path) -> None:
    config = parse(["--config", str(path)])
    for key, value in read_preset(path).items():
        got = config.flat()[key.replace("-", "_")]
        assert got == value or str(got) == str(value) or got == pytest.approx(float(value)), key
    known = recipe(parse([]), str(config.model.arch))
    assert (path.stem == "demo") == (not any(str(path).endswith(line.split()[1]) for line in known)), known
    assert recipe(config, str(config.model.arch)) == []
    kind = kind_of(config)
    assert config.model.arch in kind.registry.names()
    assert config.loading.loader in (*kind.loaders, "auto")
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert all(
        any(line.startswith(f"# {word} ") for line in header)
        for word in ("command", "hardware", "expected", "source")
    )


@pytest.mark.parametrize("arch", DETECTORS)
def test_detectors_expect_what_torchvision_published(arch: str) -> None:
    """The header's figures are those of torchvision's weights, and the backbone's weights are known by the
    name that is set.
    """
    path = ROOT / f"configs/coco/{arch}.yaml"
    config = parse(["--config", str(path)])
    published = torchvision.models.get_model_weights(arch)["COCO_V1"]
    (expected,) = (line for line in path.read_text().splitlines() if line.startswith("# expected "))
    figures = {
        name: float(value) for name, value in re.findall(r"(box|mask|keypoint) AP (\d+\.\d)", expected)
    }
    metrics = published.meta["_metrics"]["COCO-val2017"]
    keys = {"box": "box_map", "mask": "mask_map", "keypoint": "kp_map"}
    assert figures == {name: metrics[key] for name, key in keys.items() if key in metrics}
    assert f"{type(published).__name__}.COCO_V1" in expected
    assert config.model.arch == arch and config.model.task == "detection"
    backbone = config.detection.weights_backbone
    classifier = "vgg16" if "vgg" in arch else "mobilenet_v3_large" if "mobilenet" in arch else "resnet50"
    assert backbone is None or backbone in torchvision.models.get_model_weights(classifier).__members__


def test_there_are_presets() -> None:
    names = {str(path.relative_to(ROOT / "configs")) for path in PRESETS}
    imagenet, video = "alexnet resnet18 resnet50 shufflenet_v2_x0_5", "demo r3d_18 mvit_v2_s s3d"
    superres = "demo srcnn_x3 espcn_x3 edsr_x2"
    for folder, files in (("imagenet", imagenet), ("superres", superres), ("video", video)):
        assert names >= {"demo.yaml", *(f"{folder}/{file}.yaml" for file in files.split())}
