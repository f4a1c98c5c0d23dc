"""A figure of a validation is what a plain loop makes of the same outputs; each of the table has a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Array, Rows
from saturate.tasks import TASKS, kind_named
from tests.conformance.tasks import CASES, VAL, Case, figures_of
from tests.unit import test_coco_scoring, test_superres_task
from tests.unit.test_meter import alone

BINS = 15
"""Bins of the calibration error, as many as Guo et al. 2017 take."""
COUNTS = ("samples", "detections", "outputs_not_finite")


def of_classes(logits: Array, labels: Array) -> dict[str, float]:
    """Return what logits, float64 [N, classes], say of labels."""
    ranked = np.argsort(-logits, axis=1, kind="stable")
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = exponents / exponents.sum(axis=1, keepdims=True)
    sure, right = shares.max(axis=1), ranked[:, 0] == labels
    error = 0.0
    for low in np.arange(BINS) / BINS:
        inside = (sure > low) & (sure <= low + 1 / BINS)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    none = dict.fromkeys(("losses_not_finite", "outputs_not_finite"), 0)
    return none | {
        "top1": right.mean(),
        "top5": (ranked[:, :5] == labels[:, None]).any(axis=1).mean(),
        "loss": -np.log(shares[np.arange(len(labels)), labels]).mean(),
        "ece": error,
        "samples": len(labels),
    }


def views_of(case: Case) -> dict[int, list[Array]]:
    """Return the logits of each sample's views, float64 [classes]."""
    columns = case.splits["val"].columns
    found: dict[int, list[Array]] = {}
    for rows in case.plans()[1].rows(0, 0):
        logits = case.outputs(columns, rows).double().numpy()
        for place in np.flatnonzero(rows.valid):
            found.setdefault(int(rows.ids[place]), []).append(logits[place])
    return found


def partly_right(case: Case) -> Case:
    """Return a case whose outputs are right for a third of the samples, and nearly for another."""
    labels = np.asarray(case.splits["val"].columns.label)

    def outputs(columns: Any, rows: Rows) -> torch.Tensor:
        drawn: torch.Tensor = case.outputs(columns, rows)
        for place in np.flatnonzero(rows.valid):
            sample = int(rows.ids[place])
            drawn[place, labels[sample]] = (9.0, 0.0, 0.0)[sample % 3]
            if sample % 3 == 1:  # its label comes fourth
                drawn[place] = -drawn[place].abs()
                drawn[place, :3] = torch.tensor([1.0, 0.9, 0.8])
                drawn[place, labels[sample]] = 0.7
        return drawn

    return replace(case, outputs=outputs)


def images(case: Case) -> dict[str, float]:
    found = views_of(case)
    labels = np.asarray(case.splits["val"].columns.label)[[*found]]
    return of_classes(
        np.stack([np.mean(its, axis=0) for its in found.values()]), labels
    )


def videos(case: Case) -> dict[str, float]:
    return images(case) | {"views": sum(map(len, views_of(case).values()))}


BY_LOOP: dict[str, Callable[[Case], dict[str, float]]] = {
    "classification": images,
    "video": videos,
}
ELSEWHERE = {
    "detection": {*chain(*test_coco_scoring.STATS.values()), *COUNTS},
    "superres": {*test_superres_task.MEANS, *COUNTS} - {"detections"},
}
"""Task -> the names of figures whose references take files: pycocotools', and the papers' formulas."""


@pytest.mark.parametrize("task", BY_LOOP)
def test_figures_are_a_plain_loops(task: str) -> None:
    case = partly_right(CASES[task])
    found = figures_of(case, alone())
    assert 0 < found["top1"] < found["top5"] < 1
    assert found == pytest.approx(BY_LOOP[task](case), abs=1e-6)
    assert found["samples"] == VAL


@pytest.mark.parametrize(
    ("task", "figure"),
    [(task, one.name) for task in TASKS for one in kind_named(task).figures],
)
def test_a_figure_has_a_reference(task: str, figure: str) -> None:
    known = BY_LOOP[task](CASES[task]) if task in BY_LOOP else ELSEWHERE.get(task, {})
    assert figure in known, f"{task}'s {figure} has no reference here"
