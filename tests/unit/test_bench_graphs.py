"""The suite `graphs`: its points are runs of train.py, and each row stands beside eager steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import graphs
from benchmarks.graphs import Graphs
from contracts import UserError


def test_points_are_runs_of_train_py(tmp_path: Path) -> None:
    settings = Graphs(loader="synthetic", archs=("resnet18", "alexnet"), batch_sizes=(8,), workers=3)
    found = graphs.points(settings)
    assert [point["step"] for point in found] == 2 * ["eager", "graphs", "compile+graphs"]
    words = graphs.command(settings, found[2], tmp_path)
    flags = dict(zip(words[-4::2], words[-3::2], strict=True))
    assert flags == {"--compile": "true", "--graphs": "true"} and "--workers" in words
    with pytest.raises(UserError, match="--graphs behind -- is what the suite sets itself"):
        graphs.points(Graphs(loader="synthetic", flags="--graphs false"))
    with pytest.raises(UserError, match="--data is missing"):
        graphs.points(Graphs())


def test_rates_beside_those_of_eager_steps() -> None:
    def row(step: str, size: int, rate: float | None) -> dict[str, Any]:
        point = {
            "arch": "resnet18",
            "loader": "synthetic",
            "precision": "fp16",
            "batch_size": size,
            "step": step,
        }
        figures = {"rate": rate}
        return {"point": point, "status": "ok" if rate else "failed", "figures": figures if rate else {}}

    rows = [row("eager", 8, 100.0), row("graphs", 8, 450.0), row("eager", 64, None), row("graphs", 64, 9.0)]
    assert [one["figures"]["of_eager"] for one in graphs.derive(rows)] == [1.0, 4.5, None, None]
