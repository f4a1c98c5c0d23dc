"""Scoring in processes: the same figures, also when the processes do not live."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from system import processes
from system.processes import results
from tasks import _coco, _results
from tests.unit.coco_files import write_coco
from tests.unit.test_coco_scoring import KINDS, Set, guesses


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Set:
    folder = tmp_path_factory.mktemp("few")
    return Set(
        write_coco(
            folder / "set", splits={"train2017": 1, "val2017": 13}, size=(64, 80)
        ),
        folder / "cache",
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes each piece of work was given."""
    found: list[int] = []

    def counted(work: Any, items: Any, workers: int) -> Any:
        found.append(workers)
        return results(work, items, workers)

    monkeypatch.setattr(processes, "results", counted)
    return found


@pytest.mark.parametrize("evaluator", _coco.EVALUATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_processes_with_a_part_of_the_categories_change_no_digit(
    few: Set,
    kind: str,
    evaluator: str,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = few.columns(kind)
    found = guesses(columns, kind, seed=2, each=4, digits=1)
    alone = _coco.score(columns, found, kind=kind, evaluator=evaluator, workers=2)
    monkeypatch.setattr(_coco, "MANY", 0)
    for workers in (2, 9):
        together = _coco.score(
            columns, found, kind=kind, evaluator=evaluator, workers=workers
        )
        for name in ("precision", "recall", "category_ids"):
            np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))
    assert asked == (
        [2, min(9, len(columns.category_ids))] if len(columns.category_ids) > 1 else []
    )


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_write_a_part_change_no_byte(
    few: Set, kind: str, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = guesses(few.columns(kind), kind, seed=3, each=4)
    alone = _results.written(found, kind)
    monkeypatch.setattr(_results, "PART", 7)
    monkeypatch.setattr(_results, "cores", lambda: 3)
    assert _results.written(found, kind) == alone and asked == [3]
    assert len(json.loads(alone)) == len(found) > 21
