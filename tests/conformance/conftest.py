"""Here the loaders run on the CPU; tests/gpu runs the same assertions on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.fixtures import *  # noqa: F403
from tests.conformance.fixtures import parametrise
from tests.conformance.scenes import CPU


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise(metafunc, CPU)


@pytest.fixture
def device() -> torch.device:
    return CPU
