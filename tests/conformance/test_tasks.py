"""Every task has targets, losses, figures and settings as train.py needs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from contracts import World
from tasks import TASKS, kind_named
from tasks.classification import FIGURES, TopK
from tasks.kind import TaskKind
from tests.conformance import tasks
from tests.conformance.checks import raises
from tests.conformance.tasks import CASES, Case, planted
from tests.end_to_end.runs import ROOT
from tests.unit.test_meter import alone

CHECKS: dict[str, Callable[[Case], object]] = {
    "entry": tasks.entry_is_whole,
    "settings": tasks.settings_that_it_does_not_read_are_refused,
    "padding": tasks.padding_has_no_target,
    "losses": tasks.losses_are_one_a_sample,
    "facts": tasks.facts_are_json,
}


OF_NETWORKS = ("losses",)


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


@pytest.mark.parametrize("task", TASKS)
def test_figures_are_the_declared_ones_and_exact_over_ranks(task: str) -> None:
    kind = kind_named(task)
    assert kind.name == task
    own = [case for case in CASES.values() if case.kind is kind]
    given = set().union(*map(tasks.figures_are_exact, own))
    assert given == {figure.name for figure in kind.figures}


class Alone(TopK):
    def result(self, world: World) -> dict[str, float]:
        return super().result(alone())


FAULTS: dict[str, tuple[Case, str]] = {
    "no such architecture": (planted(arch="resnet19"), "entry"),
    "reads what is no setting": (planted(also=("no_such",)), "entry"),
    "no figure to lead the table": (planted(figures=FIGURES[3:]), "entry"),
    "reads everything": (planted(reads=lambda name: True), "settings"),
    "labels of padding": (
        planted(task={"targets": lambda _, rows: {"labels": np.maximum(rows.ids, 0)}}),
        "padding",
    ),
    "not masked": (
        planted(
            task={
                "losses": lambda _, out, batch: torch.ones(len(batch.ids)) * out.mean()
            }
        ),
        "losses",
    ),
    "one loss": (planted(task={"losses": lambda _, out, batch: out.mean()}), "losses"),
    "undeclared parts": (
        planted(task={"parts": lambda _, out: {"all": out.mean()}}),
        "losses",
    ),
    "own rank": (planted(task={"metric": lambda _, device: Alone(device)}), "figures"),
    "undeclared figure": (planted(figures=FIGURES[:3]), "figures"),
    "padding counts": (
        planted(task={"metric": lambda _, device: tasks.Padding(device)}),
        "figures",
    ),
    "not as JSON has it": (planted(facts=lambda plan: {"clip": (1, 2)}), "facts"),
}
"""A fault of classification, and the check that has to refuse it."""


@pytest.mark.parametrize(("case", "check"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_refused(case: Case, check: str) -> None:
    assert raises({**CHECKS, "figures": tasks.figures_are_exact}[check], case)


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
