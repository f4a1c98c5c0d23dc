"""Limits that no run can begin with: one line, at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.runs import Runner
from tests.end_to_end.test_torchrun import SMALL


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"RLIMIT_AS": 5 << 30}, "ulimit -v allows 5 GiB of addresses"),
        ({"RLIMIT_NOFILE": 40}, "ulimit -n allows 40 open files"),
        (
            {"RLIMIT_NOFILE": 150},
            "--workers 4 need about 160 open files, in a validation too",
        ),
    ],
    ids=["addresses", "files", "files-of-workers"],
)
def test_a_limit_that_is_too_low(
    train: Runner, pictures: Path, limits: dict[str, int], said: str
) -> None:
    process = train("--data", pictures, *SMALL, "--workers", 4, limits=limits)
    assert said in process.mistake()
    assert process.out == "", "before anything is scanned"
