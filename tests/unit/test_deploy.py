"""The files of deploy/ have the keys of their published schemas, start what exists, and leave time to save."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from settings.config import parse
from tasks import tables

ROOT = Path(__file__).resolve().parents[2]
FILES = ("jobset", "job", "compose", "skypilot")
LEAST_GRACE_S = 60
"""Twice what torchrun gives its ranks after a signal, in which they save: docs/cluster.md has what it takes."""


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((ROOT / f"deploy/{name}.yaml").read_text()))


def words(name: str) -> tuple[list[str], float]:
    """Return what a file starts, after the image's entry point, and the seconds to stop, inf: no limit."""
    last = documents(name)[-1]
    if name == "skypilot":
        return shlex.split(last["run"]), float("inf")
    if name == "compose":
        service = last["services"]["train"]
        return service["command"], float(service["stop_grace_period"].removesuffix("s"))
    job = last["spec"]
    if name == "jobset":
        job = job["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    return pod["containers"][0]["args"], pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", FILES)
def test_what_is_started_is_a_run_that_may_save_and_go_on(name: str) -> None:
    started, grace_s = words(name)
    flags = started[started.index("train.py") + 1 :]
    config = parse(flags, tables())
    assert config.run.resume == "auto" and config.run.output
    assert grace_s >= LEAST_GRACE_S
