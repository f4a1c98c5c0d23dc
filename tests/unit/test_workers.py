"""What worker processes need of the machine before they start."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from contracts import Mistake
from loaders._workers import QUEUES_BYTES, require_shared_memory


def test_too_little_shared_memory_is_said_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def usage(path: str) -> Any:
        asked.append(path)
        return SimpleNamespace(free=5 << 20)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(Mistake, match="/dev/shm has 5 MiB free") as caught:
        require_shared_memory(QUEUES_BYTES)
    assert f"need {QUEUES_BYTES >> 20} MiB there" in str(caught.value) and "--shm-size" in str(caught.value)
    require_shared_memory(5 << 20)
    require_shared_memory(0)
    assert asked == ["/dev/shm"] * 3


def test_a_machine_without_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(shutil, "disk_usage", missing)
    require_shared_memory(QUEUES_BYTES)
