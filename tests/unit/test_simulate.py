"""The formulas of benchmarks/simulate.py, held against what they are about."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from benchmarks import simulate
from benchmarks.simulate import FORMULAS, GIB, ORDER_BYTES, Case, main, table
from saturate.contracts import Split
from saturate.dataset.stores.folder import open_folder
from saturate.dataset.synthetic import NoBytes, SyntheticImages
from saturate.plan.order import order
from tests.unit.folders import JPEG, fill

FILES = 100


def test_columns(cache: Path, tmp_path: Path) -> None:
    names = [f"n{i % 4}/{i:05d}.jpg" for i in range(FILES)]
    found = open_folder(fill(tmp_path / "set", dict.fromkeys(names, JPEG)), cache=cache)
    columns = [np.load(path) for path in found.folder.glob("*.npy")]
    case = Case(ranks=1, samples=FILES, name_bytes=len(names[0]))
    expected = FORMULAS["columns, GiB a host"](case) * GIB
    assert sum(column.nbytes for column in columns) == pytest.approx(expected, rel=0.01)


def test_order() -> None:
    tracemalloc.start()
    order(0, 0, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak == pytest.approx(ORDER_BYTES * 100_000, rel=0.01)


def test_failures() -> None:
    """Young's interval loses least: one that is half or twice as long loses more."""
    case = Case(ranks=16_384, samples=1)
    written = FORMULAS["checkpoint, s"](case)
    failure = 3600 * FORMULAS["a failure every, h"](case)
    # 419 failures in 54 days
    assert failure == pytest.approx(54 * 86_400 / 419, rel=0.001)
    best = 60 * FORMULAS["save every, min (Young)"](case)

    def lost(interval_s: float) -> float:
        return written / interval_s + (interval_s / 2 + case.restart_s) / failure

    assert FORMULAS["lost by failures, %"](case) == pytest.approx(100 * lost(best))
    assert f"| lost by failures, % | {100 * lost(best):.3g} |" in table([case])
    assert lost(best) < min(lost(best / 2), lost(best * 2))


@pytest.mark.parametrize("flags", ["--ranks 0", "--step-ms -1", "--storage-gib-s nan"])
def test_numbers_are_above_zero(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["simulate", *flags.split()])
    with pytest.raises(SystemExit, match="2"):
        main()


def test_a_presets_epochs_show_each_name_once_and_take_what_their_pixels_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = SyntheticImages(100)
    split = Split(columns=columns, source=NoBytes(100))
    monkeypatch.setattr(simulate, "synthetic", lambda: {"train": split, "val": split})
    path = tmp_path / "preset.yaml"
    path.write_text(
        "arch: resnet18\nbatch_size: 5\nepochs: 2\nimage_size: 64\nimage_size_start: 32\n"
        "image_size_ramp: [0, 1]\nwarmup_epochs: 0\nschedule: linear\nlr: 1\n"
    )
    words = ["--config", str(path), "--ranks", "2", "--rate", "10", "--gpu-price", "6"]
    assert main(words) == 0
    told = capsys.readouterr().out
    # ten steps of two fives; 100 images take 10 s, and a quarter of that at half the side
    assert "| 1 | 32 | 10 | 100 | 1 to 0.55 | 0.0417 |" in told
    assert "| 2 | 64 | 10 | 100 | 0.5 to 0.05 | 0.167 |" in told
    assert "in all 0.208 minutes of training, 0.00694 GPU hours, $0.0417" in told
    # ranks that show the same images
    monkeypatch.setattr(simulate, "replace", lambda plan, **rank: plan)
    with pytest.raises(ValueError, match="some too often"):
        list(simulate.schedule(path, 2, 10, 6))
