"""The benchmark of lists: both kinds are the same list, and a row is measured for each combination."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import lists
from tests.end_to_end.runs import ROOT, Runner


def test_both_lists_have_the_same_lines(tmp_path: Path) -> None:
    file = lists.write(tmp_path / "data", 2500)
    by_hand, mapped = lists.ByHand(file), lists.Mapped(file)
    assert len(by_hand) == len(mapped) == 2500
    for line in (0, 999, 1000, 2499):
        number = line % lists.FILES
        path = f"images/class-{number:04}/photograph-{number:08}.jpg"
        assert by_hand[line] == (number, len(path))
        label, _ = mapped[line]
        assert mapped.columns.class_names[label] == str(number)
        assert str(mapped.columns.path(line), "utf-8").endswith(path)


def test_a_row_for_each_combination(
    tmp_path: Path,
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # processes that have imported PyTorch already
    forked = SimpleNamespace(Popen=lambda words: runner.python(*words[1:], cwd=ROOT))
    monkeypatch.setattr(lists, "subprocess", forked)
    monkeypatch.setattr(lists, "LOOK_S", 0.01)
    output = tmp_path / "rows.jsonl"
    words = "--lines 3000 --workers 0 --lists mapped --ranks 2 --orders sequential"
    words += f" --output {output}"
    assert lists.main(words.split()) == 0
    row = json.loads(output.read_text())
    assert (row["list"], row["ranks"]) == ("mapped", 2)
    # a process with torch in it has more than a hundred megabytes
    assert row["host_gib"] > 0.2
