"""The detection demo, shortened: its preset learns to find and to name shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import demo_coco
from tests.end_to_end.runs import ROOT, Runner, summary

SHORT = (
    "--workers",
    1,
    "--ceilings",
    "false",
    "--epochs",
    6,
    "--val-every",
    6,
    "--warmup-epochs",
    0.5,
)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes") / "set"
    demo_coco.write(folder, 300, 40, progress=False)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_preset_learns(train: Runner, shapes: Path) -> None:
    preset = ("--config", ROOT / "configs/coco/demo.yaml", "--data", shapes)
    learning = train(*preset, "--output", "learned", *SHORT)
    learning.wait(500)  # a minute on two cores; here it may have one
    learning.done()
    train(*preset, "--output", "untrained", *SHORT, "--steps", 1).done()
    learned, untrained = (
        summary(train.cwd / name)["validation"] for name in ("learned", "untrained")
    )
    assert learned["ap50"] >= 0.18, (
        "who finds every shape and guesses its name has 0.13"
    )
    assert untrained["ap50"] < 0.05
