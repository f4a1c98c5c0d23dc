"""Every preset parses, names what exists, and every setting is read by code: a key that nothing reads is a lie."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from config import GROUP_OF, parse, read_preset
from loaders import LOADERS
from models import classification as registry
from tests.end_to_end.runs import ROOT

PRESETS = sorted((ROOT / "configs").rglob("*.yaml"))
ROOMS = ("dataset", "engine", "loaders", "models", "report", "tasks")


def names_read(source: str) -> set[str]:
    """Attributes that are read, and strings in calls such as `model_dump(include={...})`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg == "include" and isinstance(node.value, ast.Set):
            found |= {str(item.value) for item in node.value.elts if isinstance(item, ast.Constant)}
    return found


def unread(sources: list[str]) -> set[str]:
    """Settings that none of the sources reads. `config` is read by the parser itself."""
    return set(GROUP_OF) - {"config"} - set().union(*map(names_read, sources))


def test_every_setting_is_read() -> None:
    sources = [path.read_text() for path in (ROOT / "train.py", *(path for room in ROOMS for path in (ROOT / room).rglob("*.py")))]
    # these two have one value so far, and code reads `told["task"]` or nothing at all
    assert unread(sources) <= {"source"}


def test_a_setting_that_is_not_read_is_seen() -> None:
    sources = ["run.evaluate = 1", "config.model_dump(include={'lr'})", "settings.seed + 1"]
    missing = unread(sources)
    assert "evaluate" in missing and "lr" not in missing and "seed" not in missing


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
