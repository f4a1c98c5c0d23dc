"""CUSTOM SCALARS of the suites, as TensorBoard's own plugin lays them out."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin

from benchmarks import _curves, _show
from benchmarks._suite import Row
from scripts.bench import suite_of
from tests.unit.test_report_tensorboard import provider

SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"arch": "resnet18", "loader": "dali-gpu", "precision": "fp16", "gpus": 1},
    "workers": {"image_size": 224, "workers": 1, "memory": "pinned", "step": "eager"},
    "loader": {"loader": "pytorch", "batch_size": 8},
    "slow-storage": {"method": "pytorch", "steps": 10},
    "max-batch": {"arch": "resnet18", "loader": "dali-gpu", "precision": "fp16"},
    "readers": {"reader": "pil", "task": "full"},
}


def row(suite: str, point: dict[str, Any], figures: dict[str, Any], status: str = "ok") -> Row:
    of: Row = {
        "suite": suite,
        "point": point,
        "status": status,
        "error": None,
        "spread": {},
        "versions": {},
        "hardware": {},
    }
    return of | {"folder": f"runs/{len(point)}", "figures": figures, "took_s": 1.0, "began": 0.0}


def charts(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Group -> title -> what its tags match, of all runs."""
    plugin = CustomScalarsPlugin(base_plugin.TBContext(data_provider=provider(folder)))
    layout = json.loads(plugin.layout_impl(RequestContext(), ""))
    return {
        one["title"]: {chart["title"]: chart["multiline"]["tag"] for chart in one["chart"]}
        for one in layout.get("category", [])
    }


def curve(run: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in EventAccumulator(str(run)).Reload().Scalars(tag)]


@pytest.mark.parametrize("name", [*_curves.CURVES])
def test_every_suite_has_its_charts_and_no_figure_is_lost(name: str, tmp_path: Path) -> None:
    over, figures = _curves.CURVES[name]
    rows = [row(name, SETTINGS[name] | {over: at}, dict.fromkeys(figures, 10.0 * at)) for at in (2, 1)]
    for _ in range(2):  # showing again adds nothing
        _curves.write(suite_of(name), rows, tmp_path, unit="img/s")
    titles = {column.key: column.title.format(unit="img/s") for column in suite_of(name).columns}
    group = f"{name} over {over}"
    assert charts(tmp_path) == {group: {titles[figure]: [f"^{group}/{figure}$"] for figure in figures}}
    for figure in figures:
        assert curve(tmp_path / "curves" / name, f"{group}/{figure}") == [(1, 10.0), (2, 20.0)]


def test_a_run_is_of_points_that_differ_in_one_value_and_refused_figures_are_in_none(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    figures = {"total_s": 2.0, "waited_s": 0.5, "floor_s": 1.0}
    rows = [
        row("slow-storage", {"read_delay_ms": delay, "method": method, "steps": 10}, figures, status)
        for delay, method, status in (
            (0.0, "pytorch", "ok"),
            (2.5, "pytorch", "ok"),
            (2.5, "dali-fed", "ok"),
            (0.0, "dali-fed", "short"),
        )
    ]
    _show.show(suite_of("slow-storage"), rows, tmp_path, Console(file=io.StringIO()))
    group = "slow-storage over read_delay_ms, thousandths"
    assert {path.name for path in (tmp_path / "curves").iterdir()} == {"pytorch", "dali-fed"}
    assert curve(tmp_path / "curves" / "pytorch", f"{group}/waited_s") == [(0, 0.5), (2500, 0.5)]
    assert curve(tmp_path / "curves" / "dali-fed", f"{group}/waited_s") == [(2500, 0.5)]
    assert [*charts(tmp_path)[group]] == ["waited, s", "steps, s"]
