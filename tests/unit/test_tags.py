"""Images with a set of labels: how a list has them, and what mAP is of."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saturate.dataset.open import open_splits
from saturate.settings.data import Data
from saturate.tasks.classification import MultiLabel, average_precision
from tests.unit.folders import JPEG, fill, refused
from tests.unit.test_classification import batch_of, rows
from tests.unit.test_meter import alone
from tests.unit.test_splits import Console


def test_average_precision_is_the_precision_at_each_sample_of_the_class() -> None:
    assert average_precision(np.arange(4.0), np.zeros(4, bool)) is None
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.integers(0, 6, 30).astype(float)  # many are the same
        wanted = rng.random(30) < 0.4
        expected = [
            (wanted & (scores >= one)).sum() / (scores >= one).sum()
            for one in scores[wanted]
        ]
        assert average_precision(scores, wanted) == pytest.approx(np.mean(expected))


def test_a_list_of_sets(tmp_path: Path) -> None:
    root = fill(tmp_path / "data", {f"{name}.jpg": JPEG for name in "abcd"})
    (root / "train.csv").write_text(
        "path,labels\na.jpg,10;2\nb.jpg,2\nc.jpg,\nd.jpg,2; 10\n"
    )
    (root / "val.csv").write_text("a.jpg,2\nb.jpg,10 2\n")
    settings = Data(data=str(root), multi_label=True, manifest_dir=tmp_path / "cache")
    splits = open_splits(settings, loader="torchvision", console=Console())
    found = {
        name: [
            [columns.classes[at] for at in np.flatnonzero(columns.several[label])]
            for label in columns.label
        ]
        for name, split in splits.items()
        for columns in [split.columns]
    }
    assert found == {
        "train": [["2", "10"], ["2"], [], ["2", "10"]],
        "val": [["2"], ["2", "10"]],
    }
    turned = splits["train"].columns.numbered(np.array([2, 0]), ("ten", "other", "two"))
    assert turned.several[turned.label[1]].tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("between", "said"),
    [
        ("|", "'|'"),
        (";", ""),
        (" & ", "'&'"),
        (" ", "' '"),
        ("json", "commas of a list"),
        ("python", "commas of a list"),
    ],
)
def test_what_stands_between_labels_is_seen(
    between: str, said: str, tmp_path: Path
) -> None:
    """The truth are the sets that the list was written of; val has training's classes."""
    sets = [
        ["scab"],
        ["frog_eye", "scab"],
        ["rust", "scab"],
        [],
        ["rust"],
        ["frog_eye"],
    ]
    root = fill(tmp_path / "data", {f"{i}.jpg": JPEG for i in range(len(sets))})
    form: Any = {"json": json.dumps, "python": str}.get(between, between.join)
    for split in ("train", "val"):
        with (root / f"{split}.csv").open("w", newline="") as file:
            rows = [[f"{i}.jpg", form(words)] for i, words in enumerate(sets)]
            csv.writer(file).writerows([["path", "labels"], *rows])
    console = Console()
    settings = Data(data=str(root), multi_label=True, manifest_dir=tmp_path / "cache")
    splits = open_splits(settings, loader="torchvision", console=console)
    for found in splits.values():
        columns = found.columns
        assert columns.classes == ("frog_eye", "rust", "scab")
        assert [
            [columns.classes[at] for at in np.flatnonzero(columns.several[label])]
            for label in columns.label
        ] == sets
    told = [line for line in console.said if "taken apart at" in line]
    assert told[:1] == [
        f"train: labels are taken apart at {said}; --label-separator names another"
    ] * bool(said)


@pytest.mark.parametrize(
    ("labels", "separator", "classes"),
    [
        (["tabby cat", "dog"], ";", ("dog", "tabby cat")),
        (["tench, Tinca tinca", "goldfish"], ";", ("goldfish", "tench, Tinca tinca")),
        (["a;b", "b,c"], ";", ("a", "b", "b,c")),
        (["['a' 'b']", "['a']"], "#", ("['a' 'b']", "['a']")),
    ],
)
def test_labels_that_can_be_read_in_two_ways_are_refused(
    labels: list[str], separator: str, classes: tuple[str, ...], tmp_path: Path
) -> None:
    root = fill(tmp_path / "data", {f"{i}.jpg": JPEG for i in range(len(labels))})
    for split in ("train", "val"):
        lines = [f"{i}.jpg\t{label}\n" for i, label in enumerate(labels)]
        (root / f"{split}.tsv").write_text("".join(lines))
    settings = Data(data=str(root), multi_label=True, manifest_dir=tmp_path / "cache")

    def opened(settings: Data) -> tuple[str, ...]:
        splits = open_splits(settings, loader="torchvision", console=Console())
        return tuple(splits["val"].columns.classes)

    assert "--label-separator" in refused(lambda: opened(settings))
    assert opened(settings.model_copy(update={"label_separator": separator})) == classes


def test_the_loss_is_of_each_class_and_the_figure_of_all() -> None:
    several = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]], bool)
    labels = np.array([0, 1, 2, 2])
    task = MultiLabel(labels, classes_of_set=several)
    logits = torch.tensor([[3.0, 2, -1], [-2, -1, -1], [1, -3, 2], [-1, -2, torch.inf]])
    batch = batch_of(torch.from_numpy(labels))
    made = task.targets(rows([0, 1, 2, 3]))
    batch.targets |= {name: torch.from_numpy(value) for name, value in made.items()}
    wanted = torch.from_numpy(several[labels]).float()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, wanted, reduction="none"
    ).mean(1)
    torch.testing.assert_close(task.losses(logits, batch), expected, equal_nan=True)
    metric = task.metric(torch.device("cpu"))
    metric.update(logits, batch)
    told = metric.result(alone())
    assert isinstance(told, dict)
    # of the third class one sample is the first, and one, whose output is no number, the last
    assert told["map"] == pytest.approx((1 + 1 + (1 + 2 / 4) / 2) / 3)
    assert (told["samples"], told["losses_not_finite"], told["outputs_not_finite"]) == (
        4,
        1,
        1,
    )
    assert told["loss"] == pytest.approx(float(expected[:3].mean()), abs=1e-5)
    none = task.metric(torch.device("cpu"))
    unlabelled = {**batch.targets, "wanted": torch.zeros_like(wanted)}
    none.update(logits, replace(batch, targets=unlabelled))
    told = none.result(alone())
    assert isinstance(told, dict) and math.isnan(told["map"])
