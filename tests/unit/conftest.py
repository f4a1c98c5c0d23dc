"""Fixtures that several files of unit tests share."""

from typing import Any

import pytest

from tests.unit.folders import cache, root, synced  # noqa: F401


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """tests.unit.clip_kinds.Made of every kind, for reading only: they take seconds to encode."""
    from tests.unit.clip_kinds import KINDS, Made  # with PyAV, which few of these tests need

    return Made(tmp_path_factory.mktemp("kinds"), KINDS)
