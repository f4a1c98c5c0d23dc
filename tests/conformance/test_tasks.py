"""Every task has targets, losses, probes, figures and settings as train.py needs them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contracts import Figure, World
from tasks import TASKS, kind_named
from tasks.classification import FIGURES, Classification, TopK
from tasks.kind import TaskKind
from tests.conformance import tasks, toy_task
from tests.conformance.checks import raises
from tests.conformance.tasks import CASES, Case, planted
from tests.end_to_end.runs import ROOT, Runner, draw
from tests.unit.test_meter import alone

CHECKS: dict[str, Callable[[Case], object]] = {
    "entry": tasks.entry_is_whole,
    "settings": tasks.settings_that_it_does_not_read_are_refused,
    "padding": tasks.padding_has_no_target,
    "losses": tasks.losses_are_one_a_sample,
    "probes": tasks.probes_run,
    "facts": tasks.facts_are_json,
}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", toy_task.__name__)


OF_NETWORKS = ("losses", "probes")


@pytest.mark.parametrize(
    ("name", "check"),
    [
        (name, check)
        for name, case in CASES.items()
        for check in CHECKS
        if case.light or check not in OF_NETWORKS
    ],
)
def test_a_task(name: str, check: str) -> None:
    CHECKS[check](CASES[name])


@pytest.mark.parametrize("task", [*TASKS, "toy"])
def test_figures_are_the_declared_ones_and_exact_over_ranks(task: str) -> None:
    kind = kind_named(task)
    assert kind.name == task
    own = [case for case in CASES.values() if case.kind is kind]
    given = set().union(*map(tasks.figures_are_exact, own))
    assert given == {figure.name for figure in kind.figures}


class Alone(TopK):
    def result(self, world: World) -> dict[str, float]:
        return super().result(alone())


PLAIN = Classification(np.arange(1000))
FAULTS: dict[str, tuple[Case, str]] = {
    "no such architecture": (planted(arch="resnet19"), "entry"),
    "reads what is no setting": (planted(also=("no_such",)), "entry"),
    "a figure twice": (planted(figures=(*FIGURES, Figure(name="top1"))), "entry"),
    "no figure to lead the table": (planted(figures=FIGURES[3:]), "entry"),
    "reads everything": (planted(reads=lambda name: True), "settings"),
    "labels of padding": (
        planted(
            task={"targets": lambda task, rows: {"labels": np.maximum(rows.ids, 0)}}
        ),
        "padding",
    ),
    "not masked": (
        planted(
            task={
                "losses": lambda task, out, batch: (
                    torch.ones(len(batch.ids)) * out.mean()
                )
            }
        ),
        "losses",
    ),
    "half precision": (
        planted(
            task={"losses": lambda task, out, batch: PLAIN.losses(out, batch).half()}
        ),
        "losses",
    ),
    "one loss": (
        planted(
            task={"losses": lambda task, out, batch: PLAIN.losses(out, batch).mean()}
        ),
        "losses",
    ),
    "undeclared parts": (
        planted(task={"parts": lambda task, out: {"all": out.mean()}}),
        "losses",
    ),
    "twice the batch": (
        planted(task={"probe": lambda task, images: (torch.cat([images, images]),)}),
        "probes",
    ),
    "own rank": (
        planted(task={"metric": lambda task, device: Alone(device)}),
        "figures",
    ),
    "undeclared figure": (planted(figures=FIGURES[:3]), "figures"),
    "padding counts": (
        planted(task={"metric": lambda task, device: tasks.Padding(device)}),
        "figures",
    ),
    "not as JSON has it": (planted(facts=lambda plan: {"clip": (1, 2)}), "facts"),
    "not whole": (planted(bytes_read=lambda columns, ids: np.int64(3)), "facts"),
}
"""A fault of classification, and the check that has to refuse it."""


@pytest.mark.parametrize(("case", "check"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_refused(case: Case, check: str) -> None:
    assert raises({**CHECKS, "figures": tasks.figures_are_exact}[check], case)


PROGRAM = """
import sys, tasks
tasks.TASKS["toy"] = "tests.conformance.toy_task"
import train
if __name__ == "__main__":
    train.leave(train.main())
"""


def test_a_task_is_one_file_and_one_line(tmp_path: Path, runner: Runner) -> None:
    data = draw(tmp_path / "data", classes=("a", "b"), train=4, val=3)
    flags = f"--task toy --data {data} --manifest-dir {tmp_path / 'cache'} --output {tmp_path / 'run'}"
    small = "--loader torchvision --batch-size 4 --epochs 1 --image-size 16 --workers 1 --ceilings false"
    exact = "--precision fp32 --warmup-epochs 0"
    said = runner.python("-c", PROGRAM, *f"{flags} {small} {exact}".split()).done().out
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (
        summary["task"],
        summary["arch"],
        summary["steps"],
        summary["rate"]["unit"],
    ) == (
        "toy",
        "mean",
        2,
        "img/s",
    )
    assert (
        summary["validation"].keys() == {"rmse", "samples"}
        and summary["validation"]["samples"] == 6
    )
    assert f"RMSE              {summary['validation']['rmse']:.2f} classes" in said
    assert (tmp_path / "run/best.pt").exists()
    board = EventAccumulator(str(tmp_path / "run"))
    board.Reload()
    assert "val/rmse" in board.Tags()["scalars"]
    shown = board.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert b"^val/rmse$" in shown and b"error" in shown


def test_the_page_names_what_a_task_has() -> None:
    """docs/own-task.md: every member in its example is one of TaskKind."""
    blocks = re.findall(
        r"```py\n(class .*?)```",
        (ROOT / "docs/own-task.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    (kind,) = (
        node for node in ast.parse(blocks[0]).body if isinstance(node, ast.ClassDef)
    )
    assigned = {
        target.id
        for node in kind.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    defined = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
    assert (
        assigned <= set(TaskKind.__annotations__)
        and defined == TaskKind.__abstractmethods__
    )
