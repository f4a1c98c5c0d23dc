"""The benchmark of pairs: runs as they are and slowed ones in turns, and what is told of each two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import pairs

STEP_MS = {"forward": 16.0, "backward": 25.0}
"""A step of 41 ms; 5 % less of the rate are 41 / 0.95 - 41 = 2.158 ms more."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that take as long as they are asked to; their names and what they wait for."""
    runs: list[str] = []

    def run(case: Any, more: str, settings: Any, folder: Path) -> dict[str, Any]:
        waits = " ".join(case["env"]).removeprefix(f"{pairs.WAITS}=")
        runs.append(waits)
        of, _, ms = waits.partition(" ")
        split = STEP_MS | ({of: STEP_MS[of] + float(ms)} if of else {})
        step_s = sum(split.values()) / 1e3
        # windows that differ by a few tenths of a percent, and a first one that is slow
        rates = [share * 64 / step_s for share in (0.9, 1, 1.002, 0.998, 1.001, 0.999)]
        return {
            "batch_size": 64,
            "world_size": 1,
            "rate": {"steady": 64 / step_s, "spread": {"iqr": 1.0, "each": rates}},
            "ceiling": {"compute": None, "loader": None},
            "stages": {},
            "split_ms": split,
            "settings": {},
            "hardware": {},
            "versions": {},
        }

    monkeypatch.setattr(pairs, "run", run)
    return runs


def test_each_slowed_run_is_told_beside_each_other_one(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--data {tmp_path} --output {tmp_path} --runs 4 --slowed 2"
    assert pairs.main(words.split()) == 0
    assert [words.partition(" ")[0] for words in asked] == [
        *("", "", "forward", "", "", "backward")
    ]
    assert float(asked[2].split()[1]) == pytest.approx(2.158, abs=1e-3)
    told = json.loads((tmp_path / "pairs.json").read_text())
    assert told["same"] == {"0": 6} and told["slowed"] == {"1": 8}
    assert told["named"] == 8
    # 0.5 % is no loss that a pair can show
    assert pairs.main([*words.split(), "--loss", "0.005"]) == 1
    capsys.readouterr()


def test_a_network_that_waits_gives_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = torch.nn.Linear(3, 2)
    images = torch.ones(4, 3)
    plain(images).sum().backward()
    expected = plain.weight.grad
    assert expected is not None
    waited: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(pairs.time, "sleep", waited.append)
    for of in ("", *pairs.PASSES):
        plain.zero_grad()
        pairs.Waits(plain, of, 5.0)(images).sum().backward()
        torch.testing.assert_close(plain.weight.grad, expected, rtol=0, atol=0)
    assert waited == [0.005, 0.005]
