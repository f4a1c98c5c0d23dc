"""The suite `graphs`: its points are runs of train.py, and each row stands beside eager steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import _starts, graphs
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
    with pytest.raises(UserError, match="--archs got 'resnet' "):
        graphs.points(Graphs(archs=("resnet",)))


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
    found = [one["figures"] for one in graphs.derive(rows)]
    assert [figures.get("of_eager") for figures in found] == [1.0, 4.5, None, None]
    assert found[2] == {}, "a run that failed has none, and no plot"


@pytest.mark.parametrize("left", [None, "", '{"kind": "train", "steps_ms": {"graph": [900, 900, 900]}}'])
def test_a_table_is_shown_without_its_runs(left: str | None, tmp_path: Path) -> None:
    point = {"arch": "resnet18", "loader": "x", "precision": "fp16", "batch_size": 8, "step": "eager"}
    if left is not None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "metrics.jsonl").write_text(left)
    (tmp_path / "plots").mkdir()
    drawn = graphs.plots([{"point": point, "folder": "run"}], tmp_path / "plots")
    assert len(drawn) == bool(left)


def test_a_run_is_steady_once_three_seconds_are_at_its_final_rate(tmp_path: Path) -> None:
    """Steps of half a second for 4 s, then of a tenth, with a pause of 1.5 s in the middle of them."""
    slow = np.arange(8) * 0.5
    fast = 4 + np.arange(60) * 0.1
    ends_s = np.concatenate([slow, fast, 11.4 + np.arange(61) * 0.1])
    (tmp_path / "figures.json").write_text(json.dumps({"step_ends_s": [70.0 + at for at in ends_s]}))
    steps_ms = [{"forward": [9.0]}, {}, {"graph": [1e3 * took for took in np.diff(ends_s)]}]
    lines = [json.dumps({"kind": "train", "steps_ms": told}) for told in steps_ms]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    for ends in (_starts.ends_by_hand(tmp_path), _starts.ends_of_ours(tmp_path)):
        assert np.allclose(ends, ends_s)
        found = _starts.rates(ends, 8)
        assert np.allclose(found[:6], [16, 16, 16, 16, 80, 80]) and found[10] < 10
        assert _starts.steady_after(found) == 4
    figures = _starts.figures(ends_s, 8)
    assert (figures["early_ms"], figures["late_ms"]) == pytest.approx((100, 100))
    assert _starts.figures(ends_s[:49], 8) == {} != _starts.figures(ends_s[:50], 8)


def test_the_loop_by_hand_is_a_row_beside_ours(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "a" / "b.jpg").touch()
    settings = Graphs(data=str(tmp_path), archs=("resnet18",), batch_sizes=(8,), steps=("eager", "by-hand"))
    settings = settings.model_copy(update={"loader": "dali-cpu", "flags": "--ceilings false"})
    ours, by_hand = graphs.points(settings)
    assert by_hand == {**ours, "step": "by-hand"}
    words = graphs.command(settings, by_hand, tmp_path)
    assert "benchmarks.baselines.train" in words and words[words.index("--loader") + 1] == "dali-cpu"
    for wrong, why in (
        ({"loader": "dali-fed"}, "--loader"),
        ({"precision": "bf16"}, "--precision bf16: the loop by hand trains in"),
        ({"flags": "--ema 0.9"}, "--ema behind -- with --by-hand"),
        ({"archs": ("inception_v3",)}, "inception_v3 at 299"),
    ):
        with pytest.raises(UserError, match=why):
            graphs.points(settings.model_copy(update=wrong))
