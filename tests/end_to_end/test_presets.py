"""Every preset parses, says what it sets and names what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import parse, read_preset
from loaders import LOADERS
from models import classification as registry
from tests.end_to_end.runs import ROOT

PRESETS = sorted((ROOT / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_preset(path: Path) -> None:
    """Parses, sets what it says, names what exists; its header is a page of a lab book."""
    config = parse(["--config", str(path)])
    for key, value in read_preset(path).items():
        got = config.flat()[key]
        assert got == value or str(got) == str(value), key
    assert config.model.arch in registry.names()
    assert config.loading.loader in (*LOADERS, "auto")
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert all(any(line.startswith(f"# {word} ") for line in header) for word in ("command", "hardware", "expected", "source"))


def test_there_are_presets() -> None:
    names = {str(path.relative_to(ROOT / "configs")) for path in PRESETS}
    assert names >= {"demo.yaml", *(f"imagenet/{arch}.yaml" for arch in ("alexnet", "resnet18", "resnet50", "shufflenet_v2_x0_5"))}
