"""README's "Your own images", as it stands: from a folder of photos to predictions and an ONNX file."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest
import torch
import torchvision

from tests.end_to_end.runs import ROOT, Runner, draw, rows

SMALL = "--arch squeezenet1_1 --batch-size 8 --image-size 32 --workers 0 --loader torchvision --precision fp32"
NEW = ["NEW/000.jpg", "NEW/001.jpg", "NEW/002.jpg"]
SHORT = {
    "train.py --data": ("--epochs", "2", "--ceilings", "false"),
    "train.py --predict": ("--workers", "0"),
}


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    block = re.search(
        r"^##? Your own images\n.*?```bash\n(.*?)```", text, re.DOTALL | re.MULTILINE
    )
    assert block
    joined = block[1].strip().replace("\\\n", "")
    activated, *lines = joined.splitlines()
    assert activated.startswith("scripts/setup.sh && . .venv/bin/activate")
    (installs,) = (at for at, line in enumerate(lines) if "pip install" in line)
    assert lines[installs].startswith(
        "python -m pip install onnx onnxscript onnxruntime"
    )
    assert "scripts.export" in lines[installs + 1]
    return [line for line in lines if re.match(r"python (?!-m pip )", line)]


@pytest.mark.slow
def test_four_commands(train: Runner) -> None:
    """On small images, with weights of the published name that are drawn here."""
    tmp_path = train.cwd
    drawn = draw(tmp_path / "drawn", classes=("cat", "dog"), train=20, val=3)
    (drawn / "train").rename(tmp_path / "PHOTOS")
    (drawn / "val" / "cat").rename(tmp_path / "NEW")
    weights = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    hub = tmp_path / "torch/hub/checkpoints"
    hub.mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(
        torchvision.models.squeezenet1_1().state_dict(), hub / Path(weights.url).name
    )
    env = {"TORCH_HOME": str(tmp_path / "torch"), "PYTHONPATH": str(ROOT)}
    lines = commands("README.md")
    assert len(lines) == 4 and lines == commands("docs/own-images.md")
    for line in lines:
        words = shlex.split(line.replace("NEW/*", " ".join(NEW)))
        assert words[0] == "python"
        words = [
            str(ROOT / word) if (ROOT / word).is_file() else word for word in words[1:]
        ]
        if "--weights" in words:
            words += SMALL.split()
        for start, more in SHORT.items():
            words += more if start in line else ()
        told = train.python(*words, env=env)
        assert told.wait() == 0, f"{line}\n{told.out[-1500:]}{told.err[-1500:]}"
    predicted = rows(tmp_path / "runs/new/predictions.csv")
    assert [row["path"] for row in predicted] == NEW
    served = list(csv.DictReader(told.out.splitlines()))
    for row, answer in zip(predicted, served, strict=True):
        assert (row["path"], row["class"]) == (answer["path"], answer["class"])
        assert float(row["probability"]) == pytest.approx(
            float(answer["probability"]), abs=0.01
        )
    left = {path.name for path in (tmp_path / "runs/photos").iterdir()}
    assert {
        "best.onnx",
        "results.csv",
        "val_predictions.csv",
        "confusion.csv",
        "classes.csv",
    } <= left
