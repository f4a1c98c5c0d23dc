"""What a classifier got wrong: matrix, calibration, files; results.csv; trackers."""

from __future__ import annotations

import csv
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contracts import UserError
from report import record, sinks, summary
from tasks._answers import Answers, Collected
from tasks._wrong import BINS, Validated, calibration_error, confusion
from tasks.classification import Classification
from tests.unit.test_classification import batch_of
from tests.unit.test_meter import alone

CLASSES = ("ant", "bee", "cat")
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
LOGITS = torch.tensor([[4.0, 0, 0], [0, 3, 0], [0, 5, 0], [0, 1, 0], [0, 9, 0], [0, torch.nan, 0]])


class Pictures:
    """A source of one colour a sample."""

    files = False
    read_delay_s = 0.0

    def __len__(self) -> int:
        return len(LABELS)

    def name(self, sample: int) -> str:
        return f"/photos/{sample}.png"

    def read(self, sample: int) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (40, 30), (40 * sample, 0, 0)).save(buffer, "PNG")
        return buffer.getvalue()

    def check(self, sample: int, size: int) -> None:
        pass


def answers(logits: torch.Tensor = LOGITS, labels: torch.Tensor = LABELS, *, binary: bool = False) -> Answers:
    collected = Collected(binary=binary)
    collected.add(np.arange(len(labels)), logits, labels, torch.ones(len(labels), dtype=torch.bool))
    return collected.answers(alone())


def table(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_files_say_what_went_wrong() -> None:
    assert confusion(answers(), 3).tolist() == [[1, 1, 0], [0, 2, 0], [0, 1, 0]]
    extras = Validated(classes=CLASSES, source=Pictures()).extras(answers())
    matrix = table(extras["files"]["confusion.csv"])
    assert matrix[2] == {"label": "cat", "ant": "0", "bee": "1", "cat": "0"}
    by_class = table(extras["files"]["classes.csv"])
    assert by_class[0] == {
        "class": "ant",
        "samples": "2",
        "accuracy": "0.5",
        "mostly_taken_for": "bee",
        "times": "1",
    }
    rows = table(extras["files"]["val_predictions.csv"])
    assert [row["path"] for row in rows] == [f"/photos/{sample}.png" for sample in range(6)]
    assert (rows[1]["label"], rows[1]["class"], rows[1]["error"]) == ("ant", "bee", "")
    assert rows[5]["class"] == "" and "no number" in rows[5]["error"]
    assert extras["images"].keys() == {"val/confusion", "val/mistakes"}
    # two mistakes, the surest first: sample 4 at 99.9 %, then sample 1
    picture = extras["images"]["val/mistakes"][0]
    assert picture.shape[1] == 2 * 168 and picture[80, 84, 0] == 160 and picture[80, 168 + 84, 0] == 40


def test_with_binary_cross_entropy_each_class_has_a_probability_of_its_own() -> None:
    logits = torch.tensor([[2.0, 1.0, -3.0]])
    found = answers(logits, torch.tensor([0]), binary=True)
    assert found.shares[0].tolist() == pytest.approx(logits.sigmoid()[0].tolist())
    task = Classification(np.array([0]), binary=True)
    metric = task.metric(torch.device("cpu"))
    metric.update(logits, batch_of(torch.tensor([0])))
    told: Any = metric.result(alone())
    assert told["extras"]["answers"] == found


def test_calibration_is_how_far_probabilities_are_from_being_right() -> None:
    certain = 20 * torch.eye(3)[[0, 1, 2, 0]]
    assert calibration_error(answers(certain, torch.tensor([0, 1, 2, 0]))) == pytest.approx(0, abs=1e-6)
    assert calibration_error(answers(certain, torch.tensor([0, 1, 2, 1]))) == pytest.approx(0.25, abs=1e-6)
    logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(200) % 3
    found = answers(logits, labels)
    expected = 0.0
    for lower in range(BINS):
        inside = (found.shares[:, 0] * BINS).astype(int) == lower
        right = (found.classes[:, 0] == labels.numpy())[inside]
        expected += inside.mean() * abs(right.mean() - found.shares[inside, 0].mean()) if inside.any() else 0
    assert calibration_error(found) == pytest.approx(expected, abs=1e-6)


def test_a_row_an_epoch_also_after_a_resume(tmp_path: Path) -> None:
    kept = record.Record(tmp_path)
    for step in (5, 10, 15):
        kept.row("results.csv", {"epoch": step // 5, "step": step, "top1": step / 100})
    kept.row("results.csv", {"epoch": 2, "step": 10, "top1": 0.5})
    rows = table((tmp_path / "results.csv").read_bytes())
    assert [(row["epoch"], row["top1"]) for row in rows] == [("1", "0.05"), ("2", "0.5")]
    kept.row("results.csv", {"epoch": 2, "step": 10, "top1": None})  # behind the last step, resumed
    assert table((tmp_path / "results.csv").read_bytes())[1] == rows[1]
    kept.close()


def test_the_best_is_told_where_there_is_one(tmp_path: Path) -> None:
    from tasks.classification import FIGURES

    progress: dict[str, Any] = {"best": 0.75, "best_epoch": 3}
    assert summary.best(progress, FIGURES[0], tmp_path) == {}
    (tmp_path / "best.pt").touch()
    told = summary.best(progress, FIGURES[0], tmp_path)["best"]
    assert told == {"figure": "top1", "value": 0.75, "epoch": 4, "checkpoint": str(tmp_path / "best.pt")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # those of the packages
@pytest.mark.parametrize("name", sinks.SINKS)
def test_trackers_get_what_tensorboard_gets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "csv" and importlib.util.find_spec(name) is None:
        with pytest.raises(UserError, match=f"needs the package {name}: pip install {name}"):
            sinks.require([name])
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    board = sinks.Boards(tmp_path, {"log": [name], "settings": {"lr": 0.1}}, enabled=True)
    board.scalars({"train/loss": 0.5, "train/lr": None, "val/loss": float("nan")}, 7)
    board.close()
    board.close()
    if name == "csv":
        assert (tmp_path / "scalars.csv").read_text() == "step,tag,value\n7,train/loss,0.5\n"
    elif name == "wandb":
        (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
        assert b"train/loss" in kept.read_bytes() and b"val/loss" not in kept.read_bytes()
    else:
        import mlflow

        (run,) = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").search_runs(["0"])
        assert (run.data.metrics, run.data.params) == ({"train/loss": 0.5}, {"lr": "0.1"})
        assert run.info.status == "FINISHED"


def test_the_whole_command_goes_on(tmp_path: Path) -> None:
    argv = ["train.py", "--data", "my photos", "--output", "x", "--resume=auto", "--lr", "0.1"]
    alone = record.again(Path("runs/a"), argv, {})
    assert alone == "python train.py --data 'my photos' --lr 0.1 --output runs/a --resume auto"
    ranks = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    assert record.again(Path("r"), argv, ranks).startswith(
        "torchrun --standalone --nproc-per-node 8 train.py "
    )
